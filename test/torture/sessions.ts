// Sessions under torture, on PostgreSQL, MariaDB and Redis: processes that serve them are killed at every transaction or script of a request
// and around its effect, stopped while their client registers again or another process takes their number, their server is killed under
// load, and connections are cut. Each number has one effect then, by a ledger that is not ours.
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { startFaultProxy } from '../servers/fault-proxy.ts'
import { pollUntil } from '../servers/poll.ts'
import type { Running } from '../servers/server.ts'
import type { Ask } from './asking.ts'
import type { Link } from './cuts.ts'
import { type Journal, openJournal, readJournals, readLedger, wallOffsetMs } from './journal.ts'
import type { Found } from './judge.ts'
import type { Place } from './place.ts'
import type { Point } from './points.ts'
import { endOf, mustRun, startProcess, type Worker } from './processes.ts'
import { nameOf, type Numbered, openSessions, type SessionAsker } from './sessions/asking.ts'
import { judgeSessionLines } from './sessions/judge.ts'
import type { SessionOrders } from './sessions/worker.ts'
import { inTurns, tortureFolder } from './supervisor.ts'

export interface SessionTorture {
  readonly place: Place
  readonly server: Running
  readonly link: Link
  readonly scale: number
}

export interface TorturedSessions {
  readonly kills: number
  readonly zombies: number
  readonly restarts: number
  readonly cuts: number
  readonly calls: number
  readonly takeovers: number
  readonly fenced: number
  readonly points: Readonly<Record<string, number>>
  readonly violations: readonly Found[]
}

type PointName = readonly [call: string, nth: number, side: Point['side']]

/** A request has two transactions: the first lets it in, the second holds its effect and its answer. */
const ofSql: readonly PointName[] = [
  ['begin', 1, 'after'],
  ['commit', 1, 'before'],
  ['commit', 1, 'after'],
  ['begin', 2, 'after'],
  ['effect', 1, 'before'],
  ['effect', 1, 'after'],
  ['commit', 2, 'before'],
  ['commit', 2, 'after'],
]
/** The claim, and the answer. */
const ofRedis: readonly PointName[] = [
  ['run', 1, 'before'],
  ['run', 1, 'after'],
  ['effect', 1, 'before'],
  ['effect', 1, 'after'],
  ['run', 2, 'before'],
  ['run', 2, 'after'],
]

/** What is done to each store in CI, and the least that a run must have met. */
export const sessionQuotas = { kills: 6, zombies: 4, restarts: 2, cuts: 6 } as const

/** What a run has met too little of. */
export function missedBySessions(met: TorturedSessions, scale: number): string[] {
  return Object.entries(sessionQuotas).flatMap(([name, once]) => {
    const count = met[name as keyof typeof sessionQuotas]
    return count < once * scale ? [`${name}: ${count}, at least ${once * scale} expected`] : []
  })
}

interface Ground extends SessionTorture {
  readonly folder: string
  readonly root: string
  readonly offsetMs: number
  readonly journal: Journal
  readonly asker: SessionAsker
  readonly isTransaction: boolean
  start(orders: Partial<SessionOrders>): Worker
}

let parts = 0

export async function tortureSessions(torture: SessionTorture): Promise<TorturedSessions> {
  const { place, scale } = torture
  const root = (await tortureFolder()).path
  const folder = join(root, `sessions-${++parts}-${place.store}`)
  mkdirSync(folder)
  const offsetMs = wallOffsetMs()
  const journal = openJournal(folder, 'supervisor', offsetMs)
  const asker = await openSessions({ place, journal })
  await asker.sessions.migrate()
  const isTransaction = asker.sessions.guarantee === 'one-transaction'
  let workers = 0
  const start: Ground['start'] = (orders) => {
    const name = `s${++workers}`
    const told: SessionOrders = { name, folder, offsetMs, place, fate: {}, left: [], own: [], ...orders }
    return startProcess(
      { root, folder, name },
      [join(import.meta.dirname, 'sessions/worker.ts'), JSON.stringify(told)],
      {},
    )
  }
  const ground: Ground = { ...torture, folder, root, offsetMs, journal, asker, isTransaction, start }
  try {
    const points = await killAtPoints(ground)
    const zombies = await raiseZombies(ground)
    const restarts = await crashUnderLoad(ground, sessionQuotas.restarts * scale)
    const cuts = await cutRequests(ground)
    await converge(ground)
    const kills = Object.values(points).reduce((sum, count) => sum + count, 0)
    return { kills, zombies, restarts, cuts, points, ...(await judged(ground)) }
  } finally {
    await asker.close()
  }
}

/** A process asks for what the dead left, and dies in the middle of its own number. */
async function killAtPoints({ asker, isTransaction, place, scale, start }: Ground): Promise<Record<string, number>> {
  const { session, epoch } = await asker.sessions.register('killed')
  const names = isTransaction ? ofSql : ofRedis
  const plans = Array.from({ length: scale }, () => names).flat()
  const points = Object.fromEntries(names.map((name) => [pointName(place, name), 0]))
  const left: Numbered[] = []
  let sequence = 0
  await inTurns(plans, 2, async (name) => {
    const [call, nth, side] = name
    const own: Numbered = {
      session,
      epoch,
      sequence: ++sequence,
      phase: 'first',
      asked: sequence % 4 === 0 ? 'final' : 'value',
    }
    const taken = left.splice(0, 2)
    const worker = start({ fate: { die: { call, nth, side } }, left: taken, own: [own] })
    const ended = await endOf(worker)
    left.push(own)
    if (ended === 'SIGKILL') points[pointName(place, name)]!++
    else if (ended !== 0)
      throw new Error(`${worker.name} of sessions on ${place.store} ended with ${ended}: ${worker.said()}`)
  })
  return points
}

const pointName = ({ store }: Place, [call, nth, side]: PointName): string => `${store} session: ${call} ${nth} ${side}`

/** A process is stopped around its effect. Its client registers again, or another process takes its number, and only then it goes on. */
async function raiseZombies(ground: Ground): Promise<number> {
  const stops: readonly (readonly [PointName, 'fence' | 'take over'])[] = [
    [['effect', 1, 'before'], 'fence'],
    [['effect', 1, 'after'], 'fence'],
    // A stopped transaction keeps its number until its connection ends.
    ...(ground.isTransaction ? [] : ([[['effect', 1, 'after'], 'take over']] as const)),
  ]
  const raised = await Promise.all(stops.map(([stop, how], index) => raise(ground, stop, how, `z${index}`)))
  return raised.reduce((sum, each) => sum + each, 0)
}

async function raise(
  ground: Ground,
  [call, nth, side]: PointName,
  how: 'fence' | 'take over',
  name: string,
): Promise<number> {
  const { asker, journal, scale, start } = ground
  const own: Numbered[] = []
  for (let count = 0; count < 2 * scale; count++) {
    const { session, epoch } = await asker.sessions.register(`${name}-${count}`)
    own.push({ session, epoch, sequence: 1, phase: 'first' })
  }
  const worker = start({ fate: { stop: { call, nth, side } }, own })
  for (const [index, request] of own.entries()) {
    const { token } = await pollUntil(`${worker.name} to stop`, () => {
      const stopped = worker.lines().filter((line) => line.is === 'stopping')[index]
      if (!stopped) mustRun(worker)
      return stopped as { readonly token: string } | undefined
    })
    if (how === 'fence') await asker.sessions.register(request.session)
    else await pollUntil(`${nameOf(request)} to be taken over`, async () => (await asker.ask(request)).is === 'value')
    journal.write({ is: 'taken-over', token })
    // Again, if it was not yet stopped.
    await pollUntil(`${worker.name} to go on`, () => {
      worker.child.kill('SIGCONT')
      return worker.lines().filter((line) => line.is === 'resumed').length > index
    })
  }
  const ended = await endOf(worker)
  if (ended !== 0) throw new Error(`${worker.name} ended with ${ended}: ${worker.said()}`)
  return own.length
}

/** So many answers between two crashes. */
const answersBetween = 6

async function crashUnderLoad({ server, folder, journal, start }: Ground, times: number): Promise<number> {
  const worker = start({ load: ['load-1', 'load-2', 'load-3'] })
  const values = (): number =>
    worker.lines().filter((line) => line.is === 'answer' && line.answer.is === 'value').length
  const answers = async (): Promise<void> => {
    const before = values()
    await pollUntil(`answers from sessions on ${server.name}`, () => {
      mustRun(worker)
      return values() >= before + answersBetween
    })
  }
  for (let crash = 0; crash < times; crash++) {
    await answers()
    journal.write({ is: 'incident', text: `${server.name} is killed` })
    await server.crash()
    await server.restart()
  }
  await answers()
  writeFileSync(join(folder, 'enough'), '')
  await endOf(worker)
  return times
}

/** More messages than this come from a reconnection. */
const messagesMax = 12

async function cutRequests({ place, folder, offsetMs, scale, link }: Ground): Promise<number> {
  const proxy = await startFaultProxy({ target: { url: place.url }, framer: link.framer })
  const journal = openJournal(folder, 'cutter', offsetMs)
  const asker = await openSessions({ place: { ...place, url: proxy.url }, journal })
  let cuts = 0
  try {
    const { session, epoch } = await asker.sessions.register('cut')
    let sequence = 0
    const ask = async (): Promise<unknown> => asker.ask({ session, epoch, sequence: ++sequence, phase: 'first' })
    await ask()
    const before = { request: proxy.counts.request.messages, reply: proxy.counts.reply.messages }
    await ask()
    for (const direction of ['request', 'reply'] as const) {
      const messages = Math.min(messagesMax, proxy.counts[direction].messages - before[direction])
      for (let message = 0; message < messages * scale; message++) {
        for (const side of ['before', 'after'] as const) {
          void proxy.cutAt({ direction, message: (message % messages) + 1, side }).happened.then(() => cuts++)
          await ask()
        }
      }
    }
  } finally {
    await asker.close().catch(() => {})
    await proxy.close()
  }
  return cuts
}

/** Every number that was asked for and is not acknowledged is asked for once more, until it ends. */
async function converge({ asker, folder }: Ground): Promise<void> {
  const lines = readJournals(folder)
  const answered = new Set(
    lines.flatMap((line) => (line.is === 'answer' && line.answer.is === 'value' ? [line.call] : [])),
  )
  const requests = new Map<string, Numbered>()
  for (const line of lines) {
    if (line.is !== 'call') continue
    const [session, epoch, sequence] = line.key.id.split('/') as [string, string, string]
    const [isLoad, number] = [session.startsWith('load'), Number(sequence)]
    const request: Numbered = {
      session,
      epoch: Number(epoch),
      sequence: number,
      asked: line.asked as Ask,
      phase: 'last',
    }
    // A load acknowledges what it has, and has all answers below the number that it asks for.
    if (isLoad && answered.has(line.call)) requests.delete(line.key.id)
    else requests.set(line.key.id, isLoad ? { ...request, acknowledged: number - 1 } : request)
  }
  await inTurns([...requests.values()], 8, async (request) => {
    await pollUntil(
      `an end of ${nameOf(request)}`,
      async () => {
        const answer = await asker.ask(request)
        return answer.is === 'value' || answer.is === 'failure' || (answer.is === 'refused' && answer.code === 'FENCED')
      },
      { timeoutMs: 40_000, intervalMs: 100 },
    ).catch(() => {}) // the judge finds that it has no end
  })
}

async function judged({
  asker,
  folder,
  isTransaction,
}: Ground): Promise<Pick<TorturedSessions, 'calls' | 'takeovers' | 'fenced' | 'violations'>> {
  const lines = readJournals(folder)
  const rows = isTransaction ? await asker.opened.sql('select token, id from torture_effects') : undefined
  const shown = await asker.sessions.list()
  const left = Object.fromEntries(
    shown.filter(({ session }) => session.startsWith('load')).map(({ session, requests }) => [session, requests]),
  )
  const violations = judgeSessionLines({ lines, ledger: readLedger(folder), rows: rows as never, left })
  const refusals = lines.filter(
    (line) => line.is === 'answer' && line.answer.is === 'refused' && /FENCED|CLAIM_LOST/.test(line.answer.code),
  )
  return {
    calls: lines.filter(({ is }) => is === 'call').length,
    takeovers: lines.filter((line) => line.is === 'execution' && line.attempt > 1).length,
    fenced: refusals.length,
    violations,
  }
}
