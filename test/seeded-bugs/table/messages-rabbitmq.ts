// RabbitMQ: what a consumer and a publisher get wrong between a broker and an inbox.

import { bugsIn, byTest } from '../bug.ts'
import type { CaughtBy, SeededBug } from '../bug.ts'

const caught = (test: string): CaughtBy => byTest('test/messages/rabbitmq.test.ts', test, 'rabbitmq')

export const rabbitmqBugs: readonly SeededBug[] = [
  ...bugsIn('src/messages/rabbitmq/consumer.ts', 'messages', [
    {
      id: 'rabbitmq: acknowledged before the handler',
      find: 'const isOurs = (): boolean => ending() === undefined',
      replace: 'const isOurs = (): boolean => ending() === undefined\n  channel.ack(raw)\n  channel.ack = () => {}',
      caughtBy: caught('stop ends what is being handled, acknowledges it, and leaves the rest in the queue'),
    },
    {
      id: 'rabbitmq: a message is dropped instead of going back',
      find: 'channel.nack(raw, false, true)',
      replace: 'channel.nack(raw, false, false)',
      caughtBy: caught('a message that waits for its next try does not keep the others waiting'),
    },
    {
      id: 'rabbitmq: a message that failed costs a delivery',
      find: 'canWaitAtBroker: false',
      replace: 'canWaitAtBroker: true',
      caughtBy: caught('a message that fails more often than its queue delivers it is tried again all the same'),
    },
    {
      id: 'rabbitmq: no prefetch, so that the broker sends everything',
      find: 'await channel.prefetch(prefetch)',
      replace: 'void prefetch',
      caughtBy: byTest(
        'test/messages/broker-memory.test.ts',
        'of a long queue a consumer holds no more than it has in flight',
        'rabbitmq',
      ),
    },
    {
      id: 'rabbitmq: a consumer that does not connect again',
      find: 'if (stop.aborted || error === undefined) break',
      replace: 'if (stop.aborted || error !== undefined) break',
      caughtBy: caught('an acknowledgement on a channel that has ended is harmless'),
    },
    {
      id: 'rabbitmq: stop waits for a server that does not answer',
      find: 'await Promise.race([said, sleep(clock, pausesMs.lastWord, { signal: late.signal })])',
      replace: 'await said',
      caughtBy: caught('stop does not wait for a server that does not answer, and what it had delivered comes again'),
    },
    {
      id: 'rabbitmq: stop closes the channel under the handlers',
      find: 'channel.cancel(consumerTag))\n    await inHand.empty()',
      replace: 'channel.cancel(consumerTag))',
      caughtBy: caught('stop ends what is being handled, acknowledges it, and leaves the rest in the queue'),
    },
  ]),
  ...bugsIn('src/messages/in-hand.ts', 'messages', [
    {
      id: 'messages: handlers of a lost connection are not counted',
      find: 'atOnce)\n',
      replace: 'atOnce * 2)\n',
      caughtBy: caught(
        'no more messages than prefetch are handled at once, also when the connection is lost under them',
      ),
    },
    {
      id: 'messages: messages of one key are handled at once',
      find: 'key === undefined ? undefined : lastOfKey.get(key)',
      replace: 'undefined',
      caughtBy: caught('messages of one key are handled in their order, also when one of them fails'),
    },
    {
      id: 'messages: a message that failed is tried again without a pause',
      find: 'await sleep(clock, retryAfterMs, { signal: stop })',
      replace: 'await sleep(clock, 0, { signal: stop })',
      caughtBy: caught('a message that waits for its next try does not keep the others waiting'),
    },
    {
      id: 'messages: a message of a key that failed goes back behind the later ones',
      find: 'if (held.canWaitAtBroker && held.message.key === undefined) return',
      replace: 'return',
      caughtBy: caught('messages of one key are handled in their order, also when one of them fails'),
    },
  ]),
  ...bugsIn('src/messages/rabbitmq/publisher.ts', 'messages', [
    {
      id: 'rabbitmq: a message that no queue takes counts as sent',
      find: 'if (!takeReturn(session.returned, placeOf(routingKey, message.id))) return resolve()',
      replace: 'return resolve()',
      caughtBy: caught('a message that no queue takes is a failure, although it is confirmed, and ends its key'),
    },
    {
      id: 'rabbitmq: published means written to the socket',
      find: 'propertiesOf(message, clock.now()), confirmed)',
      replace: 'propertiesOf(message, clock.now()), () => {})\n      confirmed(null)',
      caughtBy: caught('what was not confirmed when the connection ended has failed'),
    },
    {
      id: 'rabbitmq: a publisher keeps the channel that has ended',
      find: 'void session.ended.then(forget)',
      replace: 'void session.ended.then(() => {})',
      caughtBy: caught('what was not confirmed when the connection ended has failed'),
    },
    {
      id: 'rabbitmq: a publisher keeps the channel that does not answer',
      find: '      session.giveUp()\n',
      replace: '',
      caughtBy: caught('a message that is not confirmed in time has failed'),
    },
    {
      id: 'rabbitmq: later messages of a key are sent although one failed',
      find: 'return inOrderOfKeys(messages, (message) => send(options, session, message))',
      replace:
        'return inOrderOfKeys(messages.map((each) => ({ ...each, key: undefined }) as unknown as Outgoing), (message) => send(options, session, message))',
      caughtBy: caught('a message that no queue takes is a failure, although it is confirmed, and ends its key'),
    },
  ]),
  ...bugsIn('src/messages/rabbitmq/message.ts', 'messages', [
    {
      id: 'rabbitmq: not persistent',
      find: 'persistent: true',
      replace: 'persistent: false',
      caughtBy: caught('the attributes of a CloudEvent, the id and the time are where others look for them'),
    },
    {
      id: 'rabbitmq: not mandatory',
      find: 'mandatory: true',
      replace: 'mandatory: false',
      caughtBy: caught('a message that no queue takes is a failure, although it is confirmed, and ends its key'),
    },
    {
      id: 'rabbitmq: the time of a message in milliseconds',
      find: 'Math.floor(nowMs / 1_000)',
      replace: 'nowMs',
      caughtBy: caught('the attributes of a CloudEvent, the id and the time are where others look for them'),
    },
  ]),
  ...bugsIn('src/messages/rabbitmq.ts', 'messages', [
    {
      id: 'rabbitmq: a batch consumer has a transaction per message',
      find: 'handler as BatchHandler<Tx>, options.prefetch ?? 10)',
      replace: 'handler as BatchHandler<Tx>, 1)',
      caughtBy: byTest(
        'test/messages/broker-batches.test.ts',
        'RabbitMQ: batches keep the order of each key, and a failure sinks no other',
        'rabbitmq',
      ),
    },
  ]),
  ...bugsIn('src/messages/together.ts', 'messages', [
    {
      id: 'batches: a message whose acknowledgement was lost is taken for done with',
      find: 'lost.has(position)',
      replace: 'lost.has(-1 - position)',
      caughtBy: byTest(
        'src/messages/together.test.ts',
        'what is handed over at once is one batch, and a lost acknowledgement is no other message’s',
      ),
    },
  ]),
]
