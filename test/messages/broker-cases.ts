// What relay and inbox count on, whatever broker is between them. Every adapter passes these cases on its real server
// (broker-cases.test.ts), and each broken broker fails the case that is named for it (broken-brokers.test.ts).
import { setTimeout as sleep } from 'node:timers/promises'
import { expect } from 'vitest'
import type { Consuming, MessageHandler, Outgoing, Publisher, Receiver } from '../../src/messages/broker.ts'
import { pollUntil } from '../servers/poll.ts'
import { numbered, outgoing } from './outgoing.ts'
import { rememberingReceiver, type Remembering } from './remembering-receiver.ts'

export const atOnceMax = 4

/** A queue that nobody else has, with an adapter on each side. */
export interface BrokerGround {
  readonly topic: string
  readonly publisher: Publisher
  /** Handles at most `atOnceMax` messages at once. A second consumer is what a process is that is started in the place of the first. */
  consume(inbox: Receiver<string[]>, handler: MessageHandler<string[]>): Promise<Consuming>
  /** What makes a message one that the broker never takes. */
  readonly refused: Partial<Outgoing>
}

export interface BrokerCase {
  readonly name: string
  run(ground: BrokerGround): Promise<void>
}

const noteId: MessageHandler<string[]> = (tx, message) => void tx.push(message.id!)

async function send({ publisher, topic }: BrokerGround, messages: readonly Outgoing[]): Promise<void> {
  const published = await publisher.publish(messages.map((message) => ({ ...message, topic })))
  expect(published).toEqual(messages.map(() => undefined))
}

/** Consumes until these have had their effect, and stops. Returns what came. */
async function takeUntil(ground: BrokerGround, ...ids: readonly string[]): Promise<Remembering> {
  const inbox = rememberingReceiver(20)
  const consuming = await ground.consume(inbox, noteId)
  await pollUntil(`the effects of ${ids.join(', ')}`, () => ids.every((id) => inbox.effects.includes(id)))
  await consuming.stop()
  return inbox
}

export const brokerCases: readonly BrokerCase[] = [
  {
    name: 'a message arrives with its id, key, headers and bytes',
    async run(ground) {
      const headers = { 'ce-type': 'order.placed', traceparent: '00-1-2-01' }
      await send(ground, [outgoing('m0', { key: 'Müller 7', headers, body: Uint8Array.of(0, 255, 128, 10) })])
      const [message] = (await takeUntil(ground, 'm0')).seen
      expect(message).toMatchObject({ id: 'm0', key: 'Müller 7', headers })
      expect([...message!.body]).toEqual([0, 255, 128, 10])
    },
  },
  {
    name: 'messages of one key are handled in the order in which they were published, each once',
    async run(ground) {
      await send(
        ground,
        numbered(15, (n) => ({ key: `key ${n % 3}` })),
      )
      const { effects } = await takeUntil(ground, 'm12', 'm13', 'm14')
      for (const rest of [0, 1, 2]) {
        const own = effects.filter((id) => Number(id.slice(1)) % 3 === rest)
        expect(own).toEqual([0, 3, 6, 9, 12].map((n) => `m${n + rest}`))
      }
    },
  },
  {
    name: 'a message whose handler fails comes again, and no later one of its key before it',
    async run(ground) {
      await send(ground, [outgoing('m0', { key: 'a' }), outgoing('m1', { key: 'a' })])
      const inbox = rememberingReceiver(20)
      let failures = 0
      const consuming = await ground.consume(inbox, (tx, message) => {
        if (message.id === 'm0' && failures++ < 2) throw new Error('not now')
        tx.push(message.id!)
      })
      await pollUntil('both', () => inbox.deliveries.includes('m1') && inbox.effects.length > 0)
      await consuming.stop()
      expect(inbox.deliveries).toEqual(['m0', 'm0', 'm0', 'm1'])
      expect(inbox.effects).toEqual(['m0', 'm1'])
    },
  },
  {
    name: 'what a consumer could not handle before it stopped comes to the next',
    async run(ground) {
      await send(ground, [outgoing('m0', { key: 'a' }), outgoing('m1', { key: 'a' })])
      const failing = rememberingReceiver(20)
      const consuming = await ground.consume(failing, () => {
        throw new Error('not here')
      })
      await pollUntil('a delivery', () => failing.deliveries.length > 0)
      await consuming.stop()
      await send(ground, [outgoing('m2', { key: 'a' })])
      expect((await takeUntil(ground, 'm2')).effects).toEqual(['m0', 'm1', 'm2'])
    },
  },
  {
    name: 'stop waits for what is being handled, and what is done does not come again',
    async run(ground) {
      await send(ground, [outgoing('m0', { key: 'a' })])
      const inbox = rememberingReceiver(20)
      const { promise: opened, resolve: open } = Promise.withResolvers<void>()
      const consuming = await ground.consume(inbox, async (tx, message) => {
        await opened
        tx.push(message.id!)
      })
      await pollUntil('the handler', () => inbox.running === 1)
      const effectsAtStop = consuming.stop().then(() => inbox.effects.length)
      // Long enough for a stop that does not wait. One that does may take as long as it likes.
      await sleep(100)
      open()
      expect(await effectsAtStop).toBe(1)
      await send(ground, [outgoing('m1', { key: 'a' })])
      expect((await takeUntil(ground, 'm1')).deliveries).toEqual(['m1'])
    },
  },
  {
    name: 'no more messages are handled at once than were asked for',
    async run(ground) {
      await send(
        ground,
        numbered(16, (n) => ({ key: `key ${n}` })),
      )
      const inbox = rememberingReceiver(20)
      const consuming = await ground.consume(inbox, async (tx, message) => {
        await sleep(20)
        tx.push(message.id!)
      })
      await pollUntil('all', () => inbox.effects.length === 16)
      await consuming.stop()
      expect(inbox.runningMax).toBeLessThanOrEqual(atOnceMax)
    },
  },
  {
    name: 'a message that the broker does not take has failed, with those after it of its key, and with no other',
    async run(ground) {
      const { publisher, topic, refused } = ground
      const published = await publisher.publish([
        outgoing('m0', { topic, key: 'a' }),
        outgoing('m1', { topic, key: 'b', ...refused }),
        outgoing('m2', { topic, key: 'b' }),
        outgoing('m3', { topic, key: 'c' }),
      ])
      expect(published.map((each) => each === undefined)).toEqual([true, false, false, true])
      expect((await takeUntil(ground, 'm0', 'm3')).deliveries.toSorted()).toEqual(['m0', 'm3'])
    },
  },
]
