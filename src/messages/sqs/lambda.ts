// SQS through Lambda: the service receives and deletes, and the function says which messages are to come again. A message is deleted
// after the function has returned, so the inbox's acknowledgement is the answer.

import type { SqsReceived } from '../../clients/sqs.ts'
import type { BatchHandler, Receiver } from '../broker.ts'
import { inRounds, lanesOf } from './lanes.ts'
import { isFifo, messageOf, queueNameOf } from './message.ts'

/** What Lambda gives to a function: the SQSEvent of its types. */
export interface SqsEvent {
  readonly Records: readonly SqsEventRecord[]
}

export interface SqsEventRecord {
  readonly messageId: string
  readonly receiptHandle: string
  readonly body: string
  readonly attributes: {
    readonly SentTimestamp: string
    readonly ApproximateReceiveCount: string
    readonly MessageGroupId?: string | undefined
    readonly MessageDeduplicationId?: string | undefined
  }
  readonly messageAttributes: Readonly<
    Record<string, { readonly dataType: string; readonly stringValue?: string | undefined }>
  >
  readonly eventSourceARN: string
}

/** What Lambda expects with ReportBatchItemFailures: the messages that are to come again. */
export interface SqsBatchResponse {
  batchItemFailures: { itemIdentifier: string }[]
}

/** Of a FIFO queue, all that follow a failure in its group come again, too: one that is deleted now would overtake it. */
export async function answerEvent<Tx>(
  inbox: Receiver<Tx>,
  { Records }: SqsEvent,
  handler: BatchHandler<Tx>,
): Promise<SqsBatchResponse> {
  const open = new Set(Records.keys())
  const groupOf = ({ eventSourceARN, attributes }: SqsEventRecord): string | undefined =>
    isFifo(eventSourceARN) ? attributes.MessageGroupId : undefined
  await inRounds(lanesOf(Records, groupOf), async (positions) => {
    const messages = positions.map((position) => {
      const record = Records[position]!
      return messageOf(receivedIn(record), queueNameOf(record.eventSourceARN))
    })
    const delivered = await inbox.deliverBatch(messages, handler, async () => {})
    delivered.forEach(({ acknowledged }, at) => acknowledged && open.delete(positions[at]!))
    return delivered.map(({ acknowledged }) => acknowledged)
  })
  return { batchItemFailures: Array.from(open, (position) => ({ itemIdentifier: Records[position]!.messageId })) }
}

function receivedIn({ messageId, receiptHandle, body, attributes, messageAttributes }: SqsEventRecord): SqsReceived {
  return {
    MessageId: messageId,
    ReceiptHandle: receiptHandle,
    Body: body,
    Attributes: { ...attributes },
    MessageAttributes: Object.fromEntries(
      Object.entries(messageAttributes).map(([name, { dataType, stringValue }]) => [
        name,
        { DataType: dataType, StringValue: stringValue },
      ]),
    ),
  }
}
