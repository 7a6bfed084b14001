// Parked messages that somebody has redriven: each is run once, in a transaction that also marks it and removes it from the parked. One
// that has its effect already is removed and not run: it was redriven, came again and was parked again. So is one whose entity has a newer
// version by now.

import type { SqlDatabase } from '../../clients/sql-database.ts'
import { deadlineOf, HandlerError } from './ground.ts'
import type { InboxSettings } from './ground.ts'
import { marksOn } from './marks.ts'
import { decodeMessage } from './message.ts'
import type { Read, Reading } from './message.ts'
import { parkingOn } from './parked.ts'
import type { ParkedMessage } from './parked.ts'
import { versionsOn } from './versions.ts'

interface Redriving {
  readonly database: SqlDatabase
  readonly settings: InboxSettings<unknown>
  readonly reading: Reading<unknown>
  handler(tx: unknown, message: unknown): unknown
}

export async function redriven(redriving: Redriving): Promise<number> {
  const { database, settings } = redriving
  const parking = parkingOn(database, settings.codec)
  let done = 0
  for (;;) {
    // Its attempt is counted and it is not asked for any more, so that one which ends the process does so once.
    const parked = await parking.takeRedriven(settings.scope)
    if (!parked) return done
    try {
      if (await runParked(redriving, parked)) done++
    } catch (thrown) {
      if (!(thrown instanceof HandlerError)) throw thrown
      const { cause } = thrown
      await parking.note(parked, cause instanceof Error ? cause.message : String(cause))
    }
  }
}

async function runParked({ database, settings, reading, handler }: Redriving, parked: ParkedMessage): Promise<boolean> {
  const { scope, id, fingerprint } = parked
  const message = decodeMessage(parked.message)
  const open = await database.begin({ scope, id })
  try {
    if (!(await parkingOn(database, settings.codec).remove(open, parked))) {
      await open.rollback()
      return false
    }
    const marks = marksOn(database, scope)
    // Messages without an id cannot be told apart. A person says that this one is to be run.
    const mark = parked.code === 'NO_ID' ? id : await marks.complete(open, { id, fingerprint })
    if (mark === undefined) {
      await open.commit()
      return false
    }
    const version = await deadlineOf(settings, () => reading.versionOf?.(message))
    const read = { message, id, fingerprint, sentAtMs: undefined, key: undefined, version, isNameless: false }
    const isStale = (await versionsOn(database, scope).stale(open, [read as Read<unknown>])).size > 0
    if (!isStale) await deadlineOf(settings, () => handler(open.tx, message))
    else await marks.put(open, mark, 's')
    await open.commit()
    return !isStale
  } catch (error) {
    if (error instanceof HandlerError && error.isHung) await open.abandon()
    else await open.rollback()
    throw error
  }
}
