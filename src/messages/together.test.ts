// Batches without a broker: what is handed over at once is one batch, and each message has its own end.

import { expect, test } from 'vitest'
import type { Message, Receiver } from './broker.ts'
import { together } from './together.ts'

const message = (id: string): Message => ({ id, topic: 'orders', headers: {}, body: new Uint8Array(), raw: undefined })

test('what is handed over at once is one batch, and a lost acknowledgement is no other message’s', async () => {
  const told: string[] = []
  const inbox: Receiver<undefined> = {
    consumer: 'mailer',
    deliver: () => Promise.reject(new Error('one by one')),
    async deliverBatch(messages, handler, acknowledge) {
      await handler(undefined, messages)
      await acknowledge([...messages.keys()])
      return messages.map(() => ({ acknowledged: true }))
    },
  }
  const batching = together(inbox, (_tx, fresh) => void told.push(fresh.map(({ id }) => id).join(' ')), 3)
  const hand = (id: string): ReturnType<typeof inbox.deliver> =>
    batching.deliver(
      message(id),
      () => {},
      async () => {
        told.push(`acknowledge ${id}`)
        if (id === 'b') throw new Error('the connection was lost')
      },
    )
  const ends = await Promise.all(['a', 'b', 'c', 'd'].map(hand))
  expect(told).toEqual(['a b c', 'acknowledge a', 'acknowledge b', 'acknowledge c', 'd', 'acknowledge d'])
  expect(ends.map(({ acknowledged }) => acknowledged)).toEqual([true, false, true, true])
})
