// A process under torture. Its argument, as JSON, says where the store is, what to ask for, and where to die or to stop. It asks
// for all its jobs at once, each again until it has its end, or serves HTTP until it is killed.
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Asker, asks, type Flow, type Job, openAsker } from './asking.ts'
import { openJournal } from './journal.ts'
import type { Place } from './place.ts'
import type { Fate } from './points.ts'

export interface Orders {
  readonly name: string
  readonly folder: string
  readonly offsetMs: number
  readonly place: Place
  readonly fate: Fate
  readonly jobs: readonly Job[]
  /** `serve`: listen with HTTP. `load`: ask for more and more new keys until the file `enough` is there. */
  readonly mode: 'jobs' | 'serve' | 'load' | 'one-by-one'
  readonly flows?: readonly Flow[]
}

/** A key that is busy is asked for again. The last phase, in the supervisor, sees to what is left. */
const triesMax = 6

async function askUntilEnd(asker: Asker, job: Job): Promise<void> {
  for (let tries = 0; tries < triesMax; tries++) {
    const answer = await asker.ask(job)
    if (answer.is === 'value' || answer.is === 'failure' || answer.is === 'stray') return
    if (answer.is === 'refused' && (answer.code === 'MISMATCH' || answer.code === 'IN_DOUBT')) return
    await sleep(20)
  }
}

/** So many keys are asked for at once by each process of a load. */
const lanes = 4

async function load(asker: Asker, { name, folder, flows = ['run'] }: Orders): Promise<void> {
  const isEnough = (): boolean => existsSync(join(folder, 'enough'))
  const lane = async (number: number): Promise<void> => {
    for (let round = 0; !isEnough(); round++) {
      const asked = asks[round % asks.length]!
      const flow = flows[(round + number) % flows.length]!
      const job: Job = { flow, id: `${name}-${number}-${round}-${flow}-${asked}`, asked, phase: 'first' }
      // A server that is down is asked again about the same key. Ever new keys would only be many.
      while ((await asker.ask(job)).is === 'refused' && !isEnough()) await sleep(50)
    }
  }
  await Promise.all(Array.from({ length: lanes }, (_, number) => lane(number)))
}

async function main(orders: Orders): Promise<void> {
  const journal = openJournal(orders.folder, orders.name, orders.offsetMs)
  process.on('unhandledRejection', (reason) => journal.write({ is: 'unhandled', message: String(reason) }))
  const asker = await openAsker({ place: orders.place, journal, fate: orders.fate })
  if (orders.mode === 'serve') return journal.write({ is: 'listening', port: await asker.listen() })
  if (orders.mode === 'load') await load(asker, orders)
  else if (orders.mode === 'one-by-one') for (const job of orders.jobs) await asker.ask(job)
  else await Promise.all(orders.jobs.map((job) => askUntilEnd(asker, job)))
  await asker.close()
}

await main(JSON.parse(process.argv[2]!) as Orders)
