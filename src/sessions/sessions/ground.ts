// What sessions stand on: a SQL database whose transaction holds the effect and its answer (sql.ts), or a place where an attempt holds
// its number by lease and settles it by token and fence, as a key does (memory.ts, redis.ts).

import type { Store, Transactional } from '../../core/store.ts'
import type { NumberedRequest, AskedSession, SessionLimits, SessionState } from './rules.ts'

export interface SessionSettings extends SessionLimits {
  /** Of the sessions: 'shop/sessions'. */
  readonly scope: string
  /** How long a session lives without a call. */
  readonly leaseMs: number
  /** How long its tombstone stays after that. */
  readonly tombstoneMs: number
}

/** A session as people see it. Times are the store's clock, in milliseconds since 1970. */
export interface ShownSession {
  readonly session: string
  readonly epoch: number
  readonly state: 'open' | 'closed' | 'expired'
  /** The client has acknowledged everything up to here. */
  readonly floor: number
  /** The greatest sequence number that was let in. */
  readonly last: number
  /** Stored requests above the floor, answered or not. At most the window. */
  readonly requests: number
  /** Its lease ends then, or ended. */
  readonly leaseUntilMs: number
  /** How many requests it may have above the floor, as the server said that last let it in. */
  readonly window: number
}

/** One session, with the numbers above its floor. Of an expired one they are there until a sweep removes them. */
export interface SessionInFull extends ShownSession {
  /** Their effects took place, and the client has not acknowledged the answers. */
  readonly answered: readonly number[]
  /** They were let in. Their effects run now, or failed and come again. */
  readonly unanswered: readonly number[]
}

/** A session among those of every service. */
export interface ScopedSession extends ShownSession {
  /** That of `createSessions`, and `/sessions`. */
  readonly scope: string
}

export interface SessionName {
  readonly scope: string
  readonly session: string
}

export interface ScopedFilter {
  readonly scope?: string
  /** Only clients whose ids begin like this. */
  readonly begins?: string
  /** Sessions come in the order of scope and id. This one and all before it are passed over. */
  readonly after?: SessionName
  /** 100 unless given. */
  readonly limit?: number
}

export interface SessionFilter {
  /** Sessions come in the order of their ids. This one and all before it are passed over. */
  readonly after?: string
  /** 100 unless given. */
  readonly limit?: number
}

export interface SessionGround {
  readonly guarantee: 'one-transaction' | 'claim-and-settle'
  /** The statements that create its tables. None where there are no tables. */
  readonly schema: readonly string[]
  migrate(): Promise<void>
  register(client: string): Promise<{ readonly epoch: number }>
  /** Throws what refuses the session. */
  keepAlive(asked: AskedSession): Promise<void>
  close(asked: AskedSession): Promise<void>
  show(client: string): Promise<SessionInFull | undefined>
  /** Removes the requests of ended sessions, and tombstones whose time has passed. Returns how many sessions it changed. */
  sweep(limit: number): Promise<number>
  /** The store of one request: its claim follows the rules of the session. */
  storeFor(asked: NumberedRequest): Store | (Store & Transactional<unknown>)
}

export function shownState(
  session: Pick<SessionState, 'isClosed' | 'leaseUntilMs'>,
  nowMs: number,
): ShownSession['state'] {
  if (session.isClosed) return 'closed'
  return nowMs >= session.leaseUntilMs ? 'expired' : 'open'
}

/** What of them comes next, where nothing but this decides. */
export function isWanted({ scope, begins = '', after }: ScopedFilter, name: SessionName): boolean {
  if (scope !== undefined && name.scope !== scope) return false
  return name.session.startsWith(begins) && (!after || inOrder(name, after) > 0)
}

export function inOrder(one: SessionName, other: SessionName): number {
  return compared(one.scope, other.scope) || compared(one.session, other.session)
}

const compared = (one: string, other: string): number => (one < other ? -1 : one > other ? 1 : 0)
