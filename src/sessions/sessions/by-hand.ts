// What a person can do with the sessions of a store, whichever service they belong to: look at them, and close one. The settings of the
// service are not known here, and nothing here needs them.

import { systemClock, systemRandom } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { checkKey, key } from '../../core/key.ts'
import { checkRecordedReason, onRecord } from '../../core/once.ts'
import { aString, checkGiven, optional, positiveInteger } from '../../core/options.ts'
import type { Inspectable, Store } from '../../core/store.ts'
import type { ScopedFilter, ScopedSession, SessionGround, SessionInFull, SessionName } from './ground.ts'
import { groundOf, listedOn } from './grounds.ts'

/** A session with the numbers above its floor, and the scope it is in. */
export type ScopedSessionInFull = SessionInFull & Pick<ScopedSession, 'scope'>

export interface ClosedByHand {
  /** False when it was not open, or when its client had registered again: nothing was changed. */
  readonly changed: boolean
  /** As it is now. */
  readonly session: ScopedSessionInFull
}

export interface SessionsByHand {
  /** Creates the tables of sessions. Does nothing on a store without SQL. */
  migrate(): Promise<void>
  /** The sessions of all services, in the order of scope and client. */
  list(filter?: ScopedFilter): Promise<readonly ScopedSession[]>
  show(name: SessionName): Promise<ScopedSessionInFull | undefined>
  /**
   * Ends a session: its client gets SESSION_EXPIRED, and what is in flight is not committed where the database can. Of this epoch, if one is
   * given, else of the current one. Undefined when there is no such session. Audited.
   */
  close(name: SessionName & { readonly epoch?: number }, reason: string): Promise<ClosedByHand | undefined>
}

// The defaults of createSessions. Closing needs only the last one: for how long an ended session is still shown.
const dayMs = 86_400_000
const settings = { leaseMs: dayMs, window: 64, strict: false, tombstoneMs: 7 * dayMs } as const

const filterRules = {
  scope: optional(aString),
  begins: optional(aString),
  after: () => undefined, // checked as a key
  limit: optional(positiveInteger),
}

export function sessionsOf(store: Store & Partial<Inspectable>): SessionsByHand {
  const groundAt = (scope: string): SessionGround =>
    groundOf(store, { ...settings, scope }, { clock: systemClock, random: systemRandom })
  const show = async ({ scope, session }: SessionName): Promise<ScopedSessionInFull | undefined> => {
    const name = checkKey({ scope, id: session })
    const found = await groundAt(name.scope).show(name.id)
    return found && { scope, ...found }
  }
  return {
    migrate: async () => groundAt('any').migrate(),
    async list(filter = {}) {
      checkGiven('sessions.list', filter, filterRules)
      const { scope = 'any', begins = 'any', after } = filter
      key(scope, begins)
      if (after) key(after.scope, after.session)
      return listedOn(store, filter)
    },
    show,
    async close({ scope, session, epoch }, reason) {
      checkRecordedReason('sessions.close', reason)
      const found = await show({ scope, session })
      if (!found) return undefined
      const isMeant = found.state === 'open' && (epoch === undefined || epoch === found.epoch)
      const changed =
        isMeant &&
        (await onRecord(store, { scope, id: session }, { what: 'close', reason }, () =>
          closeOpen(groundAt(scope), { client: session, epoch: found.epoch }),
        ))
      return { changed, session: (await show({ scope, session })) ?? found }
    },
  }
}

/** False when it ended, or its client registered again, in the moment before. */
async function closeOpen(ground: SessionGround, asked: Parameters<SessionGround['close']>[0]): Promise<boolean> {
  try {
    await ground.close(asked)
    return true
  } catch (error) {
    if (error instanceof OnceError && (error.code === 'FENCED' || error.code === 'SESSION_EXPIRED')) return false
    throw error
  }
}
