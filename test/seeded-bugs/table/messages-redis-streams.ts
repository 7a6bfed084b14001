// Bugs in the consumer and the publisher of Redis Streams.

import { bugsIn, byTest } from '../bug.ts'
import type { CaughtBy, SeededBug } from '../bug.ts'

const onServer = (test: string): CaughtBy => byTest('src/messages/redis-streams/server.test.ts', test, 'redis')

export const redisStreamBugs: readonly SeededBug[] = [
  ...bugsIn('src/messages/redis-streams/consumer.ts', 'messages', [
    {
      id: 'redis-streams: an entry is acknowledged before the inbox has it',
      find: 'const delivered = await options.deliver(',
      replace: 'await stream.acknowledge(taken.entry.id)\n    const delivered = await options.deliver(',
      caughtBy: onServer('a message is pending until its handler is done, and a consumer that is stopped finishes it'),
    },
    {
      id: 'redis-streams: a consumer that comes back begins with what is new',
      find: 'let ownAfter: string | undefined = beginning',
      replace: 'let ownAfter: string | undefined',
      caughtBy: onServer('what a consumer had in hand when it ended is the first that it handles when it is back'),
    },
    {
      id: 'redis-streams: what a lost reply has handed out is not asked for again',
      find: 'ownAfter = beginning\n      hasGroup',
      replace: 'hasGroup',
      caughtBy: onServer('messages whose reply was lost on its way are read again'),
    },
    {
      id: 'redis-streams: what a dead consumer had stays with it',
      find: 'if (clock.elapsed() >= claimAtMs) {',
      replace: 'if (clock.elapsed() >= claimAtMs + Infinity) {',
      caughtBy: onServer('what a consumer was handling when it was killed goes to another'),
    },
    {
      id: 'redis-streams: a key does not wait for its message that failed',
      find: 'if (key === undefined) return handle()',
      replace: 'return handle()',
      caughtBy: onServer(
        'a message that failed is handled again before the next of its key, and other keys do not wait',
      ),
    },
  ]),
  ...bugsIn('src/messages/redis-streams/stream.ts', 'messages', [
    {
      id: 'redis-streams: an entry in hand is not claimed anew',
      find: "await ask(['XCLAIM',",
      replace: "void (['XCLAIM',",
      caughtBy: onServer('a message is kept from others for as long as its handler runs'),
    },
  ]),
  ...bugsIn('src/messages/redis-streams/entry.ts', 'messages', [
    {
      id: 'redis-streams: a message is known by the id of its entry, which a second send does not have',
      find: "id: headers['ce-id'] ?? entry.id",
      replace: 'id: entry.id',
      caughtBy: onServer('a message that was sent twice has one effect, and both are acknowledged'),
    },
  ]),
  ...bugsIn('src/messages/redis-streams.ts', 'messages', [
    {
      id: 'redis-streams: a later message of a key is sent after one that failed',
      find: 'inOrderOfKeys(messages, async (message) => {',
      replace: 'inOrderOfKeys(messages.map(({ key: _, ...message }) => message), async (message) => {',
      caughtBy: onServer('a name that is no stream ends the consumer, and fails only its own messages of a publisher'),
    },
  ]),
  ...bugsIn('src/messages/redis-streams.ts', 'messages', [
    {
      id: 'redis-streams: a batch consumer has a transaction per message',
      find: 'handler as BatchHandler<Tx>, options.inFlight ?? 10)',
      replace: 'handler as BatchHandler<Tx>, 1)',
      caughtBy: byTest(
        'test/messages/broker-batches.test.ts',
        'Redis Streams: batches keep the order of each key, and a failure sinks no other',
        'redis',
      ),
    },
  ]),
]
