// A consumer of SQS: a message is either deleted after the inbox said so, or given back. Of a group of a FIFO queue one message after
// another is handled.
//
// While the inbox has no store, a message stays in hand, and its heartbeat goes on. To give it back would raise its receive count, and a
// redrive policy would move messages to the dead-letter queue that no handler has seen.

import { sqsBatchMax } from '../../clients/sqs.ts'
import type { SqsCallOptions, SqsClient, SqsReceived } from '../../clients/sqs.ts'
import { sleep } from '../../core/clock.ts'
import type { Clock, Random } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { lane } from '../../core/lane.ts'
import type { Consuming, Delivered } from '../broker.ts'
import { asError, reportFailed } from '../failures.ts'
import { startReceiving } from '../receiving.ts'
import type { Hand } from '../receiving.ts'
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

export function startConsumer(options: Consumption): Consuming {
  const { clock, random, inFlight, visibilityMs, consumer, queueUrl, together } = options
  const queue = queueOf(options)
  const groupOf = groupIn(queueUrl)
  let hasReceived = false
  return startReceiving({
    broker: 'sqs',
    consumer,
    clock,
    random,
    inFlight,
    // SQS counts in whole seconds.
    waitMs: secondsOf(options.waitMs) * 1_000,
    // At a third of the time, so that two heartbeats may fail.
    heartbeatMs: visibilityMs / 3,
    async receive(countMax, asking) {
      const received = await queue.receive(countMax, asking)
      hasReceived = true
      return received
    },
    extend: (messages) => queue.hide(messages.map((message) => ({ message, forMs: visibilityMs }))),
    putBack: (messages) => queue.putBack(messages.map((message) => ({ message, forMs: 0 }))),
    async handle(received, hand) {
      const parts = together
        ? [received]
        : lanesOf(received, groupOf).map((positions) => positions.map((position) => received[position]!))
      await Promise.all(parts.map((part) => handOver(options, queue, part, hand)))
    },
    // What has worked may work again: a queue that is created anew, rights that are mended.
    hopeless: (error) => (hasReceived ? undefined : hopeless(options, error)),
  })
}

interface Hidden {
  readonly message: SqsReceived
  readonly forMs: number
}

/** The queue as the consumer asks it. */
interface Queue {
  receive(countMax: number, asking: AbortController): Promise<readonly SqsReceived[]>
  /** Rejects when the message may still be in the queue. */
  remove(message: SqsReceived): Promise<void>
  /** Others may have these messages after this time. Never throws: returns each one's error. */
  hide(messages: readonly Hidden[]): Promise<readonly (Error | undefined)[]>
  /** Gives messages back. One that SQS does not hear of comes back by itself, when its time is over. */
  putBack(messages: readonly Hidden[]): Promise<void>
}

function queueOf({ client, queueUrl, clock, timeoutMs, waitMs, visibilityMs, consumer }: Consumption): Queue {
  const ask = <T>(call: (options: SqsCallOptions) => Promise<T>): Promise<T> =>
    answerWithin({ clock, limitMs: timeoutMs }, call)
  // Deletions that come together are one request. SQS is paid by the request.
  const remove = lane<SqsReceived, Error | undefined>({
    batchMax: sqsBatchMax,
    dispatchesMax: 4,
    async dispatch(messages) {
      const Entries = messages.map((message, index) => ({ Id: `${index}`, ReceiptHandle: message.ReceiptHandle! }))
      const result = await ask((options) => client.deleteMessageBatch({ QueueUrl: queueUrl, Entries }, options))
      return failuresIn(result, Entries)
    },
  })
  const hideSome = async (some: readonly Hidden[]): Promise<readonly (Error | undefined)[]> => {
    const Entries = some.map(({ message, forMs }, index) => ({
      Id: `${index}`,
      ReceiptHandle: message.ReceiptHandle!,
      VisibilityTimeout: secondsOf(forMs),
    }))
    try {
      const input = { QueueUrl: queueUrl, Entries }
      return failuresIn(await ask((options) => client.changeMessageVisibilityBatch(input, options)), Entries)
    } catch (error) {
      return some.map(() => asError(error))
    }
  }
  const hide: Queue['hide'] = async (messages) =>
    (await Promise.all(chunksOf(messages, sqsBatchMax).map(hideSome))).flat()
  return {
    hide,
    async receive(countMax, asking) {
      const input = {
        QueueUrl: queueUrl,
        MaxNumberOfMessages: Math.min(countMax, sqsBatchMax),
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
    async putBack(messages) {
      const failure = (await hide(messages)).find((each) => each !== undefined)
      if (failure) reportFailed({ broker: 'sqs', consumer }, 'return', failure)
    },
  }
}

const groupIn =
  (queueUrl: string) =>
  ({ Attributes }: SqsReceived): string | undefined =>
    isFifo(queueUrl) ? Attributes?.['MessageGroupId'] : undefined

/** Of a group that has failed, the later messages go back, too: SQS hands out none of them before the one that failed. */
async function handOver(
  options: Consumption,
  queue: Queue,
  received: readonly SqsReceived[],
  hand: Hand<SqsReceived>,
): Promise<void> {
  const topic = queueNameOf(options.queueUrl)
  const failed: Hidden[] = []
  const left = new Set(received)
  await inRounds(lanesOf(received, groupIn(options.queueUrl)), async (positions) => {
    const round = positions.map((position) => received[position]!)
    const acknowledge = async (done: readonly number[]): Promise<void> => {
      await Promise.all(done.map((at) => queue.remove(round[at]!)))
    }
    const messages = round.map((message) => messageOf(message, topic))
    const delivered = await deliverWithStore(options, messages, acknowledge, hand.stopping)
    delivered.forEach((each, at) => {
      const message = round[at]!
      left.delete(message)
      if (each.acknowledged) hand.letGo(message)
      else failed.push({ message, forMs: each.retryAfterMs })
    })
    return delivered.map(({ acknowledged }) => acknowledged)
  })
  for (const { message } of failed) hand.letGo(message)
  for (const message of left) hand.letGo(message)
  await hand.quiet()
  // The one that failed first: from then on it keeps its group back, and the others may be seen again at once.
  await queue.putBack(failed)
  await queue.putBack(Array.from(left, (message) => ({ message, forMs: 0 })))
}

/** Again and again, with those that the inbox could not look up, until it has its store or the consumer is stopped. */
async function deliverWithStore(
  { deliver, clock }: Consumption,
  messages: readonly SqsMessage[],
  acknowledge: (positions: readonly number[]) => Promise<void>,
  stopping: AbortSignal,
): Promise<readonly Delivered[]> {
  const results = [...(await deliver(messages, acknowledge))]
  for (;;) {
    const waiting = results.flatMap((each, at) => (isStoreDown(each) ? [at] : []))
    if (waiting.length === 0) return results
    await sleep(clock, Math.max(...waiting.map((at) => retryAfterMsOf(results[at]!))), { signal: stopping })
    if (stopping.aborted) return results
    const again = await deliver(
      waiting.map((at) => messages[at]!),
      (positions) => acknowledge(positions.map((position) => waiting[position]!)),
    )
    again.forEach((each, index) => (results[waiting[index]!] = each))
  }
}

function isStoreDown(delivered: Delivered): boolean {
  if (delivered.acknowledged || !(delivered.error instanceof OnceError)) return false
  return delivered.error.code === 'STORE_UNAVAILABLE'
}

const retryAfterMsOf = (delivered: Delivered): number => (delivered.acknowledged ? 0 : delivered.retryAfterMs)

/** No retry cures these: the queue is not there, or this user may not read it. */
const hopelessNames = /^(QueueDoesNotExist|AWS\.SimpleQueueService\.NonExistentQueue|InvalidAddress|AccessDenied\w*)$/

function hopeless({ queueUrl, consumer }: Consumption, error: unknown): Error | undefined {
  if (!(error instanceof Error) || !hopelessNames.test(error.name)) return undefined
  return new Error(
    `sqsConsumer: ${consumer} cannot receive from ${queueUrl} (${error.name}: ${error.message}). ` +
      'Check the URL, the region and sqs:ReceiveMessage.',
    { cause: error },
  )
}

const visibilitySecondsMax = 43_200

function secondsOf(ms: number): number {
  return Math.min(Math.ceil(ms / 1_000), visibilitySecondsMax)
}
