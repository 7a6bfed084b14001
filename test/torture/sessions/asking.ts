// How a request of a session is asked under torture: the effect, the journal and the answers are those of keys. Every transaction of
// PostgreSQL and MariaDB and every script of Redis is a point at which the process can kill or stop itself.
import { databaseOf, offerDatabase } from '../../../src/clients/sql-database.ts'
import type { SqlDatabase } from '../../../src/clients/sql-database.ts'
import { offerRedis, redisOf } from '../../../src/clients/redis.ts'
import type { Store } from '../../../src/core/store.ts'
import { createSessions } from '../../../src/sessions/sessions.ts'
import type { ClientSession, Sessions } from '../../../src/sessions/sessions.ts'
import { answerOf, type Ask, leaseMs, scope, waitMs, work } from '../asking.ts'
import type { Journal, ToldAnswer } from '../journal.ts'
import { type OpenedStore, openStore, type Place } from '../place.ts'
import { type Fate, type Pass, passThrough } from '../points.ts'

export const tortured = ['postgres', 'mysql', 'redis'] as const

/** One request. It is known by `nameOf` in journals and ledgers, which is also the id of its key. */
export interface Numbered extends ClientSession {
  readonly sequence: number
  readonly acknowledged?: number
  readonly asked?: Ask
  readonly phase: 'first' | 'last'
}

export const nameOf = ({ session, epoch, sequence }: Numbered): string => `${session}/${epoch}/${sequence}`

export interface SessionAsker {
  readonly opened: OpenedStore
  readonly sessions: Sessions
  ask(request: Numbered): Promise<ToldAnswer>
  /** From now on points are counted, and the process meets its fate. */
  arm(): void
  close(): Promise<void>
}

export interface SessionAskerOptions {
  readonly place: Place
  readonly journal: Journal
  readonly fate?: Fate
}

export async function openSessions({ place, journal, fate = {} }: SessionAskerOptions): Promise<SessionAsker> {
  const opened = await openStore(place)
  let armed: Pass | undefined
  const pass: Pass = (call, token, sent, send) => (armed ? armed(call, token, sent, send) : send())
  const store = watchedPlace(opened.store, pass)
  // The window is not what is tortured here: the simulation and the model fill it.
  const sessions = createSessions({ store, scope, window: 10_000, attemptLeaseMs: leaseMs, waitMs }) as Sessions
  let calls = 0
  return {
    opened,
    sessions,
    async ask(request) {
      const { session, epoch, sequence, acknowledged = 0, asked = 'value', phase } = request
      const call = `${journal.process}/${++calls}`
      const key = { scope, id: nameOf(request) }
      journal.write({ is: 'call', call, key, asked, how: 'run', phase, waitMs })
      const sent = { session, epoch, sequence, acknowledged, fingerprint: asked }
      const effect = (tx: unknown, op: Parameters<typeof work>[0]['op']): ReturnType<typeof work> =>
        work({ journal, pass, call, op, ask: asked, tx })
      const answer = await answerOf(() => sessions.apply(sent, effect))
      journal.write({ is: 'answer', call, answer })
      return answer
    },
    arm: () => void (armed = passThrough(journal, fate)),
    close: () => opened.close(),
  }
}

/** The store as sessions know it, which is by the place behind it. */
function watchedPlace(store: Store, pass: Pass): Store {
  const [database, redis] = [databaseOf(store), redisOf(store)]
  if (database) return offerDatabase({ ...store }, watchedDatabase(database, pass))
  return offerRedis(
    { ...store },
    {
      ...redis!,
      run: (call) => pass('run', '', undefined, () => redis!.run(call)),
    },
  )
}

function watchedDatabase(database: SqlDatabase, pass: Pass): SqlDatabase {
  return {
    ...database,
    async begin(key) {
      const open = await pass('begin', '', undefined, () => database.begin(key))
      return {
        ...open,
        query: (statement) => open.query(statement),
        commit: () => pass('commit', '', undefined, () => open.commit()),
        rollback: () => open.rollback(),
        abandon: () => open.abandon(),
      }
    },
  }
}
