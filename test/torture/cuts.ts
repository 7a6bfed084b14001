// Connections cut at every message of the protocol, before and after it is delivered, in both directions, for every flow. How
// many messages a call has is counted first. A cut that meets a reconnection instead hits that. And COMMITs in particular, cut
// off or met by the death of the server: then the caller cannot know what became of them, and its answer must say so.
import { type FaultProxy, startFaultProxy } from '../servers/fault-proxy.ts'
import type { FramerName } from '../servers/framers.ts'
import type { Running } from '../servers/server.ts'
import { type Asker, type Flow, type Job, openAsker } from './asking.ts'
import { openJournal } from './journal.ts'
import type { Supervisor } from './supervisor.ts'

let keys = 0
let cutters = 0

function jobFor(flow: Flow): Job {
  return { flow, id: `c${++keys}-${flow}-value`, asked: 'value', phase: 'first' }
}

/** A call has its claim and its settle. More messages than this come from a reconnection, and are met by others. */
const messagesMax = 40

type Work = (proxy: FaultProxy, asker: Asker) => Promise<void>

/** A connection that a store has, and how its messages are separated. */
export interface Link {
  readonly to: 'url' | 'redisUrl'
  readonly framer: FramerName
}

async function throughProxy(supervisor: Supervisor, { to, framer }: Link, work: Work): Promise<void> {
  const { place, folder, offsetMs } = supervisor
  const proxy = await startFaultProxy({ target: { url: place[to]! }, framer })
  // Each has its own journal: calls are counted anew by each asker.
  const journal = openJournal(folder, `cutter-${++cutters}`, offsetMs)
  const asker = await openAsker({ place: { ...place, [to]: proxy.url }, journal })
  try {
    await work(proxy, asker)
  } finally {
    await asker.close().catch(() => {})
    await proxy.close()
  }
}

export async function cutEverywhere(supervisor: Supervisor, link: Link, flows: readonly Flow[]): Promise<number> {
  let cuts = 0
  await throughProxy(supervisor, link, async (proxy, asker) => {
    for (const flow of flows) cuts += await cutFlow(proxy, asker, flow)
  })
  return cuts
}

async function cutFlow(proxy: FaultProxy, asker: Asker, flow: Flow): Promise<number> {
  await asker.ask(jobFor(flow))
  const before = { request: proxy.counts.request.messages, reply: proxy.counts.reply.messages }
  await asker.ask(jobFor(flow))
  let cuts = 0
  for (const direction of ['request', 'reply'] as const) {
    const messages = Math.min(messagesMax, proxy.counts[direction].messages - before[direction])
    for (let message = 1; message <= messages; message++) {
      for (const side of ['before', 'after'] as const) {
        void proxy.cutAt({ direction, message, side }).happened.then(() => cuts++)
        await asker.ask(jobFor(flow))
      }
    }
  }
  return cuts
}

/** PostgreSQL is sent one, MariaDB the call of a procedure that ends with one. Both are also asked for settings of such names. */
const isCommit = (message: Buffer): boolean => /\bCOMMIT\b|call `\w+_commit_v/.test(message.toString('latin1'))

/** Each time one COMMIT that never arrives, and one that does. */
export async function cutCommits(supervisor: Supervisor, link: Link, times: number): Promise<number> {
  let cuts = 0
  await throughProxy(supervisor, link, async (proxy, asker) => {
    for (let time = 0; time < times; time++) {
      for (const side of ['before', 'after'] as const) {
        void proxy.cutAt({ direction: 'request', match: isCommit, side }).happened.then(() => cuts++)
        await asker.ask(jobFor('transaction'))
      }
    }
  })
  return cuts
}

/** So many transactions are under way when the server dies. */
const transactionsAtOnce = 6

/** The server is killed when it has been sent a COMMIT, and those of others are on their way. */
export async function crashAtCommits(
  supervisor: Supervisor,
  server: Running,
  link: Link,
  times: number,
): Promise<number> {
  let crashes = 0
  await throughProxy(supervisor, link, async (proxy, asker) => {
    for (; crashes < times; crashes++) {
      const { happened } = proxy.cutAt({ direction: 'request', match: isCommit, side: 'after' })
      let crashed: Promise<void> | undefined
      void happened.then(() => (crashed = server.crash()))
      const asked = Promise.all(Array.from({ length: transactionsAtOnce }, () => asker.ask(jobFor('transaction'))))
      await Promise.race([happened, asked])
      if (!crashed) throw new Error(`six transactions on ${server.name} had no COMMIT`)
      supervisor.journal.write({ is: 'incident', text: `${server.name} is killed at a COMMIT` })
      await crashed
      await server.restart()
      await asked
    }
  })
  return crashes
}
