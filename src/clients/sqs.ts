// The slice of the AWS SDK that the consumer and the publisher of SQS use: its `SQS`, which is an SQSClient with the operations as
// methods. A plain SQSClient takes objects of the SDK's command classes, and this package imports no driver to make them with.

export interface SqsAttributeValue {
  readonly DataType: string | undefined
  readonly StringValue?: string | undefined
  readonly BinaryValue?: Uint8Array | undefined
}

/** A message as the SDK gives it to a consumer. */
export interface SqsReceived {
  readonly MessageId?: string | undefined
  readonly ReceiptHandle?: string | undefined
  readonly Body?: string | undefined
  /** SentTimestamp, ApproximateReceiveCount, MessageGroupId, MessageDeduplicationId, … */
  readonly Attributes?: Readonly<Partial<Record<string, string>>> | undefined
  readonly MessageAttributes?: Readonly<Record<string, SqsAttributeValue>> | undefined
}

export interface SqsEntryToSend {
  readonly Id: string
  readonly MessageBody: string
  readonly MessageAttributes: Record<string, { readonly DataType: 'String'; readonly StringValue: string }>
  readonly MessageGroupId?: string
  readonly MessageDeduplicationId?: string
}

export interface SqsFailedEntry {
  readonly Id: string | undefined
  readonly Code: string | undefined
  readonly Message?: string | undefined
  readonly SenderFault: boolean | undefined
}

/** What a batch request returns: HTTP says success even when entries failed. */
export interface SqsBatchResult {
  readonly Successful?: readonly { readonly Id: string | undefined }[] | undefined
  readonly Failed?: readonly SqsFailedEntry[] | undefined
}

export interface SqsCallOptions {
  readonly abortSignal: AbortSignal
}

/** `new SQS({ region })` of @aws-sdk/client-sqs, 3.600 or later (the first to take MessageSystemAttributeNames). */
export interface SqsClient {
  receiveMessage(
    input: {
      QueueUrl: string
      MaxNumberOfMessages: number
      WaitTimeSeconds: number
      VisibilityTimeout: number
      MessageSystemAttributeNames: 'All'[]
      MessageAttributeNames: string[]
    },
    options?: SqsCallOptions,
  ): Promise<{ readonly Messages?: readonly SqsReceived[] | undefined }>
  deleteMessageBatch(
    input: { QueueUrl: string; Entries: { Id: string; ReceiptHandle: string }[] },
    options?: SqsCallOptions,
  ): Promise<SqsBatchResult>
  changeMessageVisibilityBatch(
    input: { QueueUrl: string; Entries: { Id: string; ReceiptHandle: string; VisibilityTimeout: number }[] },
    options?: SqsCallOptions,
  ): Promise<SqsBatchResult>
  sendMessageBatch(
    input: { QueueUrl: string; Entries: SqsEntryToSend[] },
    options?: SqsCallOptions,
  ): Promise<SqsBatchResult>
}

/** Entries that one batch request takes at the most. */
export const sqsBatchMax = 10

/** What one batch request may hold of bodies and attributes, and so one message, too. */
export const sqsBytesMax = 1_048_576
