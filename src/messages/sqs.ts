// SQS: consumers for an inbox, a handler for Lambda, and the publisher of a relay, on the `SQS` of @aws-sdk/client-sqs.
//
// What it cannot promise: SQS delivers at least once, and a standard queue in any order. A message that a sender sends twice has two ids
// of SQS. So the id that counts is the sender's: `ce-id`, or the deduplication id of a FIFO queue, and the inbox judges.
//
// How it keeps the invariants, and what that costs:
// - a message in hand is hidden again at a third of visibilityMs. A process that stands still longer than that loses the message to
//   another consumer, and both may handle it: the inbox lets one of them through.
// - a FIFO queue keeps a group's order as long as every one of its messages is done before the next begins. So a group is handled one
//   by one, a failure gives the rest of the group back, and a batch has one message of each group.

import { systemClock, systemRandom } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import {
  aFunction,
  aString,
  checkOptions,
  optional,
  positiveInteger,
  positiveMs,
  withMethods,
} from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import { invalidArgument, OnceError } from '../core/errors.ts'
import type { SqsClient } from '../clients/sqs.ts'
import type { BatchHandler, Consuming, MessageHandler, Publisher, Receiver } from './broker.ts'
import { startConsumer } from './sqs/consumer.ts'
import type { Consumption } from './sqs/consumer.ts'
import { answerEvent } from './sqs/lambda.ts'
import type { SqsBatchResponse, SqsEvent } from './sqs/lambda.ts'
import type { SqsMessage } from './sqs/message.ts'
import { publishAll } from './sqs/publisher.ts'

export type { SqsClient, SqsReceived } from '../clients/sqs.ts'
export type { Consuming, Message, Outgoing, Publisher, Receiver } from './broker.ts'
export type { SqsBatchResponse, SqsEvent, SqsEventRecord } from './sqs/lambda.ts'
export type { SqsMessage } from './sqs/message.ts'

export interface SqsConsumerOptions<Tx> {
  /** `new SQS({ region })`. It stays yours to destroy. */
  readonly client: SqsClient
  readonly queueUrl: string
  readonly inbox: Receiver<Tx>
  /** Messages that this consumer has in hand at once, at most. Default 10. */
  readonly inFlight?: number
  /** How long SQS keeps a message from others. It is extended while the handler runs. Default 30 s. */
  readonly visibilityMs?: number
  /** How long SQS may wait for a message before it answers that there is none, at most 20 s. Default 5 s. `stop` waits as long. */
  readonly waitMs?: number
  /** The bound on any one call, beyond `waitMs`. Default 10 s. */
  readonly timeoutMs?: number
  readonly clock?: Clock
}

export interface SqsPublisherOptions {
  /** `new SQS({ region })`. It stays yours to destroy. */
  readonly client: SqsClient
  /** Where every message goes, whatever its topic. */
  readonly queueUrl?: string
  /** Where the messages of a topic go. */
  readonly queueUrlOf?: (topic: string) => string
  /** The bound on any one call. Default 10 s. */
  readonly timeoutMs?: number
  readonly clock?: Clock
}

/** SQS takes up to 20 s. */
const longPoll: Rule = (value) =>
  Number.isSafeInteger(value) && (value as number) >= 0 && (value as number) <= 20_000
    ? undefined
    : 'an integer of milliseconds from 0 to 20000'

/** SQS counts in seconds, up to twelve hours. */
const visibility: Rule = (value) =>
  Number.isSafeInteger(value) && (value as number) >= 1_000 && (value as number) <= 43_200_000
    ? undefined
    : 'an integer of milliseconds from 1000 to 43200000'

const receiver = withMethods('deliver', 'deliverBatch')
const clockRule = optional(withMethods('now', 'elapsed', 'schedule'))
const client = withMethods('receiveMessage', 'deleteMessageBatch', 'changeMessageVisibilityBatch', 'sendMessageBatch')

const consumerRules = {
  client,
  queueUrl: aString,
  inbox: receiver,
  inFlight: optional(positiveInteger),
  visibilityMs: optional(visibility),
  waitMs: optional(longPoll),
  timeoutMs: optional(positiveMs),
  clock: clockRule,
}

const publisherRules = {
  client,
  queueUrl: optional(aString),
  queueUrlOf: optional(aFunction),
  timeoutMs: optional(positiveMs),
  clock: clockRule,
}

/**
 * Receives from a queue and gives each message to the inbox, up to `inFlight` at once. On a FIFO queue the messages of a group are
 * handled one after another.
 *
 * @example
 * import { SQS } from '@aws-sdk/client-sqs'
 * import { sqsConsumer, type Receiver } from 'onceonly/sqs'
 *
 * declare const inbox: Receiver<{ query(sql: string, values: unknown[]): Promise<unknown> }>
 * const client = new SQS({ region: 'eu-central-1' })
 * const queueUrl = 'https://sqs.eu-central-1.amazonaws.com/123456789012/orders'
 * const consuming = sqsConsumer({ client, queueUrl, inbox }, async (tx, message) => {
 *   await tx.query('insert into shipments (order_id) values ($1)', [message.key])
 * })
 * process.on('SIGTERM', () => void consuming.stop())
 * await consuming.ended
 */
export function sqsConsumer<Tx>(options: SqsConsumerOptions<Tx>, handler: MessageHandler<Tx, SqsMessage>): Consuming {
  checkOptions('sqsConsumer', options, consumerRules)
  const handle = asHandler('sqsConsumer', handler) as MessageHandler<Tx>
  return startConsumer({
    ...settingsOf(options),
    together: false,
    async deliver([message], acknowledge) {
      return [await options.inbox.deliver(message!, handle, () => acknowledge([0]))]
    },
  })
}

/**
 * Receives from a queue and gives what came together, up to ten messages, to the inbox as one batch, with one transaction. On a FIFO
 * queue a batch has one message of each group.
 *
 * @example
 * import { SQS } from '@aws-sdk/client-sqs'
 * import { sqsBatchConsumer, type Receiver } from 'onceonly/sqs'
 *
 * declare const inbox: Receiver<{ query(sql: string, values: unknown[]): Promise<unknown> }>
 * const client = new SQS({ region: 'eu-central-1' })
 * const queueUrl = 'https://sqs.eu-central-1.amazonaws.com/123456789012/orders'
 * const consuming = sqsBatchConsumer({ client, queueUrl, inbox }, async (tx, fresh) => {
 *   await tx.query('insert into shipments (order_id) select unnest($1::text[])', [fresh.map(({ key }) => key)])
 * })
 */
export function sqsBatchConsumer<Tx>(
  options: SqsConsumerOptions<Tx>,
  handler: BatchHandler<Tx, SqsMessage>,
): Consuming {
  checkOptions('sqsBatchConsumer', options, consumerRules)
  const handle = asHandler('sqsBatchConsumer', handler) as BatchHandler<Tx>
  return startConsumer({
    ...settingsOf(options),
    together: true,
    deliver: (messages, acknowledge) => options.inbox.deliverBatch(messages, handle, acknowledge),
  })
}

/**
 * The handler of a Lambda function that SQS calls: gives the messages of an event to the inbox, and returns those that are to come again.
 * The event source needs `ReportBatchItemFailures`, or a failure is taken for success.
 *
 * @example
 * import { sqsEventHandler, type Receiver } from 'onceonly/sqs'
 *
 * declare const inbox: Receiver<{ query(sql: string, values: unknown[]): Promise<unknown> }>
 * export const handler = sqsEventHandler({ inbox }, async (tx, fresh) => {
 *   await tx.query('insert into shipments (order_id) select unnest($1::text[])', [fresh.map(({ key }) => key)])
 * })
 */
export function sqsEventHandler<Tx>(
  options: { readonly inbox: Receiver<Tx> },
  handler: BatchHandler<Tx, SqsMessage>,
): (event: SqsEvent) => Promise<SqsBatchResponse> {
  checkOptions('sqsEventHandler', options, { inbox: receiver })
  if (options.inbox.delivery === 'at-most-once') {
    throw new OnceError('UNSUPPORTED', {
      message:
        `sqsEventHandler: the inbox ${options.inbox.consumer} delivers at most once, and Lambda cannot: it deletes a message after the function ` +
        'has returned, so a function that dies gets the message again. Use sqsConsumer, or another delivery.',
    })
  }
  const handle = asHandler('sqsEventHandler', handler) as BatchHandler<Tx>
  return (event) => answerEvent(options.inbox, event, handle)
}

/**
 * Publishes what a relay has to queues. On a FIFO queue the key is the message group and the id the deduplication id. A standard queue
 * keeps no order.
 *
 * @example
 * import { SQS } from '@aws-sdk/client-sqs'
 * import { sqsPublisher } from 'onceonly/sqs'
 *
 * const client = new SQS({ region: 'eu-central-1' })
 * const account = 'https://sqs.eu-central-1.amazonaws.com/123456789012'
 * const publisher = sqsPublisher({ client, queueUrlOf: (topic) => `${account}/${topic}.fifo` })
 */
export function sqsPublisher(options: SqsPublisherOptions): Publisher {
  checkOptions('sqsPublisher', options, publisherRules)
  const { queueUrl, queueUrlOf } = options
  if ((queueUrl === undefined) === (queueUrlOf === undefined)) {
    throw invalidArgument('sqsPublisher: expected either queueUrl or queueUrlOf, got both or neither')
  }
  const to = {
    client: options.client,
    queueUrlOf: queueUrlOf ?? (() => queueUrl!),
    timeoutMs: options.timeoutMs ?? timeoutMsUsual,
    clock: options.clock ?? systemClock,
  }
  return { name: 'sqs', publish: (messages) => publishAll(to, messages) }
}

// The SDK tries three times by itself, and each try has its own connection.
const timeoutMsUsual = 10_000

function settingsOf<Tx>(options: SqsConsumerOptions<Tx>): Omit<Consumption, 'together' | 'deliver'> {
  return {
    client: options.client,
    queueUrl: options.queueUrl,
    inFlight: options.inFlight ?? 10,
    visibilityMs: options.visibilityMs ?? 30_000,
    waitMs: options.waitMs ?? 5_000,
    timeoutMs: options.timeoutMs ?? timeoutMsUsual,
    clock: options.clock ?? systemClock,
    random: systemRandom,
    consumer: options.inbox.consumer,
  }
}

// The inbox knows no broker. It hands on the messages that this file gave it, whose `raw` is what the handler expects.
function asHandler(who: string, handler: unknown): unknown {
  const expected = aFunction(handler)
  if (expected !== undefined) throw invalidArgument(`${who}: expected the handler to be ${expected}`)
  return handler
}
