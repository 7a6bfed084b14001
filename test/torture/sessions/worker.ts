// A process under torture that serves requests of sessions. It asks first for what dead processes left, and then, with its point armed,
// for its own. A load asks for more and more until the file `enough` is there.
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { openJournal } from '../journal.ts'
import type { Place } from '../place.ts'
import type { Fate } from '../points.ts'
import { type Numbered, openSessions, type SessionAsker } from './asking.ts'

export interface SessionOrders {
  readonly name: string
  readonly folder: string
  readonly offsetMs: number
  readonly place: Place
  readonly fate: Fate
  readonly left: readonly Numbered[]
  readonly own: readonly Numbered[]
  /** Clients of a load. */
  readonly load?: readonly string[]
}

/** One client, which acknowledges what it has. Its server is down at times. */
async function load({ sessions, ask }: SessionAsker, client: string, folder: string): Promise<void> {
  const isEnough = (): boolean => existsSync(join(folder, 'enough'))
  const { session, epoch } = await sessions.register(client)
  for (let sequence = 1; !isEnough(); sequence++) {
    const request: Numbered = { session, epoch, sequence, acknowledged: sequence - 1, phase: 'first' }
    while ((await ask(request)).is !== 'value') {
      if (isEnough()) return
      await sleep(50)
    }
  }
}

async function main({ name, folder, offsetMs, place, fate, left, own, load: clients }: SessionOrders): Promise<void> {
  const journal = openJournal(folder, name, offsetMs)
  process.on('unhandledRejection', (reason) => journal.write({ is: 'unhandled', message: String(reason) }))
  const asker = await openSessions({ place, journal, fate })
  await Promise.all(left.map((request) => asker.ask(request)))
  asker.arm()
  if (clients) await Promise.all(clients.map((client) => load(asker, client, folder)))
  for (const request of own) await asker.ask(request)
  await asker.close()
}

await main(JSON.parse(process.argv[2]!) as SessionOrders)
