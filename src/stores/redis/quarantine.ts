// Quarantine by hand: seeing it, spreading it over a Cluster, and ending it. The flag is in the registers, so that every
// instance stops, also one that lost nothing itself. Each bucket of a Cluster has a register, and all of them get the flag.

import { invalidArgument } from '../../core/errors.ts'
import { aString } from '../../core/options.ts'
import { runScript, unavailable } from './batches.ts'
import type { RedisGround } from './batches.ts'
import { buckets } from './names.ts'
import type { DataLoss } from './register.ts'
import { scriptOf } from './decisions.lua.ts'

export interface Quarantine {
  /** On the server's clock. */
  readonly sinceMs: number
  /** Undefined when only a person ends it. */
  readonly untilMs?: number
  readonly evidence: DataLoss['evidence']
}

export interface Quarantinable {
  /** Undefined when there is none. */
  quarantine(): Promise<Quarantine | undefined>
  /** Let new claims in again; the reason is kept with the register. Answers whether there was a quarantine. */
  endQuarantine(reason: string): Promise<boolean>
}

// More than a year, and a hundred of them: quarantines are rare, and what is written must go by itself.
const logKeepMs = 400 * 24 * 3_600_000
const logRecords = 100

// The register has everything at its place; see redis/decisions.lua.ts.
const reading = `
local time = redis.call('TIME')
local nowText = string.format('%016d', math.floor((time[1] * 1000000 + time[2]) / 1000))
local register = redis.call('GET', KEYS[1]) or string.format('%s-%016d %-53s %-16s', ARGV[1], 0, '-', '-')
local hold, since = string.sub(register, 109, 124), string.sub(register, 126, 141)
local held = string.sub(hold, 1, 1) ~= '-' and (hold > nowText)
`

const look = scriptOf(`${reading}
return held and hold .. string.sub(register, 125) or false
`)

const hold = scriptOf(`${reading}
if held then return 0 end
local untilMs = ARGV[2] == 'on' and 'on' or string.format('%016d', nowText + ARGV[2])
redis.call('SET', KEYS[1], string.sub(register, 1, 108) .. string.format('%-16s %s %s', untilMs, nowText, ARGV[3]))
return 1
`)

const end = scriptOf(`${reading}
if not held then return 0 end
redis.call('RPUSH', KEYS[2], nowText .. string.sub(register, 125) .. ' ' .. ARGV[2])
redis.call('LTRIM', KEYS[2], '-' .. ARGV[4], -1)
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('SET', KEYS[1], string.sub(register, 1, 108) .. string.format('%-16s', '-') .. string.sub(register, 125))
return 1
`)

export function quarantineOf(ground: Omit<RedisGround, 'lost'>): Quarantinable {
  const { names } = ground
  const everywhere = ground.link.isCluster ? buckets : [undefined]
  return {
    async quarantine() {
      const answers = await Promise.all(
        everywhere.map((bucket) => runScript(ground, look, [names.register(bucket)], [ground.instance])),
      ).catch((error: unknown) => Promise.reject(unavailable(error)))
      const [first] = answers.filter((answer): answer is Buffer => answer instanceof Buffer)
      return first && readQuarantine(first.toString())
    },
    async endQuarantine(reason) {
      if (aString(reason) !== undefined) throw invalidArgument('expected the reason to be a non-empty string')
      const values = [ground.instance, Buffer.from(reason), `${logKeepMs}`, `${logRecords}`]
      const answers = await Promise.all(
        everywhere.map((bucket) =>
          runScript(ground, end, [names.register(bucket), names.quarantineLog(bucket)], values),
        ),
      ).catch((error: unknown) => Promise.reject(unavailable(error)))
      return answers.some((answer) => Number(answer) === 1)
    },
  }
}

// On a large loss every bucket gives its evidence, within seconds; one of them spreads the flag for all.
const spreadPauseMs = 60_000

/**
 * In a Cluster: a primary that lost data lost it in all of its buckets, and not every one has a witness. Best effort: a bucket
 * that cannot be reached now has its own evidence to give when it is back.
 */
export function spreadsOn(ground: Omit<RedisGround, 'lost'>): (loss: DataLoss) => void {
  const { link, names, instance, onLoss, calls } = ground
  let spreadAtMs = -Infinity
  return (loss) => {
    if (!link.isCluster || !loss.quarantined || calls.clock.elapsed() - spreadAtMs < spreadPauseMs) return
    spreadAtMs = calls.clock.elapsed()
    const values = [instance, onLoss, loss.evidence]
    void Promise.allSettled(buckets.map((bucket) => runScript(ground, hold, [names.register(bucket)], values)))
  }
}

function readQuarantine(text: string): Quarantine {
  const [held, since, evidence] = text.split(/ +/) as [string, string, DataLoss['evidence']]
  return { sinceMs: Number(since), evidence, ...(held !== 'on' && { untilMs: Number(held) }) }
}
