// Messages that are in hand at once as one batch of the inbox, for a consumer that hands over each by itself. Invariants: of one key one
// message is in a batch, because the consumer hands over the next when the one before is done; each message has its own end; and each is
// acknowledged once, after the commit.

import { backoffs } from '../core/backoff.ts'
import { lane } from '../core/lane.ts'
import type { BatchHandler, Delivered, Message, Receiver } from './broker.ts'

interface HandedOver {
  readonly message: Message
  acknowledge(): Promise<void>
}

/** What is handed over while a batch is being handled is the next one. */
export function together<Tx>(inbox: Receiver<Tx>, handler: BatchHandler<Tx>, batchMax: number): Receiver<Tx> {
  const deliver = lane<HandedOver, Delivered>({
    batchMax,
    dispatchesMax: 1,
    async dispatch(given) {
      const lost = new Map<number, unknown>()
      const acknowledge = async (positions: readonly number[]): Promise<void> => {
        const told = await Promise.allSettled(positions.map((position) => given[position]!.acknowledge()))
        told.forEach((each, index) => each.status === 'rejected' && lost.set(positions[index]!, each.reason))
      }
      const messages = given.map(({ message }) => message)
      const delivered = await inbox.deliverBatch(messages, handler, acknowledge)
      // One whose acknowledgement was lost comes again, and the inbox knows it. The others are done with.
      return delivered.map((each, position) =>
        lost.has(position)
          ? { acknowledged: false, retryAfterMs: backoffs.message.firstMs, error: lost.get(position) }
          : each,
      )
    },
  })
  return { ...inbox, deliver: (message, _handler, acknowledge) => deliver({ message, acknowledge }) }
}
