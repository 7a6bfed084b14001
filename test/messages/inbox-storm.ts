// A storm on an inbox: partitions with their messages in order, consumers that take batches of them, two of which may have the same
// partition (a zombie), handlers that fail, processes that die in the middle, positions that go back. Invariants, judged by a table
// without constraints: every message has exactly one effect, and the effects of a partition are in the order of its messages.
import type { Delivered, Handled, Message } from '../../src/messages/inbox.ts'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import type { Consumer, InboxSubject } from './inbox-subject.ts'
import { message } from './inbox-subject.ts'

export interface StormOptions {
  readonly seed: number
  readonly partitions: number
  readonly messages: number
  readonly consumers: number
}

export interface StormCounts {
  handled: number
  duplicate: number
  busy: number
  failed: number
  deaths: number
  rewinds: number
}

interface Partition {
  readonly log: readonly Message[]
  // Everything before it is acknowledged.
  position: number
}

// mulberry32: enough for choices, and the same everywhere.
export function randomFrom(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296
  }
}

export async function storm(subject: InboxSubject, options: StormOptions): Promise<StormCounts> {
  const random = randomFrom(options.seed)
  const counts: StormCounts = { handled: 0, duplicate: 0, busy: 0, failed: 0, deaths: 0, rewinds: 0 }
  const count = (event: unknown): void => {
    const { is } = event as Handled
    if (is !== 'refused') counts[is]++
  }
  const partitions = Array.from({ length: options.partitions }, (_value, partition) => ({
    log: Array.from({ length: options.messages }, (_message, index) =>
      message(`${partition}-${String(index).padStart(4, '0')}`, { key: `partition ${partition}` }),
    ),
    position: 0,
  }))
  subscribe('onceonly:message', count)
  await subject.consumer()
  try {
    await Promise.all(
      Array.from({ length: options.consumers }, () => consume(subject, partitions, random, counts, options)),
    )
    // Calm, and everything once more: whatever is still missing runs now, and nothing runs twice.
    for (const partition of partitions) partition.position = 0
    await consume(subject, partitions, random, counts, { ...options, calm: true })
  } finally {
    unsubscribe('onceonly:message', count)
  }
  return counts
}

async function consume(
  subject: InboxSubject,
  partitions: readonly Partition[],
  random: () => number,
  counts: StormCounts,
  { calm = false }: StormOptions & { readonly calm?: boolean },
): Promise<void> {
  // Far more than a message fails in a storm: parking has its own tests.
  const settings = { attempts: 1_000, attemptMs: 30_000 }
  let consumer = await subject.consumer(settings)
  for (;;) {
    const left = partitions.filter(({ position, log }) => position < log.length)
    if (left.length === 0) return
    const partition = left[Math.floor(random() * left.length)]!
    // Neither is left to chance alone: a storm without it would prove less than it says.
    const late = partition.position > partition.log.length / 2
    if (!calm && (random() < 0.05 || (late && counts.rewinds === 0))) {
      partition.position = Math.floor(random() * partition.position)
      counts.rewinds++
    }
    const from = partition.position
    const batch = partition.log.slice(from, from + 1 + Math.floor(random() * 8))
    const dies = !calm && (random() < 0.06 || (late && counts.deaths === 0))
    const delivered = await takeBatch(consumer, batch, calm ? 0 : 0.08, random, dies)
    if (dies) {
      counts.deaths++
      consumer = await subject.consumer(settings)
    }
    const firstLeft = delivered.findIndex(({ acknowledged }) => !acknowledged)
    const done = firstLeft < 0 ? batch.length : firstLeft
    // Another may have gone on, or back.
    if (partition.position === from) partition.position = from + done
    if (done < batch.length) await new Promise((resolve) => setTimeout(resolve, 1 + random() * 5))
  }
}

async function takeBatch(
  { inbox, effect, open }: Consumer,
  batch: readonly Message[],
  failing: number,
  random: () => number,
  dies: boolean,
): Promise<readonly Delivered[]> {
  const diesAt = dies ? Math.floor(random() * batch.length) : -1
  let handled = 0
  return inbox.deliverBatch(
    batch,
    async (tx, fresh) => {
      for (const { id } of fresh) {
        await effect(tx, id!)
        if (handled++ === diesAt) await open.die()
        if (random() < failing) throw new Error('a handler that fails')
      }
    },
    async () => {},
  )
}
