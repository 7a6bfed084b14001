// The smallest honest inbox, in memory, for tests of what stands between a broker and an inbox. The mark and the effect are made in
// one step after the handler has returned. The ledger has no constraints: an effect that took place twice is in it twice.
import type { Delivered, Message, MessageHandler, Receiver } from '../../src/messages/broker.ts'

export interface Writing {
  // Takes place when the handler returns, and not at all when it throws.
  write(effect: string): void
}

export interface RememberingInbox extends Receiver<Writing> {
  readonly effects: readonly string[]
  // Deliveries of messages, duplicates included.
  readonly deliveries: readonly string[]
  // Handlers that run now, and the most that ever did.
  readonly running: number
  readonly runningMax: number
}

export function rememberingInbox({ retryAfterMs = 20 }: { retryAfterMs?: number } = {}): RememberingInbox {
  const effects: string[] = []
  const deliveries: string[] = []
  const marks = new Set<string>()
  const busy = new Set<string>()
  let runningMax = 0

  const run = async (message: Message, handler: MessageHandler<Writing>): Promise<void> => {
    const { id } = message
    if (id === undefined) throw new Error('expected a message with an id')
    if (marks.has(id)) return
    if (busy.has(id)) throw new Error(`${id} is being handled`)
    busy.add(id)
    runningMax = Math.max(runningMax, busy.size)
    const written: string[] = []
    try {
      await handler({ write: (effect) => void written.push(effect) }, message)
      marks.add(id)
      effects.push(...written)
    } finally {
      busy.delete(id)
    }
  }
  const deliver = async (
    message: Message,
    handler: MessageHandler<Writing>,
    acknowledge: () => Promise<void>,
  ): Promise<Delivered> => {
    deliveries.push(message.id ?? '')
    try {
      await run(message, handler)
      await acknowledge()
      return { acknowledged: true }
    } catch (error) {
      return { acknowledged: false, retryAfterMs, error }
    }
  }
  return {
    consumer: 'test',
    effects,
    deliveries,
    get running() {
      return busy.size
    },
    get runningMax() {
      return runningMax
    },
    deliver,
    deliverBatch: (messages, handler, acknowledge) =>
      Promise.all(
        messages.map((message, at) =>
          deliver(
            message,
            (tx) => handler(tx, [message]),
            () => acknowledge([at]),
          ),
        ),
      ),
  }
}
