// Acknowledge first, handle later: a verified event is stored as an operation, which is the queue, and then its sender is told so. This
// process begins it at once, and a worker of any process goes on with what one that died or failed has left. The inbox still decides: it
// marks, counts and parks as it does without a queue, so that an event has one effect however it came in.

import { OnceError } from '../../core/errors.ts'
import type { OnceRunner } from '../../core/once.ts'
import type { Operations, Recovery, RecoveryOptions } from '../../core/operations.ts'
import type { Handled } from '../../messages/inbox.ts'
import type { ReceivedMessage } from './message.ts'

export interface WebhookQueue {
  /** Resolves when the event is stored. A second one of its id is the first one, whatever its body. */
  put(message: ReceivedMessage): Promise<void>
  work(options?: RecoveryOptions): Recovery
}

export interface QueueOptions {
  readonly consumer: string
  readonly windowMs: number
  readonly attemptMs: number
  /** Rejects when the event must be tried again. */
  handle(message: ReceivedMessage): Promise<Handled>
}

/** What an operation keeps of an event, as JSON. */
interface QueuedWebhook extends Omit<ReceivedMessage, 'body' | 'raw'> {
  readonly body: string
}

// The inbox parks an event after its own attempts. This only bounds an outage: with 5 minutes between the attempts it is 3 days.
const attemptsMax = 1_000

export function webhookQueue(once: OnceRunner, options: QueueOptions): WebhookQueue {
  const operations = once as unknown as Operations<unknown>
  if (typeof operations.operation !== 'function') {
    throw new OnceError('UNSUPPORTED', {
      message:
        `createWebhookReceiver: acknowledge 'when-queued' needs a store with operations (postgres, mysql, sqlite, memory), ` +
        `and this one is ${once.store.name}. Use 'after-effect'.`,
    })
  }
  const { consumer, windowMs, attemptMs, handle } = options
  const operation = operations.operation(
    `webhooks.${consumer}`,
    // The deadline of the inbox comes first: it rolls back what the handler wrote.
    { keepMs: windowMs, attempts: attemptsMax, attemptMs: 2 * attemptMs },
    async (op, { body, ...queued }: QueuedWebhook) => {
      const message = { ...queued, body: new Uint8Array(Buffer.from(body, 'base64')), raw: undefined }
      return await op.step('handle', async () => ({ ...(await handle(message)) }))
    },
  )
  return {
    async put(message) {
      const queued = { ...message, raw: undefined, body: Buffer.from(message.body).toString('base64') }
      try {
        await operation.start(message.id, queued)
      } catch (error) {
        if (!(error instanceof OnceError && error.code === 'MISMATCH')) throw error
      }
    },
    work: (given) => operations.recover([operation], given),
  }
}
