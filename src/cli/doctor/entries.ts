// What the entries show: effects that never reported, that run too long or fail again and again, how long they take compared
// with the lease, and whether the retention outlasts the retries of clients and of webhook senders. The checks read a sample,
// and say so.

import { grantedAtMs } from '../../core/entry.ts'
import type { Key } from '../../core/key.ts'
import type { Entry, EntryState, Inspectable } from '../../core/store.ts'
import { hasLedger, operationsAmong } from '../../gateway/admin.ts'
import type { FoundOperation } from '../../gateway/admin.ts'
import { check, judge } from '../../core/fitness.ts'
import type { FitnessCheck, Judgement } from '../../core/fitness.ts'
import { commandWords, keyName, span } from '../words.ts'

export interface Expectations {
  readonly leaseMs: number
  /** Undefined: as the entries say, or else the defaults. */
  readonly keepMs: number | undefined
  readonly tombstoneMs: number | undefined
  /** For how long clients go on retrying. */
  readonly retryHorizonMs: number | undefined
  /** For how long senders of webhooks go on retrying. */
  readonly webhookHorizonMs: number | undefined
}

export interface Sample {
  readonly entries: readonly Entry[]
  /** No entry is missing from the sample. */
  readonly complete: boolean
  /** The sample that these were picked from. */
  readonly among?: Sample
}

// An entry can hold a mebibyte, and two hundred of them are bearable.
const pageLimit = 200

export interface Samples {
  /** The first of all entries. */
  readonly first: Sample
  /** Of those in one state. */
  readonly in: (state: 'abandoned' | 'running' | 'open') => Sample
}

/**
 * Rare states are mostly not among the first thousand, so the doctor queries them. It does not where the store would read
 * everything for it, one key at a time (Redis) or for money (DynamoDB). There it uses what is in the sample.
 */
export async function samplesOf(
  store: Inspectable,
  entriesMax: number,
  rare: 'asked-for' | 'in-the-sample',
): Promise<Samples> {
  const first = await sampleOf(store, entriesMax)
  if (rare === 'in-the-sample' || first.complete) {
    const filtered = (state: EntryState): Sample => ({
      ...first,
      among: first,
      entries: first.entries.filter((each) => each.state === state),
    })
    return { first, in: filtered }
  }
  const of = {
    abandoned: await sampleOf(store, entriesMax, 'abandoned'),
    running: await sampleOf(store, entriesMax, 'running'),
    open: await sampleOf(store, entriesMax, 'open'),
  }
  return { first, in: (state) => of[state] }
}

async function sampleOf(store: Inspectable, entriesMax: number, state?: EntryState): Promise<Sample> {
  const entries: Entry[] = []
  for (;;) {
    const after = entries.at(-1)?.key
    const limit = Math.min(pageLimit, entriesMax - entries.length)
    const page = await store.list({ limit, ...(after && { after }), ...(state && { state }) })
    // Their contents are of no interest here, and all of them together may not fit.
    entries.push(...page.map(({ outcome: _outcome, input: _input, ...rest }) => rest))
    if (page.length < limit) return { entries, complete: true }
    if (entries.length >= entriesMax) return { entries, complete: false }
  }
}

export async function entryChecks(samples: Samples, expected: Expectations, nowMs: number): Promise<FitnessCheck[]> {
  return [
    await doubtCheck(samples.in('abandoned')),
    await stuckCheck(samples.in('running'), expected, nowMs),
    await failingCheck(samples.in('open')),
    await leaseCheck(samples.first, expected),
    await horizonCheck(samples.first, expected, 'retry'),
    await horizonCheck(samples.first, expected, 'webhook'),
  ]
}

/** Of a store that keeps operations: those that wait for a person, and those whose steps never reported. */
export async function operationChecks(store: object, samples: Samples): Promise<FitnessCheck[]> {
  if (!hasLedger(store)) return []
  // A parked operation has been released, or its process died before the release.
  const [open, abandoned] = [samples.in('open'), samples.in('abandoned')]
  const entries = [...open.entries, ...abandoned.entries]
  const found = operationsAmong(store, entries)
  const judged = (question: OperationQuestion): Promise<FitnessCheck> =>
    check({ name: question.name, why: question.why, lookedAt: `operations among ${lookedAt(open)}` }, async () => {
      const { operations, complete } = await found
      const those = operations.filter(question.fits)
      const sample = { ...open, complete: complete && open.complete && abandoned.complete }
      return judge(those.length === 0 ? 'ok' : 'warning', named(those, sample), question.mend(those[0]))
    })
  return Promise.all(operationQuestions.map(judged))
}

interface OperationQuestion {
  readonly name: string
  readonly why: string
  readonly mend: (found: FoundOperation | undefined) => string
  readonly fits: (found: FoundOperation) => boolean
}

const operationQuestions: readonly OperationQuestion[] = [
  {
    name: 'operations-parked',
    why: 'These wait for a person, or their records cannot be read: no worker resumes them until a person has decided.',
    mend: (found) =>
      `With what you found out, resume(id) in the service lets it go on. See why: ${operationWords(found)}`,
    fits: ({ status }) => !status || status.state === 'parked',
  },
  {
    name: 'operations-in-doubt',
    why: 'A step of these began and never reported: it is unknown whether it took effect.',
    mend: (found) =>
      `A worker (once.recover) or a retry settles most of them. See a parked one: ${operationWords(found)}`,
    fits: ({ status }) => status !== undefined && status.inDoubt.length > 0,
  },
]

function keyWords(entry: { readonly key: Key } | undefined): string {
  return commandWords('keys show', entry ? [entry.key.scope, entry.key.id] : ['SCOPE', 'ID'])
}

function operationWords(found: FoundOperation | undefined): string {
  const command = 'operations show'
  if (!found) return commandWords(command, ['SCOPE', 'NAME', 'ID'])
  const { scope, id } = found.key
  const at = scope.lastIndexOf('/operations/')
  return commandWords(command, [scope.slice(0, at), scope.slice(at + '/operations/'.length), id])
}

function lookedAt({ among, entries, complete }: Sample): string {
  if (among) return lookedAt(among)
  return complete ? `all ${entries.length} entries` : `the first ${entries.length} entries (--sample looks at more)`
}

const namesMax = 3

function named(entries: readonly { readonly key: Key }[], sample: Sample): string {
  if (entries.length === 0) return sample.complete ? 'none' : `none among ${lookedAt(sample)}`
  const names = entries.slice(0, namesMax).map(({ key }) => keyName(key))
  return `${entries.length}: ${names.join(', ')}${entries.length > namesMax ? ', …' : ''}`
}

function doubtCheck(sample: Sample): Promise<FitnessCheck> {
  const why = 'These began and never reported: it is unknown whether their effects took place.'
  return check({ name: 'in-doubt', lookedAt: lookedAt(sample), why }, () => {
    const retries =
      "Clients that retry take most of them over, or, where the service says onTakeover: 'refuse', get IN_DOUBT."
    const mend = `${retries} Each one says what to type next: ${keyWords(sample.entries[0])}`
    return judge(sample.entries.length === 0 ? 'ok' : 'warning', named(sample.entries, sample), mend)
  })
}

/** The default of attemptMs, in leases: after that an attempt stops its heartbeat by itself. */
export const attemptLeases = 20

function stuckCheck(sample: Sample, { leaseMs }: Expectations, nowMs: number): Promise<FitnessCheck> {
  const limitMs = leaseMs * attemptLeases
  const why = `An attempt that runs for longer than ${span(limitMs)} (${attemptLeases} leases) hangs, and keeps its key from everybody.`
  return check({ name: 'stuck', lookedAt: lookedAt(sample), why }, () => {
    const found = sample.entries.filter((entry) => nowMs - grantedAtMs(entry) > limitMs)
    return judge(
      found.length === 0 ? 'ok' : 'warning',
      named(found, sample),
      'Give effects a time-out (attemptMs); see its process.',
    )
  })
}

/** A passing fault ends after a few tries. */
const attemptsMax = 5

function failingCheck(sample: Sample): Promise<FitnessCheck> {
  const why = `These have failed ${attemptsMax} times or more and were given back each time: the fault does not pass by itself.`
  return check({ name: 'failing', lookedAt: lookedAt(sample), why }, () => {
    const found = sample.entries.filter(({ attempt }) => attempt >= attemptsMax)
    return judge(
      found.length === 0 ? 'ok' : 'warning',
      named(found, sample),
      'See the errors of the service for these keys.',
    )
  })
}

function leaseCheck(sample: Sample, { leaseMs }: Expectations): Promise<FitnessCheck> {
  const why =
    'A lease that is shorter than the effect rests on its heartbeat: a pause of the process of one lease lets another attempt in.'
  return check({ name: 'lease', lookedAt: `how long effects took, ${lookedAt(sample)}`, why }, (): Judgement => {
    const settled = sample.entries.filter(({ state }) => state === 'settled')
    if (settled.length === 0) return { verdict: 'unknown', found: 'none is settled' }
    const slowestMs = settled.reduce((max, entry) => Math.max(max, entry.leaseUntilMs - grantedAtMs(entry)), 0)
    const found = `the slowest of ${settled.length} took ${span(slowestMs)}, the lease is ${span(leaseMs)}`
    return judge(
      slowestMs >= leaseMs ? 'warning' : 'ok',
      found,
      'Raise leaseMs above the slowest effect (--lease says what it is).',
    )
  })
}

// The defaults of createOnce.
const defaults = { keepMs: 24 * 3_600_000, tombstoneMs: 7 * 24 * 3_600_000 }
// The last retry of a client may itself be late, and clocks and queues add to it.
const horizonFactor = 2

interface Kept {
  readonly keepMs: number
  readonly tombstoneMs: number
  readonly from: string
}

function keptOf({ entries }: Sample, expected: Expectations): Kept {
  const settled = entries.filter(({ state }) => state === 'settled')
  const shortest = (of: (entry: Entry) => number): number | undefined =>
    settled.length === 0 ? undefined : settled.reduce((min, entry) => Math.min(min, of(entry)), Infinity)
  const seen = {
    keepMs: shortest((entry) => entry.expiresAtMs - entry.leaseUntilMs),
    tombstoneMs: shortest((entry) => entry.forgottenAtMs - entry.expiresAtMs),
  }
  return {
    keepMs: expected.keepMs ?? seen.keepMs ?? defaults.keepMs,
    tombstoneMs: expected.tombstoneMs ?? seen.tombstoneMs ?? defaults.tombstoneMs,
    from: expected.keepMs === undefined ? (seen.keepMs === undefined ? 'by default' : 'the shortest seen') : 'as given',
  }
}

const horizons = {
  retry: { name: 'client-horizon', who: 'clients retry', option: '--retry-horizon 6h' },
  webhook: { name: 'webhook-horizon', who: 'webhook senders retry', option: '--webhook-horizon 3d' },
} as const

function horizonCheck(sample: Sample, expected: Expectations, which: keyof typeof horizons): Promise<FitnessCheck> {
  const { name, who, option } = horizons[which]
  const horizonMs = which === 'retry' ? expected.retryHorizonMs : expected.webhookHorizonMs
  const why = 'A retry after the outcome has expired is refused; after the tombstone has gone too, it runs again.'
  return check({ name, lookedAt: `how long outcomes and tombstones are kept, and for how long ${who}`, why }, () => {
    const kept = keptOf(sample, expected)
    const window = `kept for ${span(kept.keepMs)} and ${span(kept.tombstoneMs)} more as a tombstone (${kept.from})`
    if (horizonMs === undefined) {
      return { verdict: 'unknown', found: window, mend: `Say for how long they retry: ${option}.` }
    }
    return judgeHorizon(kept, horizonMs, `${window}; ${who} for ${span(horizonMs)}`)
  })
}

export function judgeHorizon({ keepMs, tombstoneMs }: Omit<Kept, 'from'>, horizonMs: number, found: string): Judgement {
  const enough = `Raise keepMs to ${span(horizonMs * horizonFactor)} (${horizonFactor} × the horizon), or retry for a shorter time.`
  if (keepMs + tombstoneMs < horizonMs) return judge('violated', found, `A late retry would run again. ${enough}`)
  return judge(keepMs < horizonMs * horizonFactor ? 'warning' : 'ok', found, enough)
}
