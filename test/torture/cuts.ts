// Connections cut at every message of the protocol, before and after it is delivered, in both directions, for every flow. How
// many messages a call has is counted first; a cut that meets a reconnection instead hits that.
import { type FaultProxy, startFaultProxy } from '../servers/fault-proxy.ts'
import type { FramerName } from '../servers/framers.ts'
import { type Asker, type Flow, type Job, openAsker } from './asking.ts'
import { openJournal } from './journal.ts'
import type { Supervisor } from './supervisor.ts'

let keys = 0

function jobFor(flow: Flow): Job {
  return { flow, id: `c${++keys}-${flow}-value`, asked: 'value', phase: 'first' }
}

/** A call has its claim and its settle; more messages than this come from a reconnection, and are met by others. */
const messagesMax = 40

export async function cutEverywhere(
  supervisor: Supervisor,
  framer: FramerName,
  flows: readonly Flow[],
): Promise<number> {
  const { place, folder, offsetMs } = supervisor
  const proxy = await startFaultProxy({ target: { url: place.url }, framer })
  const journal = openJournal(folder, 'cutter', offsetMs)
  const asker = await openAsker({ place: { ...place, url: proxy.url }, journal })
  let cuts = 0
  try {
    for (const flow of flows) cuts += await cutFlow(proxy, asker, flow)
  } finally {
    await asker.close().catch(() => {})
    await proxy.close()
  }
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
