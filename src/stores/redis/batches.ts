// Brings calls to the script: calls of one moment share one command, and in a Cluster each bucket has a lane of its own, so
// that a primary that is down holds up nobody but its own keys. A call that failed may have happened; its token tells.

import assert from 'node:assert/strict'
import { bounded } from '../../core/store-call.ts'
import type { StoreCalls } from '../../core/store-call.ts'
import { OnceError } from '../../core/errors.ts'
import type { Key } from '../../core/key.ts'
import { lane } from '../../core/lane.ts'
import type { RedisArgument, RedisLink } from '../../clients/redis.ts'
import type { Fenced } from '../../core/store.ts'
import { unreadable } from './entries.ts'
import type { Answer } from './entries.ts'
import type { Names } from './names.ts'
import { registerMemory } from './register.ts'
import type { DataLoss, Head, RegisterMemory } from './register.ts'
import { claimScript, inspectScript, noBytes, writeScript } from './decisions.lua.ts'
import type { PhaseScript, Script } from './decisions.lua.ts'

/** See the scripts for what the words, durations and bytes of each are. */
export interface ScriptCall {
  /** Of the entry. */
  readonly name: string
  readonly words: string
  readonly durations: string
  readonly bytes: Uint8Array | undefined
}

export interface RedisGround {
  readonly link: RedisLink
  readonly names: Names
  readonly calls: StoreCalls
  readonly instance: string
  readonly onLoss: string
  lost(loss: DataLoss): void
}

/** Does the work at once, or when the servers have been looked at. */
export type Checked = <T>(work: () => Promise<T>) => Promise<T>

/** Brings a call to its script, and reads the answer to it. */
export type Ask<Answered> = <T>(key: Key, call: ScriptCall, read: (answered: Answered) => T) => Promise<Awaited<T>>

/** One script a phase. */
export interface Shard {
  readonly claim: Ask<Answer>
  readonly write: Ask<Fenced>
  readonly inspect: Ask<Answer>
}

// A script costs some 9 µs and each call in it 3 to 8: beyond 64 there is little left to share, and everybody else waits for
// a script to end, half a millisecond then.
const batchMax = 64
// While the server works on one batch, the next is encoded and on its way.
const dispatchesMax = 4
// Outcomes of a batch go as one value, which Redis refuses above 512 MB and Lua copies. Large ones share nothing worth that.
const bytesMax = 1_048_576

/** The part of the dataset that a key is in: all of it, or in a Cluster its bucket. */
export function shardsOf(ground: RedisGround): (key: Key) => Shard {
  const { link, names } = ground
  const known = new Map<number | undefined, Shard>()
  return (key) => {
    const bucket = link.isCluster ? names.bucketOf(key) : undefined
    let shard = known.get(bucket)
    if (!shard) known.set(bucket, (shard = openShard(ground, bucket)))
    return shard
  }
}

function openShard(ground: RedisGround, bucket: number | undefined): Shard {
  const { names, instance, onLoss, calls } = ground
  const register = names.register(bucket)
  const memory = registerMemory({ register, instance, onLoss, clock: calls.clock })
  const shared = { register, mark: names.mark(bucket, instance), memory }
  const phase = <Answered>(script: PhaseScript, take: (raw: never, nowMs: number) => Answered): Ask<Answered> => {
    const enter = lane<ScriptCall, Answered | Error>({
      dispatch: (batch) => dispatch(ground, { ...shared, script, take: take as Shared<Answered>['take'] }, batch),
      batchMax,
      dispatchesMax,
    })
    // One promise a call beside the lane's: at this rate each of them counts.
    return (key, call, read) =>
      enter(call).then((answered) => {
        if (!(answered instanceof Error)) return read(answered)
        throw answered.message.includes('UNREADABLE entry') ? unreadable(key) : answered
      }) as Promise<never>
  }
  const withTime = (bytes: Buffer, nowMs: number): Answer => ({ bytes, nowMs })
  return {
    claim: phase(claimScript, withTime),
    write: phase(writeScript, (isDone: number): Fenced => (isDone === 1 ? 'done' : 'lost')),
    inspect: phase(inspectScript, withTime),
  }
}

interface Shared<Answered> {
  readonly script: PhaseScript
  take(raw: unknown, nowMs: number): Answered
  readonly register: string
  readonly mark: string
  readonly memory: RegisterMemory
}

async function dispatch<Answered>(
  ground: RedisGround,
  shared: Shared<Answered>,
  batch: readonly ScriptCall[],
): Promise<readonly (Answered | Error)[]> {
  if (batch.length > 1 && bytesIn(batch) > bytesMax) return eachAlone(ground, shared, batch)
  try {
    return await send(ground, shared, batch)
  } catch (error) {
    const failure = unavailable(error)
    if (batch.length === 1 || !isAnswer(error)) return batch.map(() => failure)
    // One call that the server refuses (out of memory, a foreign value under a name) must not fail the others. What was
    // done before it stays done, and recognises itself.
    return eachAlone(ground, shared, batch)
  }
}

async function eachAlone<Answered>(
  ground: RedisGround,
  shared: Shared<Answered>,
  batch: readonly ScriptCall[],
): Promise<readonly (Answered | Error)[]> {
  return (await Promise.all(batch.map((call) => dispatch(ground, shared, [call])))).flat()
}

function bytesIn(batch: readonly ScriptCall[]): number {
  return batch.reduce((sum, { bytes }) => sum + (bytes?.length ?? 0), 0)
}

async function send<Answered>(
  ground: RedisGround,
  shared: Shared<Answered>,
  batch: readonly ScriptCall[],
): Promise<readonly Answered[]> {
  const { script, register, mark, memory } = shared
  const keys = [register, mark]
  for (const call of batch) keys.push(call.name)
  const records = recordsOf(script, batch)
  let head: Head | undefined
  const values = (): RedisArgument[] => {
    head = memory.head(ground.calls.timeoutMs)
    return [...head.values, ...records]
  }
  const learn = (answer: unknown): number => {
    const { nowMs, loss } = memory.learn(head!, (answer as [Buffer])[0].toString('latin1'))
    if (loss) ground.lost(loss)
    return nowMs
  }
  // An answer that comes too late for its caller still tells what this dataset has acknowledged.
  const answers = (await runScript(ground, script, keys, values, learn)) as [Buffer, ...unknown[]]
  const nowMs = learn(answers)
  return batch.map((_, index) => shared.take(answers[index + 1], nowMs))
}

/** The records of all calls, their bytes one after the other, and the durations that occur, most often one. */
function recordsOf({ wordsLength }: PhaseScript, batch: readonly ScriptCall[]): RedisArgument[] {
  const durations: string[] = []
  const pieces: Uint8Array[] = []
  let records = ''
  for (const call of batch) {
    // One that is longer would shift all that follow, and they would be other calls.
    assert(call.words.length === wordsLength, `Bug! Expected ${wordsLength} characters, got "${call.words}".`)
    let at = durations.indexOf(call.durations)
    if (at < 0) at = durations.push(call.durations) - 1
    if (call.bytes) pieces.push(call.bytes)
    const length = call.bytes ? `${call.bytes.length}`.padStart(noBytes.length, '0') : noBytes
    records += `${call.words}${`${at + 1}`.padStart(3, '0')} ${length}`
  }
  // Text where there are no bytes: a client writes each buffer by itself.
  return [records, pieces.length === 0 ? '' : Buffer.concat(pieces), ...durations]
}

/** The first key decides which server it is. */
export async function runScript(
  { link, calls }: Pick<RedisGround, 'link' | 'calls'>,
  script: Script,
  keys: readonly string[],
  values: readonly RedisArgument[] | (() => readonly RedisArgument[]),
  late?: (answer: unknown) => void,
): Promise<unknown> {
  // Values that say what is known are made anew for the second try: something may have been heard in between.
  const command = (name: 'EVAL' | 'EVALSHA'): Promise<unknown> => {
    const given = typeof values === 'function' ? values() : values
    return link.send(keys[0]!, [
      name,
      name === 'EVAL' ? script.source : script.sha,
      `${keys.length}`,
      ...keys,
      ...given,
    ])
  }
  const run = (): Promise<unknown> =>
    command('EVALSHA').catch((error: unknown) => {
      // The server was restarted, or somebody flushed its scripts.
      if (error instanceof Error && error.message.startsWith('NOSCRIPT')) return command('EVAL')
      throw error
    })
  return bounded(calls, run, late)
}

/** An error that the server answered with begins with a word in capitals: OOM, READONLY, WRONGTYPE. */
function isAnswer(error: unknown): boolean {
  return error instanceof Error && /^[A-Z]{2,} /.test(error.message)
}

export function unavailable(cause: unknown): OnceError {
  if (cause instanceof OnceError) return cause
  const why = cause instanceof Error ? cause.message || cause.name : String(cause)
  return new OnceError('STORE_UNAVAILABLE', {
    message: `Redis did not do what it was asked: ${why}. Check that it is up, reachable and takes writes.`,
    cause,
  })
}
