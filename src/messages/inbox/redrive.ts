// Parked messages that somebody has redriven: each is run once, in a transaction that also marks it and removes it from the parked.

import type { SqlDatabase } from '../../clients/sql-database.ts'
import { deadlineOf, HandlerError } from './ground.ts'
import type { InboxSettings } from './ground.ts'
import { marksOn } from './marks.ts'
import { decodeMessage } from './message.ts'
import { parkingOn } from './parked.ts'
import type { ParkedMessage } from './parked.ts'

export async function redriven(
  database: SqlDatabase,
  settings: InboxSettings<unknown>,
  handler: (tx: unknown, message: unknown) => unknown,
): Promise<number> {
  const parking = parkingOn(database, settings.codec)
  let done = 0
  for (;;) {
    // Its attempt is counted and it is not asked for any more, so that one which ends the process does so once.
    const parked = await parking.takeRedriven(settings.scope)
    if (!parked) return done
    try {
      if (await runParked(database, settings, parked, handler)) done++
    } catch (thrown) {
      if (!(thrown instanceof HandlerError)) throw thrown
      const { cause } = thrown
      await parking.note(parked, cause instanceof Error ? cause.message : String(cause))
    }
  }
}

async function runParked(
  database: SqlDatabase,
  settings: InboxSettings<unknown>,
  parked: ParkedMessage,
  handler: (tx: unknown, message: unknown) => unknown,
): Promise<boolean> {
  const { scope, id, fingerprint } = parked
  const open = await database.begin({ scope, id })
  try {
    if (!(await parkingOn(database, settings.codec).remove(open, parked))) {
      await open.rollback()
      return false
    }
    // Its id is marked by the message that had it first.
    if (parked.code !== 'MISMATCH') await marksOn(database, scope).complete(open, { id, fingerprint })
    await deadlineOf(settings, () => handler(open.tx, decodeMessage(parked.message)))
    await open.commit()
    return true
  } catch (error) {
    if (error instanceof HandlerError && error.isHung) await open.abandon()
    else await open.rollback()
    throw error
  }
}
