// The life of one key, from three witnesses: the entry and its steps (what is), the audit trail (what people did), and the
// events that this process has seen (what happened here). Events of other processes are not known here.

import type { AuditRecord, Entry } from '../../core/store.ts'
import type { EventName } from '../../core/events.ts'
import type { RecordedChange } from '../../core/once.ts'
import type { OperationStatus, StepStatus } from '../../core/operations.ts'
import type { SeenEvent } from './journal.ts'

export interface Moment {
  readonly atMs: number
  /** One word, the same as in events and docs. */
  readonly what: string
  readonly detail: string
  readonly witness: 'store' | 'audit' | 'event'
  readonly attempt?: number
}

type Told = Readonly<Record<string, unknown>>

// An event that has no sentence yet is shown by its name.
const sentences: Readonly<Partial<Record<EventName, (event: Told) => string>>> = {
  claimed: (event) =>
    ({
      fresh: 'Nobody had asked for it before: the effect begins.',
      reopened: 'An earlier attempt gave the key back: the effect begins again.',
      'taken-over': 'The lease of an earlier attempt was over: the effect begins again.',
    })[String(event['how'])] ?? 'The effect begins.',
  'taken-over': () => 'The old token can write nothing any more.',
  replayed: () => 'A duplicate was given the stored answer. Nothing ran.',
  settled: (event) => `The outcome is stored (${String(event['kind'])}).`,
  released: (event) =>
    ({
      open: 'The attempt failed and gave the key back: a retry may run.',
      forget: 'The effect had not begun: the attempt leaves no trace.',
      'left-to-lease': 'It is not known what the attempt did: the key stays claimed until its lease ends.',
    })[String(event['how'])] ?? 'The key was given back.',
  lost: () => 'The attempt no longer holds the key; its result was not stored.',
  mismatched: () => 'The same key came with another request. Nothing ran.',
  expired: () => 'A retry came after the answer was forgotten. Nothing ran.',
  waited: (event) =>
    event['ended'] === 'in-flight'
      ? 'A duplicate came while the effect ran, waited, and was told to ask again.'
      : 'A duplicate came while the effect ran, and waited for its outcome.',
  doubted: () => 'A retry was told that the outcome is in doubt. Nothing ran.',
  unprotected: () => 'The store was down, and the request ran without protection.',
  'store-failed': (event) => `The store failed (${String(event['during'])}: ${String(event['code'])}).`,
  swept: () => 'A sweep was here.',
  step: (event) => `Step ${String(event['step'])}: ${String(event['state'])}.`,
  parked: (event) => `The operation waits for a person (${String(event['why'])}).`,
  compensating: (event) => `The operation goes back (${String(event['why'])}).`,
  drifted: () => 'What is stored of the operation does not fit the code that runs it.',
  message: (event) =>
    ({
      handled: 'The message was handled.',
      duplicate: 'The message had been handled before. Nothing ran.',
      refused: `The message was refused (${String(event['code'])}). Nothing ran.`,
      busy: 'Another process had the message in hand. Nothing ran.',
      failed: 'The handler failed, and the message comes again.',
    })[String(event['is'])] ?? 'A message came.',
}

export function timelineOf(
  entry: Entry | undefined,
  audit: readonly AuditRecord[],
  seen: readonly SeenEvent[],
  operation?: OperationStatus,
): readonly Moment[] {
  // The audit trail has the same moment with its reason, and a takeover is shown by its claim.
  const { steps = [], state } = operation ?? {}
  const told = new Set(['mended', 'taken-over', ...(steps.length > 0 ? ['step'] : [])])
  const events = seen.filter(({ name }) => !told.has(name)).map(momentOf)
  const manual = audit.map(({ atMs, action, reason, before }): Moment => ({
    atMs,
    what: manualWords(action, reason),
    detail: `${beforeWords(action, reason, before)}Reason: ${reason}`,
    witness: 'audit',
  }))
  const stored = entry ? storedMoments(entry, new Set(seen.map(({ name }) => name)), state) : []
  return [...stored, ...steps.map(stepMoment), ...events, ...manual].toSorted((one, other) => one.atMs - other.atMs)
}

function manualWords(action: AuditRecord['action'], reason: string): string {
  // As operation-by-hand.ts writes it.
  if (action === 'release' && reason.startsWith('resume: ')) return 'resumed manually'
  return `${recordedWords(action, reason) ?? pastWords[action]} manually`
}

/** As core/once/on-record.ts writes it. */
function recordedWords(action: AuditRecord['action'], reason: string): string | undefined {
  if (action !== 'forget') return undefined
  return Object.entries(recorded).find(([what]) => reason.startsWith(`${what}: `))?.[1]
}

const recorded: Readonly<Record<RecordedChange, string>> = {
  redrive: 'redriven',
  discard: 'discarded',
  replay: 'replayed',
  disable: 'disabled',
  enable: 'enabled',
  close: 'closed',
}

/** What has no entry was in no state of one. */
function beforeWords(action: AuditRecord['action'], reason: string, before: AuditRecord['before']): string {
  const what = recordedWords(action, reason)
  if (what === undefined) return `It was ${before}. `
  return what === recorded.redrive || what === recorded.discard ? 'It was parked. ' : ''
}

const pastWords: Readonly<Record<AuditRecord['action'], string>> = {
  release: 'released',
  forget: 'forgotten',
  resolve: 'resolved',
  keep: 'kept longer',
}

/** The error of a step is left out: a service may have put anything into it. */
function stepMoment({ name, state, attempt, sinceAtMs }: StepStatus): Moment {
  return { atMs: sinceAtMs, what: 'step', detail: `Step ${name}: ${state}.`, witness: 'store', attempt }
}

// How it happened says more than that it did.
const wordsOf: Readonly<Record<string, string>> = { 'taken-over': 'taken over', 'left-to-lease': 'left to its lease' }

function momentOf({ atMs, name, event }: SeenEvent): Moment {
  const told = event as Told
  const { attempt, durationMs } = told
  const took = typeof durationMs === 'number' && durationMs >= 1 ? ` (${Math.round(durationMs)} ms)` : ''
  return {
    atMs,
    what: wordsOf[String(told['how'])] ?? name,
    detail: (sentences[name]?.(told) ?? `The ${name} event.`) + took,
    witness: 'event',
    ...(typeof attempt === 'number' && { attempt }),
  }
}

/** What the entry itself knows, as far as no event has shown it already. */
function storedMoments(
  entry: Entry,
  told: ReadonlySet<EventName>,
  operation: OperationStatus['state'] | undefined,
): Moment[] {
  const { state, attempt, firstClaimedAtMs, leaseUntilMs, expiresAtMs, forgottenAtMs } = entry
  const at = (atMs: number, what: string, detail: string): Moment => ({ atMs, what, detail, witness: 'store' })
  const moments: Moment[] = []
  if (!told.has('claimed')) moments.push(at(firstClaimedAtMs, 'first claimed', `By now it is attempt ${attempt}.`))
  if (state === 'running') moments.push(at(leaseUntilMs, 'lease ends', 'Unless its holder extends it until then.'))
  if (state === 'abandoned')
    moments.push(at(leaseUntilMs, 'lease over', 'The attempt began and never reported: in doubt.'))
  if (state === 'settled' && !told.has('settled')) moments.push(at(leaseUntilMs, 'settled', 'The outcome is stored.'))
  if (operation === 'parked') moments.push(at(leaseUntilMs, 'parked', 'It waits for a person: nobody goes on with it.'))
  else if (state === 'open' && !told.has('released')) moments.push(at(leaseUntilMs, 'released', 'A retry may run.'))
  if (state === 'tombstone')
    moments.push(at(expiresAtMs, 'expired', 'Its answer is gone; late retries are still refused.'))
  else if (state !== 'running')
    moments.push(at(expiresAtMs, 'expires', 'What is stored is dropped; late retries are still refused.'))
  moments.push(at(forgottenAtMs, 'forgotten', 'As if it had never been.'))
  return moments
}
