// Cases that pass everything prove nothing: each of these brokers is wrong in one way that is common, and its case must fail by an
// assertion. The broker that all of them spoil is a queue in memory, and passes every case.
import { expect, test } from 'vitest'
import { systemClock } from '../../src/core/clock.ts'
import { inOrderOfKeys } from '../../src/messages/broker.ts'
import type { Message, MessageHandler, Outgoing, Published, Receiver } from '../../src/messages/broker.ts'
import { handling } from '../../src/messages/in-hand.ts'
import { atOnceMax, brokerCases } from './broker-cases.ts'
import type { BrokerGround } from './broker-cases.ts'

interface Flaws {
  readonly handsOut?: (message: Message) => Message
  readonly order?: (queue: Outgoing[]) => Outgoing[]
  readonly receiver?: (inbox: Receiver<string[]>) => Receiver<string[]>
  readonly atOnce?: number
  readonly acknowledges?: 'first' | 'never'
  readonly stopsAtOnce?: true
  readonly publish?: (given: readonly Outgoing[], put: (message: Outgoing) => void) => Promise<readonly Published[]>
}

const nowhere = 'nowhere'

function queueInMemory(flaws: Flaws = {}): BrokerGround {
  const queue = new Map<string, Outgoing>()
  const put = (message: Outgoing): void => void queue.set(message.id, message)
  const refuse = async (message: Outgoing): Promise<void> => {
    if (message.topic === nowhere) throw new Error(`there is no queue for ${message.id}`)
    put(message)
  }
  const { handsOut = (message) => message, order = (all) => all, receiver = (inbox) => inbox } = flaws

  return {
    topic: 'orders',
    refused: { topic: nowhere },
    publisher: {
      name: 'memory',
      publish: (given) => (flaws.publish ? flaws.publish(given, put) : inOrderOfKeys(given, refuse)),
    },
    async consume(inbox, handler: MessageHandler<string[]>) {
      const stop = new AbortController()
      const atOnce = flaws.atOnce ?? atOnceMax
      const inHand = handling({ inbox: receiver(inbox), handler, atOnce, clock: systemClock, stop: stop.signal })
      for (const message of order([...queue.values()])) {
        const acknowledge = (): void => void queue.delete(message.id)
        if (flaws.acknowledges === 'first') acknowledge()
        inHand.take({
          message: handsOut({ ...message, raw: undefined }),
          isOurs: () => true,
          acknowledge: async () => (flaws.acknowledges ? undefined : acknowledge()),
          canWaitAtBroker: false,
          giveBack: () => {},
        })
      }
      const ended = Promise.withResolvers<void>()
      return {
        ended: ended.promise,
        async stop() {
          stop.abort()
          if (!flaws.stopsAtOnce) await inHand.empty()
          ended.resolve()
        },
      }
    },
  }
}

/** Takes what the inbox refused for done. */
function forgetting(inbox: Receiver<string[]>): Receiver<string[]> {
  return {
    ...inbox,
    async deliver(message, handler, acknowledge) {
      await inbox.deliver(message, handler, acknowledge)
      await acknowledge()
      return { acknowledged: true }
    },
  }
}

const arrives = 'a message arrives with its id, key, headers and bytes'
const inOrder = 'messages of one key are handled in the order in which they were published, each once'
const again = 'a message whose handler fails comes again, and no later one of its key before it'
const next = 'what a consumer could not handle before it stopped comes to the next'
const stops = 'stop waits for what is being handled, and what is done does not come again'
const bounded = 'no more messages are handled at once than were asked for'
const refused = 'a message that the broker does not take has failed, with those after it of its key, and with no other'

const taken = (message: Outgoing): boolean => message.topic !== nowhere
const failed = new Error('not taken')

const broken: readonly [what: string, noticedBy: string, flaws: Flaws][] = [
  ['loses the key', arrives, { handsOut: ({ key: _key, ...message }) => message }],
  ['loses the headers', arrives, { handsOut: (message) => ({ ...message, headers: {} }) }],
  ['reads the bytes as text', arrives, { handsOut: (message) => ({ ...message, body: asText(message.body) }) }],
  ['hands out the last first', inOrder, { order: (all) => all.toReversed() }],
  [
    'hands out a message of each key again, under another id',
    inOrder,
    { order: (all) => [...all.slice(0, 3).map(renamed), ...all] },
  ],
  ['goes on with a key whose message failed', again, { handsOut: (message) => ({ ...message, key: message.id! }) }],
  ['takes a message that failed for done', again, { receiver: forgetting }],
  ['acknowledges before the handler', next, { acknowledges: 'first' }],
  ['acknowledges nothing', stops, { acknowledges: 'never' }],
  ['stops without what is being handled', stops, { stopsAtOnce: true }],
  ['takes all that there is', bounded, { atOnce: Infinity }],
  [
    'confirms what it has not taken',
    refused,
    {
      publish: async (given, put) => {
        given.filter(taken).forEach(put)
        return given.map(() => undefined)
      },
    },
  ],
  [
    'goes on with a key after a message that it did not take',
    refused,
    {
      publish: async (given, put) => {
        given.filter(taken).forEach(put)
        return given.map((message) => (taken(message) ? undefined : failed))
      },
    },
  ],
  [
    'fails a whole batch with one message',
    refused,
    {
      publish: async (given, put) => {
        if (given.every(taken)) given.forEach(put)
        return given.map(() => (given.every(taken) ? undefined : failed))
      },
    },
  ],
  [
    'answers in another order',
    refused,
    {
      publish: async (given, put) => {
        const answers = await inOrderOfKeys(given, async (message) => {
          if (!taken(message)) throw failed
          put(message)
        })
        return answers.toSorted((one, other) => Number(one !== undefined) - Number(other !== undefined))
      },
    },
  ],
]

const renamed = (message: Outgoing): Outgoing => ({ ...message, id: `m${Number(message.id.slice(1)) + 30}` })

function asText(body: Uint8Array): Uint8Array {
  return Buffer.from(Buffer.from(body).toString())
}

test.each(brokerCases)('a queue in memory: $name', ({ run }) => run(queueInMemory()))

test.each(broken)('a broker that %s is noticed by its case', async (_what, noticedBy, flaws) => {
  const { run } = brokerCases.find(({ name }) => name === noticedBy)!
  await expect(run(queueInMemory(flaws))).rejects.toMatchObject({ name: 'AssertionError' })
})

test('every case has a broker that it notices', () => {
  expect(new Set(broken.map(([, noticedBy]) => noticedBy))).toEqual(new Set(brokerCases.map(({ name }) => name)))
})
