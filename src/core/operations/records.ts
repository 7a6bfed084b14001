// What is written of an operation, beside its entry: a record for each step, and one for the course of the whole. A record is
// a line of JSON and, after it, the result of the step. What cannot be read is an error, never "this step has not run".

import { OnceError } from '../errors.ts'
import { describeKey } from '../key.ts'
import type { Key } from '../key.ts'
import { encodeOutcome, opaqueCodec, sealedWords } from '../outcome.ts'
import type { Codec, Outcome } from '../outcome.ts'
import type { Ledger, LedgerRecord, WrittenRecord } from '../store.ts'

/**
 * began    may or may not have taken effect: in doubt, once its attempt has ended
 * done     has taken effect, and its result is kept
 * failed   has said itself that it took no effect (FinalError, NotBegunError)
 * undoing  its undo began
 * undone   its undo took effect
 * stuck    its undo keeps failing, and waits for a person
 * absent   was found, by looking, not to have taken effect
 */
export type StepState = 'began' | 'done' | 'failed' | 'undoing' | 'undone' | 'stuck' | 'absent'

export interface StepRecord {
  readonly name: string
  /** Steps are undone in the reverse of this order, in which they began. */
  readonly order: number
  readonly state: StepState
  /** The attempt of the operation that wrote it. */
  readonly attempt: number
  readonly fingerprint?: string
  /** It brought an undo with it: an operation that goes back must find it again. */
  readonly undoable?: true
  /** From here on there is only forward. */
  readonly pivot?: true
  /** What an undo knows about the step it undoes. */
  readonly forward?: 'done' | 'unknown'
  readonly error?: string
  readonly sealed?: string
  /** The encoded outcome. */
  readonly result?: Uint8Array
}

/** How the operation as a whole is going. */
export interface Course {
  /** The version of the code that wrote it. */
  readonly version: number
  readonly direction: 'forward' | 'backward'
  /** Attempts that failed, since the start or since a person resumed it. */
  readonly failures: number
  /** Attempts that died on the way back, counted in the same way. */
  readonly failuresBack?: number
  /** Attempts on the way back that were interrupted since the last one that got further: so long is the next pause. */
  readonly interruptions?: number
  /** Why it goes back: what it will be settled with. */
  readonly ending?: Ending
  readonly parked?: string
  readonly lastError?: string
  readonly sealed?: string
}

export interface Ending {
  readonly why: 'final' | 'exhausted' | 'cancelled'
  readonly message: string
  readonly data?: unknown
}

/**
 * An error as it is kept, shortened: some providers return a whole page. Whatever was thrown, this does not throw, as the failure
 * counts.
 */
export function messageOf(thrown: unknown): string {
  try {
    return String(thrown instanceof Error ? thrown.message : thrown).slice(0, 2_000)
  } catch {
    return 'something that has no text was thrown'
  }
}

/** Asked before anything is recorded: a step that is done and has no result would end every later attempt with an error. */
export function storable(
  key: Key,
  codec: Codec | undefined,
  name: string,
  value: unknown,
): { readonly bytes: Uint8Array; readonly outcome: Outcome } {
  const encoded = encodeOutcome({ kind: 'value', value }, codec)
  if (encoded.outcome.kind !== 'not-stored') return encoded
  throw new OnceError('OUTCOME_NOT_STORED', {
    executed: 'unknown',
    message:
      `The result of step "${name}" of ${describeKey(key)} cannot be stored: ${encoded.outcome.reason}. It is not ` +
      `recorded as done. Return a JSON value, bytes or nothing from it; of a database's result, the rows.`,
  })
}

/** Step names have no control characters and are never empty: this is no step's name. */
const courseName = ''

export interface Written<T> {
  readonly content: T
  readonly revision: number
  readonly atMs: number
}

export interface Records {
  readonly course: Written<Course> | undefined
  /** In the order in which they began. */
  readonly steps: readonly Written<StepRecord>[]
}

export function readRecords(key: Key, ledger: Ledger | undefined, codec?: Codec): Records {
  const records = ledger?.records ?? []
  const course = records.find((record) => record.name === courseName)
  const steps = records.filter((record) => record.name !== courseName)
  return {
    course: course && read(key, course, (head) => unsealed(checkedCourse(head), codec)),
    steps: steps
      .map((record) => read(key, record, (head, result) => unsealed(checkedStep(head, record.name, result), codec)))
      .sort((a, b) => a.content.order - b.content.order),
  }
}

export function courseRecord(course: Course, codec: Codec | undefined): Omit<LedgerRecord, 'revision'> {
  return { name: courseName, content: lineOf(sealed(course, codec)) }
}

export function stepRecord(
  { name, result, ...head }: StepRecord,
  codec: Codec | undefined,
): Omit<LedgerRecord, 'revision'> {
  const line = lineOf(sealed(head, codec))
  return { name, content: result ? Buffer.concat([line, result]) : line }
}

const lineOf = (head: object): Buffer => Buffer.from(`${JSON.stringify(head)}\n`)

/** What of a record an error said, and so is the user's. With a codec it is stored as the codec writes it, in `sealed`. */
interface Said {
  readonly error?: string
  readonly lastError?: string
  readonly parked?: string
  readonly ending?: Ending
}

function sealed<Head extends Said & { readonly sealed?: string }>(head: Head, codec: Codec | undefined): Head {
  const { error, lastError, parked, ending } = head
  // What a tool without the codec has read is written back as it was.
  if (!codec || codec === opaqueCodec || (error ?? lastError ?? parked ?? ending) === undefined) return head
  const said: Said = {
    ...(error !== undefined && { error }),
    ...(lastError !== undefined && { lastError }),
    ...(parked !== undefined && { parked }),
    ...(ending && { ending }),
  }
  const words = Object.fromEntries(Object.keys(said).map((name) => [name, sealedWords]))
  const placeholder = { ...words, ...(ending && { ending: { why: ending.why, message: sealedWords } }) }
  return { ...head, ...placeholder, sealed: Buffer.from(codec.encode(said)).toString('base64') }
}

/** A tool that does not have the codec keeps the words that stand in its place. */
function unsealed<Head extends Said & { readonly sealed?: string }>(head: Head, codec: Codec | undefined): Head {
  if (head.sealed === undefined || !codec || codec === opaqueCodec) return head
  const said = objectOf(codec.decode(Buffer.from(head.sealed, 'base64')))
  // What a tool has taken out of the record since (a person resumed it) is not put back.
  const kept = Object.fromEntries(Object.entries(said).filter(([name]) => name in head))
  return { ...head, ...kept, sealed: undefined }
}

function read<T>(key: Key, record: WrittenRecord, parse: (head: unknown, result: Uint8Array) => T): Written<T> {
  const { content, revision, atMs } = record
  try {
    const end = content.indexOf(newline)
    if (end < 0) throw new Error('its first line does not end')
    const head: unknown = JSON.parse(utf8.decode(content.subarray(0, end)))
    return { content: parse(head, content.subarray(end + 1)), revision, atMs }
  } catch (cause) {
    throw new OnceError('OUTCOME_UNREADABLE', {
      executed: 'unknown',
      message:
        `What is recorded of ${describeKey(key)}${record.name === courseName ? '' : `, step "${record.name}",`} cannot be read: ` +
        `${cause instanceof Error ? cause.message : String(cause)}. Nothing was run. Restore the record, or forget the key (onceonly keys forget).`,
      cause,
    })
  }
}

const newline = 10
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

const stepStates: readonly string[] = ['began', 'done', 'failed', 'undoing', 'undone', 'stuck', 'absent']

function checkedStep(head: unknown, name: string, result: Uint8Array): StepRecord {
  const { state, attempt, order } = objectOf(head)
  if (!stepStates.includes(state as string)) throw new Error(`it has the state ${JSON.stringify(state)}`)
  if (!Number.isSafeInteger(attempt) || !Number.isSafeInteger(order)) throw new Error('it has no attempt or order')
  return { ...(head as StepRecord), name, ...(result.length > 0 && { result }) }
}

function checkedCourse(head: unknown): Course {
  const { version, direction, failures } = objectOf(head)
  if (!Number.isSafeInteger(version) || !Number.isSafeInteger(failures))
    throw new Error('it has no version or failures')
  if (direction !== 'forward' && direction !== 'backward') throw new Error('it has no direction')
  return head as Course
}

function objectOf(value: unknown): Record<string, unknown> {
  if (typeof value !== 'object' || value === null) throw new Error('it is not an object')
  return value as Record<string, unknown>
}
