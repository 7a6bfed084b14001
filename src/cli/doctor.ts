// `onceonly doctor`: checks a deployment against the promise. Ends with 1 when a promise is violated. A warning is for people.

import { systemClock } from '../core/clock.ts'
import { OnceError } from '../core/errors.ts'
import { count, duration, parseCommand } from './arguments.ts'
import type { Fitness, FitnessCheck, FitnessVerdict } from '../core/fitness.ts'
import { machineDecides, skewCheck, storeDecides } from './doctor/clock.ts'
import { attemptLeases, entryChecks, operationChecks, samplesOf } from './doctor/entries.ts'
import type { Expectations, Sample, Samples } from './doctor/entries.ts'
import type { Ground, OpenedStore } from './open-store.ts'
import { commandWords, oneLine, paint, textWidth, wrapped } from './words.ts'
import type { Tone } from './words.ts'
import { inspectable, storeHelp, storeOptions, storeWords, withStore } from './with-store.ts'

const help = `onceonly doctor: check a deployment against the promise

Usage: onceonly doctor --store URL [options] [--json]

${storeHelp}
  --lease 30s            the lease of your services, to be compared with how long effects take; 30s unless given
  --keep 24h             how long outcomes are kept; the shortest that is seen in the store unless given
  --tombstone 7d         how long tombstones are kept after that; likewise
  --retry-horizon 6h     for how long your clients go on retrying: outcomes should be kept for twice that
  --webhook-horizon 3d   for how long senders of webhooks do
  --sample N             look at so many entries; 1000 unless given

Each check says what it looked at, what it found, why it matters and how to mend it. It changes nothing.
Ends with 1 when a promise is violated (an effect can happen twice, or an outcome be lost), with 0 otherwise.

Example: onceonly doctor --store postgres://db.example/app --retry-horizon 6h
`

const options = {
  ...storeOptions,
  lease: duration,
  keep: duration,
  tombstone: duration,
  'retry-horizon': duration,
  'webhook-horizon': duration,
  sample: count,
}

const defaultLeaseMs = 30_000
// Enough to see what is common. The operator can ask for more.
const defaultSample = 1_000

export async function doctor(args: readonly string[]): Promise<number> {
  const parsed = parseCommand({ command: 'doctor', help, options, args })
  if (!parsed) return 0
  const { values } = parsed
  const expected: Expectations = {
    leaseMs: values.lease ?? defaultLeaseMs,
    keepMs: values.keep,
    tombstoneMs: values.tombstone,
    retryHorizonMs: values['retry-horizon'],
    webhookHorizonMs: values['webhook-horizon'],
  }
  // What the stores would warn of is among the checks.
  process.removeAllListeners('warning')
  return withStore('doctor', values.store, async (opened) => {
    const found = [
      ...(await groundChecks(opened, expected.leaseMs * attemptLeases)),
      ...(await storedChecks(opened, expected, values.sample ?? defaultSample)),
    ]
    const checks = found.map((each) => ready(each, storeWords(values.store, opened.describe)))
    if (values.json) console.log(JSON.stringify({ store: opened.describe, checks: checks.map(asJson) }, undefined, 2))
    else print(opened.describe, checks)
    return checks.some(({ verdict }) => verdict === 'violated') ? 1 : 0
  })
}

async function groundChecks(
  { ground, store, describe }: OpenedStore,
  longestMs: number,
): Promise<readonly FitnessCheck[]> {
  const { timeMs, checks } = await examinationOf(ground, store, longestMs)
  if (!timeMs) return checks(systemClock.now())
  // First of all: for an unreachable store every check would say so, and none of them would be a failure.
  await timeMs().catch((cause: unknown) => {
    const message = `${describe} cannot be reached: ${cause instanceof Error ? cause.message || cause.name : String(cause)}`
    throw new OnceError('STORE_UNAVAILABLE', { message, cause })
  })
  const limit = ground.kind === 'dynamodb' ? machineDecides : storeDecides
  return [...(await checks(systemClock.now())), await skewCheck(systemClock, limit, timeMs)]
}

async function examinationOf(ground: Ground, store: object, longestMs: number): Promise<Fitness> {
  switch (ground.kind) {
    case 'memory':
      return { checks: async () => [memoryCheck] }
    case 'sqlite': {
      const { sqliteFitness } = await import('../stores/sqlite.ts')
      return sqliteFitness(ground)
    }
    case 'postgres': {
      const { postgresFitness } = await import('../stores/postgres.ts')
      return postgresFitness({ ...ground, longestMs })
    }
    case 'redis': {
      const { redisFitness } = await import('../stores/redis.ts')
      return redisFitness(ground.client, store)
    }
    case 'mysql': {
      const { mysqlFitness } = await import('../stores/mysql.ts')
      return mysqlFitness({ pool: ground.pool, table: ground.table, longestMs })
    }
    case 'mongodb': {
      const { mongodbFitness } = await import('../stores/mongodb.ts')
      return mongodbFitness(ground.collection)
    }
    case 'dynamodb': {
      const { dynamodbFitness } = await import('../stores/dynamodb.ts')
      return dynamodbFitness(ground.client, ground.table)
    }
  }
}

const memoryCheck: FitnessCheck = {
  name: 'memory',
  verdict: 'violated',
  lookedAt: 'the store',
  found: 'it lives in one process, and ends with it',
  why: 'A restart forgets every key, and their retries run again.',
  mend: 'Use it for tests; sqlite:FILE needs no server either.',
}

/** A check above has reported a store that cannot be listed (its schema is missing). The horizons can still be judged. */
async function storedChecks(
  opened: OpenedStore,
  expected: Expectations,
  sample: number,
): Promise<readonly FitnessCheck[]> {
  const rare = ['redis', 'dynamodb'].includes(opened.ground.kind) ? 'in-the-sample' : 'asked-for'
  const nowMs = systemClock.now()
  try {
    const samples = await samplesOf(inspectable(opened.store), sample, rare)
    return [...(await entryChecks(samples, expected, nowMs)), ...(await operationChecks(opened.store, samples))]
  } catch (error) {
    const none: Sample = { entries: [], complete: false }
    const samples: Samples = { first: none, in: () => none }
    const unread: FitnessCheck = {
      name: 'entries',
      verdict: 'unknown',
      lookedAt: 'the entries',
      found: `they could not be read: ${error instanceof Error ? error.message : String(error)}`,
      why: 'Effects in doubt, stuck or failing can only be seen there.',
      mend: 'See the checks above.',
    }
    const judged = await entryChecks(samples, expected, nowMs)
    return [unread, ...judged.filter(({ name }) => name.endsWith('-horizon'))]
  }
}

/** A check whose command can be pasted: it names the store that was checked. The first is ours, what follows may be a key. */
function ready(judged: FitnessCheck, store: string): FitnessCheck {
  const command = /\b(?:npx )?onceonly (keys show|operations show|migrate|sweep|quarantine)\b/
  const mend = judged.mend?.replace(command, (_, name: string) => commandWords(name, [], [store]))
  return mend === undefined ? judged : { ...judged, mend }
}

/** Why a check matters and how to mend it is for checks that failed. */
function asJson({ why, mend, ...rest }: FitnessCheck): object {
  return rest.verdict === 'ok' ? rest : { ...rest, why, ...(mend !== undefined && { mend }) }
}

const tones: Readonly<Record<FitnessVerdict, Tone>> = { ok: 'good', warning: 'care', violated: 'bad', unknown: 'quiet' }

function print(describe: string, checks: readonly FitnessCheck[]): void {
  console.log(`${describe}\n`)
  for (const check of checks) for (const line of linesOf(check)) console.log(line)
  const times = (verdict: FitnessVerdict): number => checks.filter((check) => check.verdict === verdict).length
  const summary = `${times('violated')} violated, ${times('warning')} ${times('warning') === 1 ? 'warning' : 'warnings'}, ${times('unknown')} unknown, ${times('ok')} ok`
  console.log(`\n${paint(times('violated') > 0 ? 'bad' : 'good', summary)}`)
}

/** A command at the end has a line of its own, which is never broken: the operator pastes it. */
function mendLines(mend: string, indented: (label: string, content: string) => string): string[] {
  const [, words = mend, command] = /^(.*:) ((?:npx )?onceonly .*)$/s.exec(mend) ?? []
  return command === undefined ? [indented('mend:', words)] : [indented('mend:', words), `    ${oneLine(command)}`]
}

function linesOf({ name, verdict, lookedAt, found, why, mend }: FitnessCheck): string[] {
  const first = `${paint(tones[verdict], verdict.padEnd(8))} ${name.padEnd(28)} ${oneLine(found)}`
  if (verdict === 'ok') return [first]
  const margin = ' '.repeat('violated '.length)
  const indented = (label: string, content: string): string => {
    const lines = wrapped(oneLine(content), textWidth() - margin.length - label.length - 1)
    return `${margin}${paint('quiet', label)} ${lines.join(`\n${margin}${' '.repeat(label.length + 1)}`)}`
  }
  return [
    first,
    indented('looked at:', lookedAt),
    indented('why:', why),
    ...(mend === undefined ? [] : mendLines(mend, indented)),
  ]
}
