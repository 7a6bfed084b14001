// Messages that wait for a person, as the dashboard shows them: what an inbox has parked, how far behind a relay is, and what it could
// not publish. What a message says and why it failed is given out by the two reveals alone, as a service may have put anything into
// them. A store that has no such tables is no failure: the view says so, and nothing is logged.

import { invalidArgument } from '../../core/errors.ts'
import type { Once } from '../../core/once.ts'
import { inboxByHand } from '../../messages/inbox.ts'
import type { ParkedFilter, ParkedMessage } from '../../messages/inbox.ts'
import { outboxByHand } from '../../messages/outbox.ts'
import type { DeadLetter, DeadLetterFilter, RelayStatus } from '../../messages/outbox.ts'
import { shownText } from '../../messages/stored-text.ts'
import { askingOf, checkFilter, pageOf, thereOf } from './asking.ts'
import type { InspectedStore, NothingKept } from './asking.ts'
import { checkReason, cut, pageRows } from './entries.ts'

export interface ParkedRow extends Omit<ParkedMessage, 'message' | 'detail'> {
  readonly bytes: number
}

export interface ParkedPage {
  readonly rows: readonly ParkedRow[]
  readonly more: boolean
}

export type LetterRow = Omit<DeadLetter, 'reason'>

export interface OutboxPage {
  readonly status: RelayStatus
  readonly rows: readonly LetterRow[]
  readonly more: boolean
}

/** One parked message. Several can have the same id, with a body each. */
export type ParkedName = Required<Pick<ParkedFilter, 'scope' | 'id' | 'fingerprint'>>

export interface MessagesView {
  parked(filter: Omit<ParkedFilter, 'limit'>): Promise<ParkedPage | NothingKept>
  /** What the message says, and why its handler failed. */
  revealParked(name: ParkedName): Promise<{ detail: string; text: string; cut: boolean } | undefined>
  redriveParked(name: ParkedName, reason: string): Promise<void>
  discardParked(name: ParkedName, reason: string): Promise<void>
  outbox(filter: Omit<DeadLetterFilter, 'limit' | 'after'>): Promise<OutboxPage | NothingKept>
  /** Why the broker refused it. A parked or a dead row unless `state` is given. */
  revealLetter(filter: Pick<DeadLetterFilter, 'id' | 'state'>): Promise<{ detail: string } | undefined>
  redriveLetter(id: string, reason: string): Promise<void>
  discardLetter(id: string, reason: string): Promise<void>
}

export function messagesOf(once: Once, store: InspectedStore): MessagesView {
  const { change, where } = askingOf(once, store, {
    none: `The ${store.name} store keeps no messages. Inbox and outbox keep them on PostgreSQL, MySQL and SQLite.`,
    tables: 'This store has no tables for messages. onceonly migrate --messages --store URL creates them.',
  })
  const parkedAt = async (name: ParkedName): Promise<ParkedMessage | undefined> => {
    checkFilter(name)
    const [found] = thereOf(await where(() => inboxByHand(store).parked({ ...name, limit: 1 })))
    return found
  }
  const letterAt = async (filter: Pick<DeadLetterFilter, 'id' | 'state'>): Promise<DeadLetter | undefined> => {
    checkFilter({ id: '', ...filter })
    const [found] = thereOf(await where(() => outboxByHand(store).deadLetters({ ...filter, limit: 1 })))
    return found
  }
  return {
    async parked({ after, ...filter }) {
      checkFilter(filter)
      checkFilter(after ?? {})
      const wanted = { ...filter, ...(after && { after }), limit: pageRows + 1 }
      return where(async () => pageOf(await inboxByHand(store).parked(wanted), parkedRow))
    },
    async revealParked(name) {
      const found = await parkedAt(name)
      return found && { detail: shownText(found.detail), ...cut(shownText(found.message)) }
    },
    async redriveParked(name, reason) {
      checkReason(reason)
      const found = await parkedAt(name)
      if (!found) throw invalidArgument('There is no such parked message: nothing was changed.')
      if (found.isRedriven) throw invalidArgument('It is redriven already: its consumer has not run it yet.')
      refuseUnchanged(await change(() => inboxByHand(store).redrive(name, reason)))
    },
    async discardParked(name, reason) {
      checkReason(reason)
      if (!(await parkedAt(name))) throw invalidArgument('There is no such parked message: nothing was changed.')
      refuseUnchanged(await change(() => inboxByHand(store).discard(name, reason)))
    },
    async outbox(filter) {
      checkFilter(filter)
      return where(async () => {
        const status = await outboxByHand(store).status()
        const letters = await outboxByHand(store).deadLetters({ ...filter, limit: pageRows + 1 })
        return { status, ...pageOf(letters, letterRow) }
      })
    },
    async revealLetter(filter) {
      const found = await letterAt(filter)
      return found && { detail: found.reason ?? '' }
    },
    async redriveLetter(id, reason) {
      checkReason(reason)
      const found = await letterAt({ id })
      if (!found) throw invalidArgument('There is no such parked or dead row: nothing was changed.')
      refuseUnchanged(await change(() => outboxByHand(store).redrive({ id }, reason)))
    },
    async discardLetter(id, reason) {
      checkReason(reason)
      if (!(await letterAt({ id }))) throw invalidArgument('There is no such parked or dead row: nothing was changed.')
      refuseUnchanged(await change(() => outboxByHand(store).discard({ id }, reason)))
    },
  }
}

/** Another person, or a relay, was faster. */
function refuseUnchanged(changed: number): void {
  if (changed === 0) throw invalidArgument('It is not parked any more: nothing was changed.')
}

function parkedRow({ message, detail: _detail, ...rest }: ParkedMessage): ParkedRow {
  return { ...rest, bytes: Buffer.byteLength(message) }
}

function letterRow({ reason: _reason, ...rest }: DeadLetter): LetterRow {
  return rest
}
