// The smallest honest receiver, for the tests of a broker's file: it remembers in memory which messages are done. `effects` is what
// its handlers wrote, in their order, and has no constraint: an effect that ran twice is there twice.

import type { Delivered, Message, MessageHandler, Receiver } from '../../src/messages/broker.ts'

export interface Remembering extends Receiver<string[]> {
  readonly effects: string[]
  /** Every message that was handed over, duplicates included. */
  readonly seen: Message[]
  /** Their ids. */
  readonly deliveries: readonly string[]
  /** Handlers that run now, and the most that ever ran at once. */
  readonly running: number
  readonly runningMax: number
}

export function rememberingReceiver(retryAfterMs = 0): Remembering {
  const effects: string[] = []
  const seen: Message[] = []
  const states = new Map<string, 'running' | 'done'>()
  let running = 0
  let runningMax = 0
  const refused = (error: unknown): Delivered => ({ acknowledged: false, retryAfterMs, error })

  async function deliver(
    message: Message,
    handler: MessageHandler<string[]>,
    acknowledge: () => Promise<void>,
  ): Promise<Delivered> {
    seen.push(message)
    const id = message.id ?? ''
    if (states.get(id) === 'running') return refused(new Error(`${id} is being handled`))
    try {
      if (!states.has(id)) {
        states.set(id, 'running')
        const written: string[] = []
        runningMax = Math.max(runningMax, ++running)
        try {
          await handler(written, message)
        } finally {
          running -= 1
        }
        effects.push(...written)
        states.set(id, 'done')
      }
      await acknowledge()
      return { acknowledged: true }
    } catch (error) {
      if (states.get(id) === 'running') states.delete(id)
      return refused(error)
    }
  }

  return {
    consumer: 'remembering',
    effects,
    seen,
    get deliveries() {
      return seen.map(({ id }) => id ?? '')
    },
    get running() {
      return running
    },
    get runningMax() {
      return runningMax
    },
    deliver,
    deliverBatch: (messages, handler, acknowledge) => oneByOne(deliver, refused, messages, handler, acknowledge),
  }
}

async function oneByOne(
  deliver: Remembering['deliver'],
  refused: (error: unknown) => Delivered,
  ...[messages, handler, acknowledge]: Parameters<Remembering['deliverBatch']>
): Promise<readonly Delivered[]> {
  const done: number[] = []
  const delivered: Delivered[] = []
  for (const [position, message] of messages.entries()) {
    const one = await deliver(
      message,
      (tx, each) => handler(tx, [each]),
      async () => {},
    )
    if (one.acknowledged) done.push(position)
    delivered.push(one)
  }
  try {
    if (done.length > 0) await acknowledge(done)
    return delivered
  } catch (error) {
    return delivered.map(() => refused(error))
  }
}
