// Sessions on a SQL database: effect and answer commit together. A request takes two transactions. The first one locks the session for a
// moment, decides by the rules, and writes the row of the request. The second one locks that row, runs the effect and writes the answer
// into it. So requests of one session run side by side, and a process that dies leaves a row that the next attempt finds free: the
// transaction is the lease. The last thing before COMMIT is a look at the epoch, with a lock that a registration waits for.

import { orMissingTable } from '../../clients/missing-tables.ts'
import type { SqlDatabase, SqlSession, SqlTransaction } from '../../clients/sql-database.ts'
import { backoffMs, countedBackoffs, pausesMs } from '../../core/backoff.ts'
import { sleep } from '../../core/clock.ts'
import type { Clock, Random } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Began, ClaimRequest, Store, Transactional, Verdict } from '../../core/store.ts'
import type { ScopedFilter, ScopedSession, SessionGround, SessionSettings } from './ground.ts'
import { afterRegistration, afterRequest, refusedBySession, requestRefusal, sessionRefusal } from './rules.ts'
import type { NumberedRequest, AskedSession } from './rules.ts'
import { sessionSchema } from './sql/schema.sql.ts'
import { rowsOn } from './sql/rows.ts'
import type { FoundSession, SessionRows } from './sql/rows.ts'
import { showInFull, shownSessions } from './sql/shown.ts'

interface SqlContext {
  readonly database: SqlDatabase
  readonly rows: SessionRows
  readonly settings: SessionSettings
  readonly clock: Clock
  readonly random: Random
}

export function sessionsOnSql(
  database: SqlDatabase,
  settings: SessionSettings,
  { clock, random }: { readonly clock: Clock; readonly random: Random },
): SessionGround {
  const rows = rowsOn(database, settings)
  const context: SqlContext = { database, rows, settings, clock, random }
  const { scope, leaseMs } = settings
  const schema = sessionSchema(database)
  return {
    guarantee: 'one-transaction',
    schema,
    migrate: () => database.migrate(schema),
    register: (client) =>
      shortly(context, { scope, id: client }, async (session) => {
        let found = await rows.lock(session, client)
        if (!found) {
          await rows.make(session, client)
          found = (await rows.lock(session, client))!
        }
        const { epoch, ...rest } = afterRegistration(found, { ...settings, nowMs: found.nowMs })
        await rows.write(session, client, { epoch, ...rest })
        await rows.clean(session, client, { epoch, floor: 0 })
        return { epoch }
      }),
    keepAlive: (asked) =>
      shortly(context, { scope, id: asked.client }, async (session) => {
        const found = await lockSession(context, session, asked)
        await rows.write(session, asked.client, { ...found, leaseUntilMs: found.nowMs + leaseMs })
      }),
    close: (asked) =>
      shortly(context, { scope, id: asked.client }, async (session) => {
        const found = await lockSession(context, session, asked)
        await rows.write(session, asked.client, { ...found, isClosed: true, leaseUntilMs: found.nowMs })
        await rows.clean(session, asked.client, { epoch: found.epoch, floor: Number.MAX_SAFE_INTEGER })
      }),
    show: (client) => curing(showInFull(database, { scope, session: client })),
    sweep: (limit) => sweep(context, limit),
    storeFor: (asked) => storeOf(context, asked),
  }
}

/** The sessions of all services. */
export async function listOnSql(database: SqlDatabase, filter: ScopedFilter): Promise<readonly ScopedSession[]> {
  return curing(shownSessions(database, filter))
}

const curing = <T>(asked: Promise<T>): Promise<T> =>
  asked.catch((error: unknown) => Promise.reject(orMissingTable(error, 'sessions') as Error))

async function sweep(context: SqlContext, limit: number): Promise<number> {
  const { rows, settings } = context
  const ended = await curing(rows.ended(limit))
  for (const client of ended) {
    await shortly(context, { scope: settings.scope, id: client }, async (session) => {
      const found = await rows.lock(session, client)
      // It may have registered again since.
      if (!found || found.nowMs < found.leaseUntilMs) return
      await rows.clean(session, client, { epoch: found.epoch, floor: Number.MAX_SAFE_INTEGER })
      await rows.forget(session, client)
    })
  }
  return ended.length
}

/** A transaction without an effect: one that loses against others is tried again. */
async function shortly<T>(context: SqlContext, key: Key, work: (session: SqlSession) => Promise<T>): Promise<T> {
  const { database, clock, random } = context
  const { statement: backoff } = countedBackoffs
  for (let tries = 0; ; tries++) {
    const open = await database.begin(key)
    try {
      const result = await work(open)
      await open.commit()
      return result
    } catch (error) {
      await open.rollback()
      if (!isConflict(context, error) || tries + 1 >= backoff.triesMax) throw orMissingTable(error, 'sessions')
      await sleep(clock, backoffMs(backoff, tries, random))
    }
  }
}

function isConflict({ database }: SqlContext, error: unknown): boolean {
  return database.isConflict(error) || (error instanceof OnceError && error.code === 'TRANSACTION_CONFLICT')
}

async function lockSession(
  { rows, settings }: SqlContext,
  session: SqlSession,
  asked: AskedSession,
): Promise<FoundSession> {
  const found = await rows.lock(session, asked.client)
  const refusal = sessionRefusal(found, asked, found?.nowMs ?? 0)
  if (refusal) throw refusedBySession(refusal, asked, settings)
  return found!
}

function storeOf(context: SqlContext, asked: NumberedRequest): Store & Transactional<unknown> {
  const unused = async (): Promise<never> => {
    throw new Error('Bug! A request of a session was to hold its number outside of a transaction.')
  }
  return {
    name: context.database.dialect,
    claim: unused,
    extend: unused,
    settle: unused,
    release: unused,
    within: () => ({ claim: unused, settle: unused, undoEffect: unused, undoClaim: unused }),
    isConflict: (error) => isConflict(context, error),
    begin: (key, request) => begin({ ...context, asked, key }, request),
  }
}

interface RequestContext extends SqlContext {
  readonly asked: NumberedRequest
  readonly key: Key
}

async function begin(context: RequestContext, request: ClaimRequest): Promise<Began<unknown>> {
  const { database, rows, asked, key } = context
  const admitted = await shortly(context, key, (session) => admit(context, session, request))
  if ('is' in admitted) return { verdict: admitted }
  const open = await database.begin(key)
  try {
    const free = await rows.take(open, asked)
    if (free?.outcome === null) {
      const claim = { key, token: request.token, attempt: 1, fence: admitted.fence }
      return { verdict: { is: 'granted', how: 'fresh', claim }, granted: granted(context, open) }
    }
    await open.rollback()
    // Another transaction has the row, or the client has acknowledged it meanwhile: then the next look says so.
    return { verdict: free ? replay(free.outcome!) : { is: 'busy', retryAfterMs: pausesMs.heldKey } }
  } catch (error) {
    await open.rollback()
    throw error
  }
}

const replay = (outcome: string): Verdict => ({
  is: 'settled',
  outcome: new Uint8Array(Buffer.from(outcome, 'base64')),
  version: 0,
  attempt: 1,
})

/** The rules, and what a request that is not refused writes: the session is renewed, answers are let go, and its row is there. */
async function admit(
  context: RequestContext,
  session: SqlSession,
  { fingerprint }: ClaimRequest,
): Promise<Verdict | { readonly fence: number }> {
  const { rows, settings, asked } = context
  const { client, sequence } = asked
  const found = await lockSession(context, session, asked)
  const known = await rows.find(session, asked)
  const refusal = requestRefusal(found, known, { ...asked, fingerprint }, settings)
  if (refusal) throw refusedBySession(refusal, asked, settings)
  const next = afterRequest(found, asked, { ...settings, nowMs: found.nowMs })
  await rows.write(session, client, next)
  if (next.floor > found.floor) await rows.clean(session, client, next)
  if (typeof known?.outcome === 'string') return replay(known.outcome)
  if (!known) await rows.add(session, { client, epoch: next.epoch, sequence, fingerprint })
  return { fence: next.fence }
}

type Granted = NonNullable<Began<unknown>['granted']>

function granted(context: RequestContext, first: SqlTransaction<unknown>): Granted {
  const { database, rows, asked, key } = context
  let open = first
  return {
    tx: first.tx,
    async commit(outcome) {
      try {
        const session = await rows.share(open, asked.client)
        if (!session || session.epoch !== asked.epoch || session.isClosed) throw await fenced(context, open, session)
        // The client has let go of an answer that it did not wait for.
        if (session.floor >= asked.sequence) await rows.remove(open, asked)
        else await rows.answer(open, asked, Buffer.from(outcome).toString('base64'))
      } catch (error) {
        await open.rollback()
        if (error instanceof OnceError || database.isConflict(error)) throw error
        throw notWritten(key, error)
      }
      await open.commit()
      return 'done'
    },
    // The refusal is written by a transaction of its own. If another attempt comes between, all of it is decided anew.
    async undoEffect() {
      await open.rollback()
      open = await database.begin(key)
      if ((await rows.take(open, asked))?.outcome === null) return
      await open.rollback()
      throw new OnceError('TRANSACTION_CONFLICT', {
        message: `Another attempt of ${describeKey(key)} ran while the refusal of this one was to be stored. Retry with the same number.`,
      })
    },
    rollback: () => open.rollback(),
    abandon: () => open.abandon(),
  }
}

/** The client registered again, or closed its session, while the effect ran. Nothing of it is kept. */
async function fenced(
  { database, rows, asked, settings }: RequestContext,
  open: SqlTransaction<unknown>,
  session: FoundSession | undefined,
): Promise<OnceError> {
  await open.rollback()
  await rows.remove(database, asked).catch(() => {}) // a sweep removes it otherwise
  const isNewer = session !== undefined && session.epoch !== asked.epoch
  return refusedBySession(isNewer ? { code: 'FENCED', session } : { code: 'SESSION_EXPIRED' }, asked, settings, 'no')
}

function notWritten(key: Key, cause: unknown): OnceError {
  return new OnceError('STORE_UNAVAILABLE', {
    message:
      `The answer of ${describeKey(key)} could not be written: ${cause instanceof Error ? cause.message : String(cause)}. ` +
      'The effect was rolled back with it. Retry with the same number.',
    cause,
  })
}
