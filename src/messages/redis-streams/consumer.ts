// A consumer of a group of a stream. It begins with what it had in hand when it last ended, then takes what is new, and now and then
// what a dead consumer has left. Messages of one key are handled one after another. XACK is not fenced: a consumer that was thought
// dead can acknowledge, and so can the one that took over. The inbox judges.

import { backoffs } from '../../core/backoff.ts'
import { sleep } from '../../core/clock.ts'
import type { Clock, Random } from '../../core/clock.ts'
import { publish } from '../../core/events.ts'
import type { Consuming, Delivered } from '../broker.ts'
import { startReceiving } from '../receiving.ts'
import type { Hand } from '../receiving.ts'
import { messageOf } from './entry.ts'
import type { StreamEntry, StreamMessage } from './entry.ts'
import { beginning, codeOf, streamOf } from './stream.ts'
import type { StreamReader, StreamPlace } from './stream.ts'

export interface StreamConsumption extends StreamPlace {
  readonly inFlight: number
  readonly claimAfterMs: number
  readonly random: Random
  readonly clock: Clock
  readonly consumer: string
  deliver(message: StreamMessage, acknowledge: () => Promise<void>): Promise<Delivered>
}

interface Taken {
  readonly entry: StreamEntry
  readonly delivery: number | undefined
}

export function startConsumer(options: StreamConsumption): Consuming {
  const { clock, random, inFlight, claimAfterMs, consumer } = options
  const stream = streamOf(options)
  const held = new Set<string>()
  const lanes = new Map<string, Promise<void>>()
  return startReceiving<Taken>({
    broker: 'redis-streams',
    consumer,
    clock,
    random,
    inFlight,
    waitMs: 0,
    heartbeatMs: claimAfterMs / 3,
    pauses: backoffs.stream,
    receive: receiverOf(options, stream, held),
    extend: (taken) => stream.extend(taken.map(({ entry }) => entry)),
    // They are this consumer's own now, and the first that it reads when it comes back.
    putBack: async () => {},
    async handle(taken, hand) {
      for (const { entry } of taken) held.add(entry.id)
      const handleAndForget = async (each: Taken): Promise<void> => {
        await inLane(lanes, each, () => handleOne(options, stream, each, hand))
        held.delete(each.entry.id)
      }
      await Promise.all(taken.map(handleAndForget))
    },
    hopeless: (error) => hopeless(options, error),
  })
}

/** What to handle next. After a failure the consumer's own entries are read again: a reply that was lost may have handed some out. */
function receiverOf(
  options: StreamConsumption,
  stream: StreamReader,
  held: ReadonlySet<string>,
): (countMax: number) => Promise<readonly Taken[]> {
  const { clock, claimAfterMs, consumer } = options
  let ownAfter: string | undefined = beginning
  let claimAtMs = clock.elapsed()
  let claimFrom = beginning
  let hasGroup = false
  const counted = async (entries: readonly StreamEntry[]): Promise<readonly Taken[]> => {
    const others = entries.filter(({ id }) => !held.has(id))
    const deliveries = await stream.deliveries(others)
    return others.map((entry, index) => ({ entry, delivery: deliveries[index] }))
  }
  const drop = async (trimmed: readonly string[]): Promise<void> => {
    if (trimmed.length === 0) return
    publish('messages-trimmed', undefined, { broker: 'redis-streams', consumer, count: trimmed.length })
    await Promise.all(trimmed.map((id) => stream.acknowledge(id)))
  }
  const receiveOwn = async (after: string, countMax: number): Promise<readonly Taken[]> => {
    const pending = await stream.own(after, countMax)
    await drop(pending.flatMap(({ id, fields }) => (fields === undefined ? [id] : [])))
    const taken = await counted(pending.filter((entry): entry is StreamEntry => entry.fields !== undefined))
    ownAfter = pending.at(-1)?.id
    return taken
  }
  const receive = async (countMax: number): Promise<readonly Taken[]> => {
    if (!hasGroup) await stream.createGroup()
    hasGroup = true
    while (ownAfter !== undefined) {
      const own = await receiveOwn(ownAfter, countMax)
      if (own.length > 0) return own
    }
    if (clock.elapsed() >= claimAtMs) {
      const { entries, trimmed, next } = await stream.claim(claimAfterMs, claimFrom, countMax)
      claimFrom = next
      if (next === beginning) claimAtMs = clock.elapsed() + claimAfterMs / 3
      await drop(trimmed)
      const taken = await counted(entries)
      if (taken.length > 0) return taken
    }
    return (await stream.fresh(countMax)).map((entry) => ({ entry, delivery: 1 }))
  }
  return async (countMax) => {
    try {
      return await receive(countMax)
    } catch (error) {
      ownAfter = beginning
      hasGroup = codeOf(error) !== 'NOGROUP' && hasGroup
      throw error
    }
  }
}

/** Behind the one before it of the same key. An entry without a key waits for none. */
function inLane(lanes: Map<string, Promise<void>>, { entry }: Taken, handle: () => Promise<void>): Promise<void> {
  const key = entry.fields['key']?.toString()
  if (key === undefined) return handle()
  const mine: Promise<void> = (lanes.get(key) ?? Promise.resolve()).then(handle).finally(() => {
    if (lanes.get(key) === mine) lanes.delete(key)
  })
  lanes.set(key, mine)
  return mine
}

/** Until it is done. When the consumer is stopped, what has not begun, or waits for its next try, stays with this consumer's entries. */
async function handleOne(
  options: StreamConsumption,
  stream: StreamReader,
  taken: Taken,
  { stopping, letGo }: Hand<Taken>,
): Promise<void> {
  const message = messageOf(taken.entry, options.stream, taken.delivery)
  while (!stopping.aborted) {
    const delivered = await options.deliver(message, () => stream.acknowledge(taken.entry.id))
    if (delivered.acknowledged) break
    await sleep(options.clock, delivered.retryAfterMs, { signal: stopping })
  }
  letGo(taken)
}

/** No retry cures these: another type of value has the stream's name, or this user may not read it. */
function hopeless({ stream, group, consumer }: StreamConsumption, error: unknown): Error | undefined {
  if (!['WRONGTYPE', 'NOPERM', 'NOAUTH', 'WRONGPASS'].includes(codeOf(error) ?? '')) return undefined
  return new Error(
    `redisStreamConsumer: ${consumer} cannot read ${stream} as ${group} (${(error as Error).message}). ` +
      'Check the name of the stream and the rights of the user.',
    { cause: error },
  )
}
