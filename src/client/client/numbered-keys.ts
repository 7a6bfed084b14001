// Keys for a client whose keys are the numbers of a session: opening a record gives it the next number, as soon as the window has room, and
// in the order of the calls. What lies in the key store, and why no number is used twice, is in number-records.ts.

import { follow, idAt, sleep } from '../../core/clock.ts'
import type { Clock } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import type { ErrorCode, Executed } from '../../core/errors.ts'
import type { KeyStore, PendingRecord } from '../pending.ts'
import {
  epochOf,
  hasNumbers,
  keyOfNumber,
  forClient,
  noRecords,
  onRecord,
  operationOf,
  openSession,
  over,
  readNumbers,
  removeMarks,
  sequenceOf,
  takeNumbers,
} from './number-records.ts'
import type { NumberRecords, ServerSession } from './number-records.ts'
import { unaborted } from './request.ts'
import type { ClientSettings } from './settings.ts'

/** The numbers that one client has, and what it knows of its session. */
export interface Numbers {
  readonly client: string
  /** Where the records lie. */
  readonly keys: KeyStore
  readonly clock: Clock
  readonly waitMs: number
  readonly token: string
  taking: Promise<void> | undefined
  /** Another client has taken the numbers. */
  isTaken: boolean
  known: NumberRecords
  ended: { readonly epoch: number; readonly code: ErrorCode } | undefined
  /** Resolves when the window may have room. */
  changed: PromiseWithResolvers<void>
  /** The end of what is being done in order. */
  turn: Promise<unknown>
  waiting: number
}

// More calls than this are not waiting for a slow moment, and each holds its body in memory.
const waitingMax = 1_000

export function createNumbers(client: string, { keys, clock, random, retry }: ClientSettings): Numbers {
  return {
    client,
    keys,
    clock,
    waitMs: retry.totalMs,
    token: idAt(clock, random),
    taking: undefined,
    isTaken: false,
    known: noRecords(),
    ended: undefined,
    changed: Promise.withResolvers(),
    turn: Promise.resolve(),
    waiting: 0,
  }
}

/** Has the numbers from now on, unless another client takes them. Lost ones are taken back `again` only. */
export async function take(numbers: Numbers, again?: 'again'): Promise<void> {
  if (again && numbers.isTaken) numbers.taking = undefined
  numbers.taking ??= load(numbers)
  try {
    await numbers.taking
  } catch (error) {
    numbers.taking = undefined
    throw error
  }
}

async function load(numbers: Numbers): Promise<void> {
  const { client, keys, token, clock } = numbers
  await takeNumbers(client, keys, token)
  const known = await readNumbers(client, keys)
  // The greatest number is unsent if its client died, or lost the numbers, before it was sent. It is used for that request from now on.
  for (const record of known.open.values())
    if (record.sentAtMs === undefined) await keys.save({ ...record, sentAtMs: clock.now() })
  Object.assign(numbers, { known, isTaken: false })
  await removeMarks(known, keys)
}

/** The session that requests are sent under. Throws when there is none. */
export function liveSession(numbers: Numbers): ServerSession {
  if (numbers.isTaken) throw takenAway(numbers, 'no')
  const { session } = numbers.known
  if (!session) {
    throw refusal(
      numbers,
      'SESSION_EXPIRED',
      'there is no session on record. Nothing was sent. client.register() begins one.',
    )
  }
  const code = endOf(numbers, session.epoch)
  if (!code) return session
  const why = `the session has ended (epoch ${session.epoch}: ${code}). Nothing was sent.`
  const next = 'Find out what became of what client.pending() lists, then client.register().'
  throw refusal(numbers, code === 'FENCED' ? code : 'SESSION_EXPIRED', `${why} ${next}`)
}

/** Why nothing is sent in the session of this epoch. Undefined if it is. */
export function endOf({ known, ended }: Pick<Numbers, 'known' | 'ended'>, epoch: number): ErrorCode | undefined {
  if (!known.session) return 'SESSION_EXPIRED'
  if (known.session.epoch !== epoch) return 'FENCED'
  return ended?.epoch === epoch ? ended.code : undefined
}

/** Nothing more is sent in the session of this epoch. */
export function endSession(numbers: Numbers, epoch: number, code: ErrorCode): void {
  if (!endOf(numbers, epoch)) numbers.ended = { epoch, code }
  wake(numbers)
}

/** Puts a new session on record. What is not settled belongs to the old one for good. */
export async function beginSession(numbers: Numbers, session: ServerSession): Promise<void> {
  const { client, keys, known } = numbers
  const { epoch } = session
  const before = known.session?.epoch ?? 0
  if (epoch <= before) {
    const why = `the server gave epoch ${epoch} after ${before}, so it has lost what it knew.`
    throw refusal(numbers, 'SESSION_EXPIRED', `${why} Nothing was sent. Find out, then client.register().`)
  }
  known.marks.add(await openSession(client, keys, session))
  Object.assign(known, { session, last: 0, sure: 0 })
  await removeMarks(known, keys)
  wake(numbers)
}

/** The session has ended at the server: its numbers are not needed any more. */
export async function leaveSession(numbers: Numbers): Promise<void> {
  numbers.known.session = undefined
  await removeMarks(numbers.known, numbers.keys)
  wake(numbers)
}

/** The numbers up to this one are settled. */
export function acknowledged({ known }: Numbers): number {
  const open = [...known.open.keys()].filter((key) => epochOf(key) === known.session?.epoch)
  return Math.min(known.last + 1, ...open.map(sequenceOf)) - 1
}

/** One after the other, in the order of the calls. */
export function inOrder<T>(numbers: Numbers, work: () => Promise<T>): Promise<T> {
  const mine = numbers.turn.then(work)
  numbers.turn = mine.catch(() => {})
  return mine
}

export function numberedKeys(numbers: Numbers): KeyStore {
  const { client, keys, clock } = numbers
  return {
    async open(record, signal = unaborted()) {
      const startedMs = clock.elapsed()
      const standing = await find(numbers, record.operation)
      if (standing) return standing
      if (numbers.waiting >= waitingMax) {
        const why = `${numbers.waiting} calls are waiting already. Nothing was sent. Call again later.`
        throw refusal(numbers, 'WINDOW_EXCEEDED', why)
      }
      numbers.waiting++
      return inOrder(numbers, () => number(numbers, record, { startedMs, signal })).finally(() => numbers.waiting--)
    },
    get: (operation) => find(numbers, operation),
    async save({ key, sentAtMs, answer }) {
      const record = numbers.known.open.get(key)
      if (record) await keys.save({ ...record, sentAtMs, answer })
    },
    async remove(_, key) {
      const { known } = numbers
      const record = known.open.get(key)
      if (!record) return
      if (epochOf(key) === known.session?.epoch && sequenceOf(key) >= known.sure) {
        await keys.save({ ...record, ...over })
        known.marks.add(record)
      } else await keys.remove(key, record.key)
      known.open.delete(key)
      wake(numbers)
    },
    async list() {
      const found = await readNumbers(client, keys)
      const known = numbers.taking ? numbers.known : found
      const open = [...found.open.values()].filter((record) => known.open.get(record.operation)?.key === record.key)
      return open.map((record) => shown({ known, ended: numbers.ended }, record))
    },
  }
}

/** What an ended session has left is past its window. */
function shown(numbers: Pick<Numbers, 'known' | 'ended'>, record: PendingRecord): PendingRecord {
  const open = forClient(record)
  return endOf(numbers, epochOf(open.key)) ? { ...open, ...over } : open
}

/** The record of an operation that is not settled, as it stands. */
async function find(numbers: Numbers, operation: string): Promise<PendingRecord | undefined> {
  const { known, keys } = numbers
  const isNumbered = (key: string): boolean => epochOf(key) !== known.session?.epoch || sequenceOf(key) <= known.last
  const open = [...known.open.values()].find((each) => operationOf(each) === operation && isNumbered(each.operation))
  if (!open) return undefined
  const standing = await keys.get(open.operation)
  if (standing?.key === open.key && standing.windowMs !== 0) return shown(numbers, standing)
  // Settled by another client: one that had the numbers before, or has them now.
  known.open.delete(open.operation)
  wake(numbers)
  return undefined
}

interface Waiting {
  readonly startedMs: number
  readonly signal: AbortSignal
}

/** Gives the record the next number, unless its operation has one. */
async function number(numbers: Numbers, asked: PendingRecord, waiting: Waiting): Promise<PendingRecord> {
  const { client, keys, token, clock } = numbers
  for (;;) {
    const standing = await find(numbers, asked.operation)
    if (standing) return standing
    const { epoch } = await room(numbers, waiting)
    const { known } = numbers
    const sequence = known.last + 1
    const key = keyOfNumber(client, epoch, sequence)
    const fresh = onRecord(asked, key)
    // Another one has the number if a client before put it on record after this one read them, or if this one failed here. It is pending.
    const kept = await keys.open(fresh)
    known.open.set(key, kept)
    if (!(await hasNumbers(client, keys, token))) {
      numbers.isTaken = true
      wake(numbers)
      throw takenAway(numbers, kept === fresh ? 'unknown' : 'no')
    }
    await keys.save({ ...kept, sentAtMs: clock.now() })
    Object.assign(known, { last: sequence, sure: sequence })
    await removeMarks(known, keys)
    if (kept === fresh) return Object.assign(asked, { key })
  }
}

/** Waits until the window has room for one more number. */
async function room(numbers: Numbers, { startedMs, signal }: Waiting): Promise<ServerSession> {
  const { clock, waitMs } = numbers
  for (;;) {
    signal.throwIfAborted()
    const session = liveSession(numbers)
    const settled = acknowledged(numbers)
    if (numbers.known.last < settled + session.window) return session
    const leftMs = startedMs + waitMs - clock.elapsed()
    if (leftMs <= 0) {
      const why = `the window of ${session.window} had no room for ${waitMs} ms, as ${settled + 1} is not settled. Nothing was sent.`
      throw refusal(
        numbers,
        'WINDOW_EXCEEDED',
        `${why} Settle the answers that were used, and client.resume() the rest.`,
      )
    }
    const { controller, unfollow } = follow(signal)
    await Promise.race([numbers.changed.promise, sleep(clock, leftMs, controller)])
    unfollow()
    controller.abort()
  }
}

function wake(numbers: Numbers): void {
  numbers.changed.resolve()
  numbers.changed = Promise.withResolvers()
}

function takenAway(numbers: Numbers, executed: Executed): OnceError {
  const why = 'another client has taken the numbers in these keys.'
  return refusal(numbers, 'FENCED', `${why} Give every process or tab keys and a client name of its own.`, executed)
}

function refusal({ client }: Numbers, code: ErrorCode, why: string, executed: Executed = 'no'): OnceError {
  return new OnceError(code, { message: `${client}: ${why}`, executed })
}
