// The smallest honest receiver, for the tests of a broker's file: it remembers in memory which messages are done. `effects` is what
// its handlers wrote, in their order, and has no constraint: an effect that ran twice is there twice.

import type { BatchHandler, Delivered, Message, MessageHandler, Receiver } from '../../src/messages/broker.ts'

export interface Remembering extends Receiver<string[]> {
  readonly effects: string[]
  /** Every message that was handed over, duplicates included. */
  readonly seen: Message[]
}

export function rememberingReceiver(retryAfterMs = 0): Remembering {
  const effects: string[] = []
  const seen: Message[] = []
  const states = new Map<string, 'running' | 'done'>()
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
        await handler(written, message)
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

  async function deliverBatch(
    messages: readonly Message[],
    handler: BatchHandler<string[]>,
    acknowledge: (positions: readonly number[]) => Promise<void>,
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

  return { consumer: 'remembering', effects, seen, deliver, deliverBatch }
}
