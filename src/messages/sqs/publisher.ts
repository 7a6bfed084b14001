// The way out to SQS: batches of up to ten messages and 1 MiB. On a FIFO queue a batch has one message of each key at most, as SQS may
// refuse an entry of a batch and take the one after it.

import { sqsBatchMax, sqsBytesMax } from '../../clients/sqs.ts'
import type { SqsClient, SqsEntryToSend } from '../../clients/sqs.ts'
import type { Clock } from '../../core/clock.ts'
import { NotSentError } from '../broker.ts'
import type { Outgoing, Published } from '../broker.ts'
import { asError } from '../failures.ts'
import { inRounds, lanesOf } from './lanes.ts'
import { bytesOf, entryOf, isFifo } from './message.ts'
import { answerWithin, failuresIn } from './requests.ts'

export interface Publication {
  readonly client: SqsClient
  readonly queueUrlOf: (topic: string) => string
  readonly timeoutMs: number
  readonly clock: Clock
}

interface ToSend {
  readonly position: number
  readonly queueUrl: string
  readonly entry: SqsEntryToSend
  readonly bytes: number
}

export async function publishAll(to: Publication, messages: readonly Outgoing[]): Promise<readonly Published[]> {
  const published: Published[] = messages.map(({ id }) => new NotSentError(`message ${id} was not sent`))
  const urls = messages.map(({ topic }) => queueUrlOr(to, topic))
  const laneNames = messages.map(({ key }, position) => {
    const url = urls[position]!
    return key !== undefined && typeof url === 'string' && isFifo(url) ? JSON.stringify([url, key]) : undefined
  })
  const lanes = lanesOf(laneNames, (name) => name)
  await inRounds(lanes, async (positions) => {
    const entries = positions.flatMap((position) => {
      const url = urls[position]!
      if (typeof url === 'string') return [toSend(messages[position]!, position, url)]
      published[position] = url
      return []
    })
    await Promise.all(batchesOf(entries).map((batch) => sendBatch(to, batch, published)))
    return positions.map((position) => published[position] === undefined)
  })
  for (const lane of lanes) nameTheFirst(lane, messages, published)
  return published
}

/** A topic that has no queue fails its own messages, and no others. */
function queueUrlOr(to: Publication, topic: string): string | Error {
  try {
    return to.queueUrlOf(topic)
  } catch (error) {
    return asError(error)
  }
}

function toSend(message: Outgoing, position: number, queueUrl: string): ToSend {
  const entry = entryOf(message, String(position), queueUrl)
  return { position, queueUrl, entry, bytes: bytesOf(entry) }
}

function batchesOf(entries: readonly ToSend[]): ToSend[][] {
  const batches: ToSend[][] = []
  const open = new Map<string, { batch: ToSend[]; bytes: number }>()
  for (const each of entries) {
    const current = open.get(each.queueUrl)
    if (current && current.batch.length < sqsBatchMax && current.bytes + each.bytes <= sqsBytesMax) {
      current.batch.push(each)
      current.bytes += each.bytes
      continue
    }
    const batch = [each]
    batches.push(batch)
    open.set(each.queueUrl, { batch, bytes: each.bytes })
  }
  return batches
}

async function sendBatch(to: Publication, batch: readonly ToSend[], published: Published[]): Promise<void> {
  const { queueUrl, bytes } = batch[0]!
  // Only a message that is alone in its batch can be too large.
  if (bytes > sqsBytesMax) return refuse(batch[0]!, published)
  try {
    const Entries = batch.map(({ entry }) => entry)
    const result = await answerWithin({ clock: to.clock, limitMs: to.timeoutMs }, (options) =>
      to.client.sendMessageBatch({ QueueUrl: queueUrl, Entries }, options),
    )
    const failures = failuresIn(result, Entries)
    batch.forEach(({ position }, index) => (published[position] = failures[index]))
  } catch (error) {
    for (const { position } of batch) published[position] = asError(error)
  }
}

function refuse({ position, bytes, entry }: ToSend, published: Published[]): void {
  published[position] = new Error(
    `message ${entry.MessageAttributes['ce-id']?.StringValue} has ${bytes} bytes with its attributes, and SQS takes ${sqsBytesMax}. ` +
      'Put its body elsewhere and send a reference.',
  )
}

/** Those behind a message that failed say which one it was. */
function nameTheFirst(lane: readonly number[], messages: readonly Outgoing[], published: Published[]): void {
  const at = lane.findIndex((position) => published[position] !== undefined)
  for (const later of at === -1 ? [] : lane.slice(at + 1)) {
    const first = lane[at]!
    published[later] = new NotSentError(
      `message ${messages[later]!.id} was not sent: ${messages[first]!.id} before it failed, ${published[first]!.message}`,
    )
  }
}
