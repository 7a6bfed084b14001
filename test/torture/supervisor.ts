// Starts the processes under torture in a guarded folder (they go with it, however this process ends), and asks in the end,
// when all faults are over, for every key that anybody has asked for.
import type { ChildProcess } from 'node:child_process'
import { closeSync, mkdirSync, openSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type GuardedFolder, guardFolder, spawnIn } from '../servers/guarded-folder.ts'
import { pollUntil } from '../servers/poll.ts'
import { type Asker, askByHttp, type Job, openAsker } from './asking.ts'
import { installAudit } from './audit.ts'
import { type Journal, openJournal, readJournal, readJournals, type Written, wallOffsetMs } from './journal.ts'
import { audited, effectsTable, openStore, type Place } from './place.ts'
import type { Orders } from './worker.ts'

export interface Worker {
  readonly name: string
  readonly child: ChildProcess
  readonly ended: Promise<NodeJS.Signals | number>
  lines(): Written[]
  /** The end of what it printed, which is nothing unless it failed. */
  said(): string
}

export interface Supervisor {
  readonly place: Place
  readonly folder: string
  readonly journal: Journal
  readonly offsetMs: number
  start(orders: Partial<Orders> & Pick<Orders, 'mode'>, env?: NodeJS.ProcessEnv): Worker
  /** Asks in this process. */
  readonly asker: Asker
  askByHttp(job: Job): Promise<unknown>
  /** The token of the effect of this key that began last in this process. */
  runningToken(id: string): string | undefined
  /** Every key that anybody asked for is asked for until it ends. */
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
  const { journal, runningToken } = listened(openJournal(folder, 'supervisor', offsetMs))
  const asker = await openAsker({ place, journal })
  let port: Promise<number> | undefined
  let workers = 0
  const byHttp = async (job: Job): Promise<unknown> => {
    port ??= asker.listen()
    return askByHttp(journal, await port, job)
  }
  return {
    place,
    folder,
    journal,
    offsetMs,
    asker,
    askByHttp: byHttp,
    runningToken,
    start(orders, env = {}) {
      const name = `w${++workers}`
      const told: Orders = { name, folder, offsetMs, place, fate: {}, jobs: [], ...orders }
      return startWorker(root, told, env)
    },
    async converge() {
      const jobs = jobsOf(folder)
      await inTurns(jobs, 16, (job) => askToTheEnd(job, job.flow === 'http' ? byHttp : asker.ask))
    },
    close: () => asker.close(),
  }
}

/** Tells which effects have begun, as they are written down. */
function listened(inner: Journal): { journal: Journal; runningToken: (id: string) => string | undefined } {
  const ids = new Map<string, string>()
  const tokens = new Map<string, string>()
  const write: Journal['write'] = (line) => {
    inner.write(line)
    if (line.is === 'call') ids.set(line.call, line.key.id)
    if (line.is === 'execution') tokens.set(ids.get(line.call) ?? '', line.token)
  }
  return { journal: { ...inner, write }, runningToken: (id) => tokens.get(id) }
}

function startWorker(root: string, orders: Orders, env: NodeJS.ProcessEnv): Worker {
  const { name, folder } = orders
  const program = join(import.meta.dirname, 'worker.ts')
  const log = openSync(join(folder, `${name}.log`), 'a')
  const child = spawnIn(root, process.execPath, [program, JSON.stringify(orders)], {
    log,
    // What V8 has compiled once need not be compiled by each of a thousand processes.
    env: { NODE_COMPILE_CACHE: join(root, 'compiled'), NODE_NO_WARNINGS: '1', ...env },
  })
  closeSync(log)
  const ended = new Promise<NodeJS.Signals | number>((resolve) =>
    child.once('exit', (code, signal) => resolve(signal ?? code ?? -1)),
  )
  const said = (): string => readFileSync(join(folder, `${name}.log`), 'utf8').slice(-2_000)
  return { name, child, ended, said, lines: () => readJournal(folder, name) }
}

/** A process that does not come to its end is killed, and told as what it is. */
export async function endOf(worker: Worker, msMax = 60_000): Promise<NodeJS.Signals | number> {
  const bound = new AbortController()
  const hung = sleep(msMax, 'hung' as const, { signal: bound.signal, ref: false }).catch(() => 'hung' as const)
  const ended = await Promise.race([worker.ended, hung])
  bound.abort()
  if (ended !== 'hung') return ended
  worker.child.kill('SIGKILL')
  throw new Error(`${worker.name} did not end within ${msMax} ms`)
}

/** The port of a process that serves HTTP. */
export function portOf(worker: Worker): Promise<number> {
  return pollUntil(`${worker.name} to listen`, () => {
    const { exitCode, signalCode } = worker.child
    const line = worker.lines().find(({ is }) => is === 'listening')
    if (line?.is === 'listening') return line.port
    if (exitCode !== null || signalCode !== null)
      throw new Error(`it ended with ${signalCode ?? exitCode}: ${worker.said()}`)
    return undefined
  })
}

/** The jobs that were asked for; for a key that was asked for in two ways, the one that its flow is named by. */
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

/** As `run` tells it, and as HTTP does. */
export function isMismatch(code: string | undefined): boolean {
  return code === 'MISMATCH' || code === 'idempotency-key-reused'
}

async function askToTheEnd(job: Job, ask: (job: Job) => Promise<unknown>): Promise<void> {
  await pollUntil(
    `an end of ${job.id}`,
    async () => {
      let answer = (await ask(job)) as { is: string; code?: string } | undefined
      // The other request came first, and the key is its.
      if (isMismatch(answer?.code)) answer = (await ask({ ...job, asked: 'other' })) as typeof answer
      if (answer?.is === 'value' || answer?.is === 'failure') return true
      return job.flow === 'refuse' && answer?.code === 'IN_DOUBT'
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
