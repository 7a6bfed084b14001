// The loop of a consumer of SQS: receive, hand over, delete. Invariants: it never holds more messages than it may; every message that
// it holds is kept from other consumers by a heartbeat; and a message is either deleted after the inbox said so, or given back.

import { sqsBatchMax } from '../../clients/sqs.ts'
import type { SqsCallOptions, SqsClient, SqsReceived } from '../../clients/sqs.ts'
import { backoffMs, backoffs, pausesMs } from '../../core/backoff.ts'
import { sleep } from '../../core/clock.ts'
import type { Clock, Random } from '../../core/clock.ts'
import { publish } from '../../core/events.ts'
import type { Events } from '../../core/events.ts'
import { lane } from '../../core/lane.ts'
import type { Consuming, Delivered } from '../broker.ts'
import { inRounds, lanesOf } from './lanes.ts'
import { isFifo, messageOf, queueNameOf } from './message.ts'
import type { SqsMessage } from './message.ts'
import { answerWithin, chunksOf, failuresIn } from './requests.ts'

export interface Consumption {
  readonly client: SqsClient
  readonly queueUrl: string
  readonly inFlight: number
  readonly visibilityMs: number
  readonly waitMs: number
  readonly timeoutMs: number
  readonly clock: Clock
  readonly random: Random
  readonly consumer: string
  /** Messages that the inbox is to have together, or each by itself. */
  readonly together: boolean
  deliver(
    messages: readonly SqsMessage[],
    acknowledge: (positions: readonly number[]) => Promise<void>,
  ): Promise<readonly Delivered[]>
}

type During = Events['consumer-failed']['during']

export function startConsumer(options: Consumption): Consuming {
  const stopping = new AbortController()
  const queue = queueOf(options)
  const hands = handsOf(options, queue)
  const ended = receiveUntil(stopping.signal, options, queue, hands)
  return {
    ended,
    async stop() {
      stopping.abort()
      await ended.catch(() => {})
    },
  }
}

interface Hidden {
  readonly message: SqsReceived
  readonly forMs: number
}

/** The queue as the consumer asks it. */
interface Queue {
  receive(count: number, asking: AbortController): Promise<readonly SqsReceived[]>
  /** Rejects when the message may still be in the queue. */
  remove(message: SqsReceived): Promise<void>
  /** Others may have these messages after this time. Never throws: returns each one's error. */
  hide(messages: readonly Hidden[]): Promise<readonly (Error | undefined)[]>
  failed(during: During, error: unknown): void
}

function queueOf({ client, queueUrl, clock, timeoutMs, waitMs, visibilityMs, consumer }: Consumption): Queue {
  const ask = <T>(call: (options: SqsCallOptions) => Promise<T>): Promise<T> =>
    answerWithin({ clock, limitMs: timeoutMs }, call)
  const failed: Queue['failed'] = (during, error) =>
    publish('consumer-failed', undefined, { broker: 'sqs', consumer, during, ...causeOf(error) })
  // Deletions that come together are one request. SQS is paid by the request.
  const remove = lane<SqsReceived, Error | undefined>({
    batchMax: sqsBatchMax,
    dispatchesMax: 4,
    async dispatch(messages) {
      const Entries = messages.map((message, index) => ({ Id: `${index}`, ReceiptHandle: message.ReceiptHandle! }))
      const result = await ask((options) => client.deleteMessageBatch({ QueueUrl: queueUrl, Entries }, options))
      return failuresIn(
        result,
        Entries.map(({ Id }) => Id),
      )
    },
  })
  return {
    failed,
    async receive(count, asking) {
      const input = {
        QueueUrl: queueUrl,
        MaxNumberOfMessages: Math.min(count, sqsBatchMax),
        WaitTimeSeconds: Math.ceil(waitMs / 1_000),
        VisibilityTimeout: secondsOf(visibilityMs),
        MessageSystemAttributeNames: ['All' as const],
        MessageAttributeNames: ['All'],
      }
      const limit = { clock, limitMs: waitMs + timeoutMs, controller: asking }
      const { Messages = [] } = await answerWithin(limit, (options) => client.receiveMessage(input, options))
      return Messages
    },
    async remove(message) {
      const failure = await remove(message)
      if (failure) throw failure
    },
    async hide(messages) {
      const entries = messages.map(({ message, forMs }, index) => ({
        Id: `${index}`,
        ReceiptHandle: message.ReceiptHandle!,
        VisibilityTimeout: secondsOf(forMs),
      }))
      const hideSome = async (Entries: typeof entries): Promise<readonly (Error | undefined)[]> => {
        try {
          const result = await ask((options) =>
            client.changeMessageVisibilityBatch({ QueueUrl: queueUrl, Entries }, options),
          )
          return failuresIn(
            result,
            Entries.map(({ Id }) => Id),
          )
        } catch (error) {
          return Entries.map(() => (error instanceof Error ? error : new Error(String(error))))
        }
      }
      return (await Promise.all(chunksOf(entries, sqsBatchMax).map(hideSome))).flat()
    },
  }
}

/** Gives messages back to the queue. One that SQS does not hear of comes back by itself, when its time is over. */
async function putBack(queue: Queue, messages: readonly Hidden[]): Promise<void> {
  const failure = (await queue.hide(messages)).find((each) => each !== undefined)
  if (failure) queue.failed('return', failure)
}

/** What the consumer holds: received, and neither deleted nor given back. */
interface Hands {
  readonly free: number
  /** Resolves when there may be room. */
  room(): Promise<void>
  take(received: readonly SqsReceived[]): void
  /** Resolves when all is done with. */
  empty(): Promise<void>
}

function handsOf(options: Consumption, queue: Queue): Hands {
  const held = new Set<SqsReceived>()
  const work = new Set<Promise<void>>()
  let wake = (): void => {}
  const heartbeat = heartbeatOf(options, queue, held)
  const letGo = (message: SqsReceived): void => {
    held.delete(message)
    wake()
  }
  const giveBack = async (messages: readonly Hidden[]): Promise<void> => {
    for (const { message } of messages) letGo(message)
    // A heartbeat that is on its way would hide the message for longer than it should be.
    await heartbeat.quiet()
    await putBack(queue, messages)
  }
  const begin = (messages: readonly SqsReceived[]): void => {
    const done = handOver(options, messages, { queue, letGo, giveBack }).finally(() => work.delete(done))
    work.add(done)
  }
  return {
    get free() {
      return options.inFlight - held.size
    },
    room: () => new Promise((resolve) => (wake = resolve)),
    take(received) {
      for (const message of received) held.add(message)
      heartbeat.start()
      if (options.together) return begin(received)
      for (const positions of lanesOf(received, groupIn(options.queueUrl))) begin(positions.map((at) => received[at]!))
    },
    async empty() {
      await Promise.all(work)
      heartbeat.stop()
    },
  }
}

const groupIn =
  (queueUrl: string) =>
  ({ Attributes }: SqsReceived): string | undefined =>
    isFifo(queueUrl) ? Attributes?.['MessageGroupId'] : undefined

interface InHand {
  readonly queue: Queue
  letGo(message: SqsReceived): void
  giveBack(messages: readonly Hidden[]): Promise<void>
}

/** Of a group that has failed, the later messages go back, too: SQS hands out none of them before the one that failed. */
async function handOver(options: Consumption, received: readonly SqsReceived[], hand: InHand): Promise<void> {
  const topic = queueNameOf(options.queueUrl)
  const failed = new Map<number, number>()
  const left = new Set(received.keys())
  await inRounds(lanesOf(received, groupIn(options.queueUrl)), async (positions) => {
    for (const position of positions) left.delete(position)
    const acknowledge = async (done: readonly number[]): Promise<void> => {
      await Promise.all(done.map((at) => hand.queue.remove(received[positions[at]!]!)))
    }
    const messages = positions.map((position) => messageOf(received[position]!, topic))
    const delivered = await options.deliver(messages, acknowledge)
    delivered.forEach((each, at) => {
      if (each.acknowledged) hand.letGo(received[positions[at]!]!)
      else failed.set(positions[at]!, each.retryAfterMs)
    })
    return delivered.map(({ acknowledged }) => acknowledged)
  })
  // The one that failed first: from then on it keeps its group back, and the others may be seen again at once.
  await hand.giveBack(Array.from(failed, ([position, forMs]) => ({ message: received[position]!, forMs })))
  await hand.giveBack(Array.from(left, (position) => ({ message: received[position]!, forMs: 0 })))
}

interface Heartbeat {
  start(): void
  stop(): void
  /** Resolves when no heartbeat is on its way. */
  quiet(): Promise<void>
}

/** Hides what is held for another `visibilityMs`, at a third of it, so that two heartbeats may fail. */
function heartbeatOf({ clock, visibilityMs }: Consumption, queue: Queue, held: ReadonlySet<SqsReceived>): Heartbeat {
  let cancel: (() => void) | undefined
  let beating: Promise<void> = Promise.resolve()
  const extend = async (messages: readonly SqsReceived[]): Promise<void> => {
    const failures = await queue.hide(messages.map((message) => ({ message, forMs: visibilityMs })))
    // One that has been deleted meanwhile cannot be extended, and need not.
    const failure = failures.find((each, index) => each !== undefined && held.has(messages[index]!))
    if (failure) queue.failed('extend', failure)
  }
  const beat = async (): Promise<void> => {
    beating = extend([...held])
    await beating
    if (cancel) cancel = held.size > 0 ? schedule() : undefined
  }
  const schedule = (): (() => void) => clock.schedule(() => void beat(), visibilityMs / 3)
  return {
    start: () => void (cancel ??= schedule()),
    stop() {
      cancel?.()
      cancel = undefined
    },
    quiet: () => beating,
  }
}

async function receiveUntil(stop: AbortSignal, options: Consumption, queue: Queue, hands: Hands): Promise<void> {
  let failures = 0
  try {
    while (!stop.aborted) {
      if (hands.free <= 0) {
        await hands.room()
        continue
      }
      try {
        const received = await receiveOrStop(stop, options, queue, hands.free)
        failures = 0
        if (!stop.aborted) hands.take(received)
        else
          await putBack(
            queue,
            received.map((message) => ({ message, forMs: 0 })),
          )
      } catch (error) {
        if (stop.aborted) break
        queue.failed('receive', error)
        if (isHopeless(error)) throw hopeless(options, error)
        await sleep(options.clock, backoffMs(backoffs.broker, failures++, options.random), { signal: stop })
      }
    }
  } finally {
    await hands.empty()
  }
}

// A queue that has messages answers at once. To cut its answer off would hide these messages from everyone for visibilityMs.
async function receiveOrStop(
  stop: AbortSignal,
  { clock }: Consumption,
  queue: Queue,
  count: number,
): Promise<readonly SqsReceived[]> {
  const asking = new AbortController()
  let cancel = (): void => {}
  const onStop = (): void => {
    cancel = clock.schedule(() => asking.abort(), pausesMs.lastReceive)
  }
  stop.addEventListener('abort', onStop, { once: true })
  try {
    return await queue.receive(count, asking)
  } finally {
    stop.removeEventListener('abort', onStop)
    cancel()
  }
}

/** No retry cures these: the queue is not there, or this user may not read it. */
const hopelessNames = /^(QueueDoesNotExist|AWS\.SimpleQueueService\.NonExistentQueue|InvalidAddress|AccessDenied\w*)$/

function isHopeless(error: unknown): boolean {
  return error instanceof Error && hopelessNames.test(error.name)
}

function hopeless({ queueUrl, consumer }: Consumption, error: unknown): Error {
  const why = error instanceof Error ? `${error.name}: ${error.message}` : String(error)
  return new Error(
    `sqsConsumer: ${consumer} cannot receive from ${queueUrl} (${why}). Check the URL, the region and sqs:ReceiveMessage.`,
    { cause: error },
  )
}

/** The SDK's names of errors are codes. */
function causeOf(error: unknown): { cause?: string } {
  const name = error instanceof Error ? ((error as { code?: unknown }).code ?? error.name) : undefined
  return typeof name === 'string' && /^[\w.]{1,60}$/.test(name) ? { cause: name } : {}
}

const visibilitySecondsMax = 43_200

function secondsOf(ms: number): number {
  return Math.min(Math.ceil(ms / 1_000), visibilitySecondsMax)
}
