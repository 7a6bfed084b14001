// The inbox on a SQL database: mark and effect commit together, so each message has exactly one effect. A batch is one statement that
// finds the fresh ones and one transaction that holds them all. When that fails because of one of them, it is split in halves until
// the one is found. A message that was tried before runs alone, so that one which ends the process takes no other along.

import { backoffMs, backoffs, countedBackoffs, pausesMs } from '../../core/backoff.ts'
import { sleep } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import type { SqlDatabase, SqlTransaction } from '../../clients/sql-database.ts'
import type { Handled, InboxGround, InboxSettings, Run } from './ground.ts'
import { deadlineOf, HandlerError, refused } from './ground.ts'
import { keyOfMark, marksOn } from './marks.ts'
import type { Marks } from './marks.ts'
import { encodeMessage } from './message.ts'
import type { Read } from './message.ts'
import { parkingOn } from './parked.ts'
import type { ParkedCode, Parking } from './parked.ts'
import { versionsOn } from './versions.ts'
import type { Versions } from './versions.ts'

interface Context<M> {
  readonly database: SqlDatabase
  readonly settings: InboxSettings<M>
  readonly marks: Marks
  readonly versions: Versions
  readonly parking: Parking
}

export function byTransaction<M>(database: SqlDatabase, settings: InboxSettings<M>): InboxGround<M> {
  const context: Context<M> = {
    database,
    settings,
    marks: marksOn(database, settings.scope),
    versions: versionsOn(database, settings.scope),
    parking: parkingOn(database, settings.codec),
  }
  return {
    guarantee: 'one-transaction',
    handle: (messages, run) => handle(context, messages, run),
    mark: (message) => markAlone(context, message),
    run: (messages, run) => runAlone(context, messages, run),
    park: (message, code, detail) => park(context, message, { code, detail, attempts: 0 }),
    sweep: (beforeMs, limit) => context.marks.sweep(beforeMs, limit),
  }
}

/** In their order. What must not overtake another of its key is not begun when that one failed. */
async function handle<M>(context: Context<M>, messages: readonly Read<M>[], run: Run<M>): Promise<readonly Handled[]> {
  const { marks, settings } = context
  const received = await marks.receive(messages)
  const results = new Map<Read<M>, Handled>()
  const held = new Set<string>()
  const note = (message: Read<M>, handled: Handled): void => {
    results.set(message, handled)
    if ((handled.is === 'failed' || handled.is === 'busy') && message.key !== undefined) held.add(message.key)
  }
  const isHeld = ({ key }: Read<M>): boolean => key !== undefined && held.has(key)
  let together: Read<M>[] = []
  const runTogether = async (): Promise<void> => {
    const group = together
    together = []
    await divide(context, group, run, note, isHeld)
  }
  for (const [position, message] of messages.entries()) {
    const found = received[position]!
    if (found.is === 'fresh') {
      together.push(message)
      continue
    }
    await runTogether()
    if (isHeld(message)) note(message, behind())
    else if (found.is === 'busy') note(message, busy())
    else if (found.fingerprint !== message.fingerprint) note(message, await park(context, message, mismatch))
    else if (found.state === 'p') note(message, refused('PARKED', `it was tried ${found.attempts} times`))
    else if (found.state !== 'r') note(message, { is: 'duplicate' })
    else if (found.attempts >= settings.attempts) note(message, await park(context, message, exhausted(found.attempts)))
    else await again(context, message, run, note)
  }
  await runTogether()
  return messages.map((message) => results.get(message)!)
}

const mismatch = {
  code: 'MISMATCH',
  detail: 'another message with the same id and another body came before',
  attempts: 0,
} as const

const exhausted = (attempts: number, detail = 'it never ended: the process died, or lost its database'): Parked => ({
  code: 'ATTEMPTS',
  detail,
  attempts,
})

type Note<M> = (message: Read<M>, handled: Handled) => void

const busy = (): Handled => ({ is: 'busy', retryAfterMs: pausesMs.heldKey })
const behind = busy

async function again<M>(context: Context<M>, message: Read<M>, run: Run<M>, note: Note<M>): Promise<void> {
  const attempts = await context.marks.tryAgain(message.id, context.settings.attempts)
  if (attempts === undefined) return note(message, busy())
  try {
    const done = await inTransaction(context, [message], run)
    note(message, done.get(message)!)
  } catch (error) {
    note(message, await failed(context, message, attempts, error))
  }
}

async function divide<M>(
  context: Context<M>,
  messages: readonly Read<M>[],
  run: Run<M>,
  note: Note<M>,
  isHeld: (message: Read<M>) => boolean,
): Promise<void> {
  const group = messages.filter((message) => !isHeld(message))
  for (const message of messages) if (isHeld(message)) note(message, behind())
  if (group.length === 0) return
  try {
    for (const [message, handled] of await inTransaction(context, group, run)) note(message, handled)
  } catch (error) {
    // A store that is down is down for the halves, too.
    if (!(error instanceof HandlerError)) {
      for (const message of group) note(message, await failed(context, message, 1, error))
      return
    }
    if (group.length === 1) return note(group[0]!, await failed(context, group[0]!, 1, error))
    const half = Math.ceil(group.length / 2)
    await divide(context, group.slice(0, half), run, note, isHeld)
    await divide(context, group.slice(half), run, note, isHeld)
  }
}

async function failed<M>(context: Context<M>, message: Read<M>, attempts: number, thrown: unknown): Promise<Handled> {
  const { settings } = context
  const error = thrown instanceof HandlerError ? thrown.cause : thrown
  if (thrown instanceof HandlerError && attempts >= settings.attempts) {
    return park(context, message, exhausted(attempts, error instanceof Error ? error.message : String(error)))
  }
  return { is: 'failed', error, attempts, retryAfterMs: backoffMs(backoffs.message, attempts - 1, settings.random) }
}

/** Marks and effects of all of them, or nothing. A conflict with other transactions is tried again. */
async function inTransaction<M>(
  context: Context<M>,
  messages: readonly Read<M>[],
  run: Run<M>,
): Promise<ReadonlyMap<Read<M>, Handled>> {
  const { database, settings } = context
  const { transaction: conflictBackoff } = countedBackoffs
  for (let tries = 0; ; tries++) {
    try {
      return await tryTransaction(context, messages, run)
    } catch (thrown) {
      const error = thrown instanceof HandlerError ? thrown.cause : thrown
      const isConflict =
        database.isConflict(error) || (error instanceof OnceError && error.code === 'TRANSACTION_CONFLICT')
      if (!isConflict || tries + 1 >= conflictBackoff.triesMax) throw thrown
      await sleep(settings.clock, backoffMs(conflictBackoff, tries, settings.random))
    }
  }
}

async function tryTransaction<M>(
  { database, settings, marks, versions }: Context<M>,
  messages: readonly Read<M>[],
  run: Run<M>,
): Promise<ReadonlyMap<Read<M>, Handled>> {
  const open = await database.begin(keyOfMark(settings.scope, messages))
  try {
    const ours = await marks.take(open, messages)
    const others = await marks.done(
      open,
      messages.filter(({ id }) => !ours.has(id)),
    )
    const { taken, left } = inOrder(messages, ours, others)
    for (const { id } of left) if (ours.has(id)) await marks.put(open, id, 'r')
    const stale = await versions.stale(open, taken)
    for (const { id } of stale) await marks.put(open, id, 's')
    const current = taken.filter((message) => !stale.has(message))
    if (current.length > 0) {
      const given = current.map(({ message }) => message)
      await bounded(settings, open, () => run(open.tx, given))
    }
    await open.commit()
    const became = (message: Read<M>): Handled => {
      if (left.has(message)) return busy()
      if (stale.has(message)) return staleHandled(message)
      return ours.has(message.id) ? { is: 'handled' } : { is: 'duplicate' }
    }
    return new Map(messages.map((message) => [message, became(message)]))
  } catch (error) {
    if (!(error instanceof HandlerError && error.isHung)) await open.rollback()
    throw error
  }
}

/**
 * What may run now: of each key only what comes before the first message that another process has in its hands. That one is not
 * committed, and what comes after it must not be committed before it.
 */
function inOrder<M>(
  messages: readonly Read<M>[],
  ours: ReadonlySet<string>,
  done: ReadonlySet<string>,
): { readonly taken: readonly Read<M>[]; readonly left: ReadonlySet<Read<M>> } {
  const held = new Set<string>()
  const left = new Set<Read<M>>()
  for (const message of messages) {
    const { id, key } = message
    const isHeld = key !== undefined && held.has(key)
    if (done.has(id) || (ours.has(id) && !isHeld)) continue
    left.add(message)
    if (key !== undefined) held.add(key)
  }
  return { taken: messages.filter((message) => ours.has(message.id) && !left.has(message)), left }
}

function staleHandled({ version }: Read<unknown>): Handled {
  return refused('STALE', `version ${version!.version} of ${version!.entity} is not newer than the one that is applied`)
}

/** What the handler throws is told from what the store throws. A handler that outlives its deadline writes nothing more. */
async function bounded(
  settings: InboxSettings<never>,
  open: SqlTransaction<unknown>,
  run: () => unknown,
): Promise<void> {
  try {
    await deadlineOf(settings, run)
  } catch (error) {
    const failure = error instanceof HandlerError ? error : new HandlerError(error)
    if (failure.isHung) await open.abandon()
    throw failure
  }
}

async function markAlone<M>(context: Context<M>, message: Read<M>): Promise<Handled> {
  const { database, marks, settings } = context
  const [found] = await marks.receive([message])
  if (found!.is === 'known' && found!.fingerprint !== message.fingerprint) return park(context, message, mismatch)
  if (found!.is === 'busy') return busy()
  const open = await database.begin(keyOfMark(settings.scope, [message]))
  try {
    const ours = await marks.take(open, [message])
    await open.commit()
    return ours.has(message.id) ? { is: 'handled' } : { is: 'duplicate' }
  } catch (error) {
    await open.rollback()
    throw error
  }
}

async function runAlone<M>(
  { database, settings }: Context<M>,
  messages: readonly Read<M>[],
  run: Run<M>,
): Promise<void> {
  const open = await database.begin(keyOfMark(settings.scope, messages))
  try {
    await bounded(settings, open, () =>
      run(
        open.tx,
        messages.map(({ message }) => message),
      ),
    )
    await open.commit()
  } catch (error) {
    if (!(error instanceof HandlerError && error.isHung)) await open.rollback()
    throw error
  }
}

interface Parked {
  readonly code: ParkedCode
  readonly detail: string
  readonly attempts: number
}

/**
 * The dead-letter function first: a crash in between calls it again, and parks it then. A message whose last attempt is under way
 * elsewhere is neither told of nor parked: it may still succeed.
 */
async function park<M>(context: Context<M>, message: Read<M>, { code, detail, attempts }: Parked): Promise<Handled> {
  const { database, marks, parking, settings } = context
  const { scope } = settings
  const { id, fingerprint } = message
  if (code === 'MISMATCH' && (await marks.isRedriven(message))) return { is: 'duplicate' }
  if (settings.deadLetter) {
    if (code === 'ATTEMPTS' && !(await isFree(context, message))) return busy()
    await settings.deadLetter(message.message, { code, detail })
  }
  const open = await database.begin({ scope, id })
  try {
    if (code === 'ATTEMPTS') {
      if (!(await marks.take(open, [message])).has(id)) {
        await open.rollback()
        return busy()
      }
      await marks.put(open, id, 'p')
    }
    await parking.park(open, {
      scope,
      id,
      fingerprint,
      code,
      detail,
      attempts,
      message: encodeMessage(message.message),
    })
    await open.commit()
  } catch (error) {
    await open.rollback()
    throw error
  }
  return refused(code === 'ATTEMPTS' ? 'PARKED' : code, detail)
}

/** Nobody has it in hand, and it is not done. A transaction, as a reader of SQLite does not see what the one writer is about. */
async function isFree<M>({ database, marks, settings }: Context<M>, message: Read<M>): Promise<boolean> {
  const open = await database.begin(keyOfMark(settings.scope, [message]))
  try {
    return (await marks.take(open, [message])).has(message.id)
  } finally {
    await open.rollback()
  }
}
