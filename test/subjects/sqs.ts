// Queues of a real server for the tests of SQS, under random names.
import { randomBytes } from 'node:crypto'
import { SQS } from '@aws-sdk/client-sqs'

export function connectSqs(endpoint: string): SQS {
  // One attempt: our own code repeats, and a test would otherwise wait for the pauses of both.
  const credentials = { accessKeyId: 'onceonly', secretAccessKey: 'onceonly' }
  return new SQS({ endpoint, region: 'local', credentials, maxAttempts: 1 })
}

export async function createQueue(client: SQS, attributes: Record<string, string> = {}): Promise<string> {
  const fifo = attributes['FifoQueue'] === 'true' ? '.fifo' : ''
  const name = `onceonly-${randomBytes(6).toString('hex')}${fifo}`
  const { QueueUrl } = await client.createQueue({ QueueName: name, Attributes: attributes })
  return QueueUrl!
}

/** Messages that nobody has, and messages that a consumer has. */
export async function countIn(client: SQS, QueueUrl: string): Promise<{ visible: number; hidden: number }> {
  const { Attributes } = await client.getQueueAttributes({ QueueUrl, AttributeNames: ['All'] })
  return {
    visible: Number(Attributes?.ApproximateNumberOfMessages),
    hidden: Number(Attributes?.ApproximateNumberOfMessagesNotVisible),
  }
}
