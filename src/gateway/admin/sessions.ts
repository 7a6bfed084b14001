// The sessions of clients as the dashboard shows them: a page at a time, one in full, and closing one. Nothing here shows an answer.

import type { Once } from '../../core/once.ts'
import { invalidArgument } from '../../core/errors.ts'
import { sessionsByHand } from '../../sessions/sessions.ts'
import type { ScopedFilter, ScopedSession, ScopedSessionInFull, SessionName } from '../../sessions/sessions.ts'
import { askingOf, checkFilter, pageOf, thereOf } from './asking.ts'
import type { InspectedStore, NothingKept } from './asking.ts'
import { checkReason, pageRows } from './entries.ts'

export interface SessionsPage {
  readonly rows: readonly ScopedSession[]
  readonly more: boolean
}

/** Of the epoch that the person looked at. */
export type SeenSession = SessionName & { readonly epoch: number }

export interface SessionsView {
  page(filter: Omit<ScopedFilter, 'limit'>): Promise<SessionsPage | NothingKept>
  one(name: SessionName): Promise<ScopedSessionInFull | undefined>
  close(seen: SeenSession, reason: string): Promise<void>
}

export function sessionsOf(once: Once, store: InspectedStore): SessionsView {
  const { change, where } = askingOf(once, store, {
    none: `The ${store.name} store keeps no sessions. PostgreSQL, MySQL, SQLite and Redis do.`,
    tables: 'This store has no tables for sessions. onceonly migrate --sessions --store URL creates them.',
  })
  return {
    page: ({ after, ...filter }) => {
      checkFilter({ ...filter, ...after })
      const wanted = { ...filter, ...(after && { after }), limit: pageRows + 1 }
      return where(async () => pageOf(await sessionsByHand(store).list(wanted), (session) => session))
    },
    one: async ({ scope, session }) => {
      checkFilter({ scope, session })
      return thereOf(await where(() => sessionsByHand(store).show({ scope, session })))
    },
    async close({ scope, session, epoch }, reason) {
      checkReason(reason)
      checkFilter({ scope, session })
      const closed = await change(() => sessionsByHand(store).close({ scope, session, epoch }, reason))
      if (!closed) throw invalidArgument('There is no such session: nothing was changed.')
      if (closed.changed) return
      const { state } = closed.session
      throw invalidArgument(
        state === 'open'
          ? 'Its client has registered again since: nothing was changed. Look again.'
          : `It is ${state} already: nothing was changed.`,
      )
    },
  }
}
