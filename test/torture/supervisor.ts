// Starts the processes under torture in a guarded folder (they go with it, however this process ends), and asks in the end, after
// the last fault, for every key that a process has asked for.
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { type GuardedFolder, guardFolder } from '../servers/guarded-folder.ts'
import { pollUntil } from '../servers/poll.ts'
import { type Asker, type Flow, isRefusing, isServed, type Job, openAsker } from './asking.ts'
import { installAudit } from './audit.ts'
import { type Gateways, openGateways } from './gateways.ts'
import { askByHttp } from './http-asking.ts'
import { type Journal, openJournal, readJournals, wallOffsetMs } from './journal.ts'
import { audited, effectsTable, openStore, type Place } from './place.ts'
import type { Fate } from './points.ts'
import { startProcess, type Worker } from './processes.ts'
import type { Orders } from './worker.ts'

export interface Supervisor {
  readonly place: Place
  readonly folder: string
  readonly journal: Journal
  readonly offsetMs: number
  start(orders: Partial<Orders> & Pick<Orders, 'mode'>, env?: NodeJS.ProcessEnv): Worker
  /** A process that serves what is asked for by HTTP: with the adapter, or a gateway. */
  serve(flow: Flow, fate: Fate): Promise<Worker>
  readonly asker: Asker
  /** Asks in this process, or by a gateway that is never killed. */
  ask(job: Job): Promise<unknown>
  gateways(): Promise<Gateways>
  /** How many effects of this key have begun in this process, which is also the service behind the gateways. */
  begunHere(id: string): number
  /** Asks for every key that a process asked for, until it ends. */
  converge(): Promise<void>
  /** The processes may be killed no more, and the folder goes. */
  close(): Promise<void>
}

/** Far beyond a lease and its takeover: it bounds a hang. */
const convergenceMsMax = 40_000

let places = 0

/** Only one folder with a watchdog: a part of the run has a folder below it. */
let guarded: Promise<GuardedFolder> | undefined

export async function tortureFolder(): Promise<GuardedFolder> {
  guarded ??= guardFolder('torture')
  return guarded
}

export async function prepare(place: Place): Promise<void> {
  const opened = await openStore(place)
  await opened.migrate()
  if (audited.includes(place.store)) {
    await opened.sql(effectsTable)
    await installAudit(place.store, opened)
  }
  await opened.close()
}

export async function supervise(place: Place): Promise<Supervisor> {
  const root = (await tortureFolder()).path
  const folder = join(root, `part-${++places}-${place.store}`)
  mkdirSync(folder)
  const offsetMs = wallOffsetMs()
  const { journal, begunHere } = listened(openJournal(folder, 'supervisor', offsetMs))
  const asker = await openAsker({ place, journal })
  let opened: Promise<Gateways> | undefined
  const gateways = (): Promise<Gateways> => (opened ??= openGateways({ root, place, folder, offsetMs, journal }))
  let workers = 0
  const start: Supervisor['start'] = (orders, env = {}) => {
    const name = `w${++workers}`
    const told: Orders = { name, folder, offsetMs, place, fate: {}, jobs: [], ...orders }
    const program = join(import.meta.dirname, 'worker.ts')
    return startProcess({ root, folder, name }, [program, JSON.stringify(told)], env)
  }
  let port: Promise<number> | undefined
  const ask = async (job: Job): Promise<unknown> => {
    if (!isServed(job.flow)) return asker.ask(job)
    if (job.flow !== 'http') return (await gateways()).ask(job)
    port ??= asker.listen()
    return askByHttp(journal, await port, job)
  }
  return {
    place,
    folder,
    journal,
    offsetMs,
    start,
    serve: async (flow, fate) => (flow === 'http' ? start({ mode: 'serve', fate }) : (await gateways()).start(fate)),
    asker,
    ask,
    gateways,
    begunHere,
    converge: () => inTurns(jobsOf(folder), 16, (job) => askToTheEnd(job, ask)),
    async close() {
      await (await opened)?.close()
      await asker.close()
    },
  }
}

/** Counts the effects that have begun, as they are written down. */
function listened(inner: Journal): { journal: Journal; begunHere: (id: string) => number } {
  const ids = new Map<string, string>()
  const begun = new Map<string, number>()
  const write: Journal['write'] = (line) => {
    inner.write(line)
    if (line.is === 'call') ids.set(line.call, line.key.id)
    if (line.is !== 'execution' && line.is !== 'served') return
    const id = ids.get(line.call) ?? ''
    begun.set(id, (begun.get(id) ?? 0) + 1)
  }
  return { journal: { ...inner, write }, begunHere: (id) => begun.get(id) ?? 0 }
}

/** The jobs that were asked for. For a key that was asked for in two ways, the one that its flow is named by. */
function jobsOf(folder: string): Job[] {
  const jobs = new Map<string, Job>()
  for (const line of readJournals(folder)) {
    if (line.is !== 'call' || line.asked === 'other') continue
    const { id } = line.key
    const flow = id.split('-').at(-2) as Job['flow']
    jobs.set(id, { flow, id, asked: line.asked as Job['asked'], phase: 'last' })
  }
  return [...jobs.values()]
}

async function askToTheEnd(job: Job, ask: (job: Job) => Promise<unknown>): Promise<void> {
  await pollUntil(
    `an end of ${job.id}`,
    async () => {
      let answer = (await ask(job)) as { is: string; code?: string } | undefined
      // The other request came first, and the key is its.
      if (answer?.code === 'MISMATCH') answer = (await ask({ ...job, asked: 'other' })) as typeof answer
      if (answer?.is === 'value' || answer?.is === 'failure') return true
      return isRefusing(job.flow) && answer?.code === 'IN_DOUBT'
    },
    { timeoutMs: convergenceMsMax, intervalMs: 100 },
  ).catch(() => {}) // the checker finds that the key has no end
}

/** So many at once, in their order. */
export async function inTurns<T>(items: readonly T[], lanes: number, work: (item: T) => Promise<void>): Promise<void> {
  const waiting = [...items]
  const lane = async (): Promise<void> => {
    for (let item = waiting.shift(); item !== undefined; item = waiting.shift()) await work(item)
  }
  await Promise.all(Array.from({ length: lanes }, lane))
}
