// Bugs in the consumer and the publisher of SQS.

import { bugsIn, byTest } from '../bug.ts'
import type { CaughtBy, SeededBug } from '../bug.ts'

const onServer = (test: string): CaughtBy => byTest('src/messages/sqs/server.test.ts', test, 'elasticmq')

export const sqsBugs: readonly SeededBug[] = [
  ...bugsIn('src/messages/sqs/consumer.ts', 'messages', [
    {
      id: 'sqs: a message is deleted before the inbox has it',
      find: 'const delivered = await deliverWithStore(',
      replace: 'await acknowledge([...round.keys()])\n    const delivered = await deliverWithStore(',
      caughtBy: onServer('a message stays in the queue until its handler is done'),
    },
    {
      id: 'sqs: a message that failed comes again at once, whatever the inbox said',
      find: 'forMs: each.retryAfterMs',
      replace: 'forMs: 0 * each.retryAfterMs',
      caughtBy: onServer('a message that failed stays away for as long as the inbox said'),
    },
    {
      id: 'sqs: a database that is down uses up the receives that a redrive policy allows',
      find: "return delivered.error.code === 'STORE_UNAVAILABLE'",
      replace: "return delivered.error.code === 'CLAIM_LOST'",
      caughtBy: onServer('while the database is down no message is used up by a redrive policy, one by one'),
    },
  ]),
  ...bugsIn('src/messages/sqs.ts', 'messages', [
    {
      id: 'sqs: Lambda takes an inbox that promises at most once, and repeats its effects',
      find: "if (options.inbox.delivery === 'at-most-once') {",
      replace: "if (options.inbox.delivery === 'at-least-once') {",
      caughtBy: byTest(
        'src/messages/sqs/lambda.test.ts',
        'an inbox that delivers at most once is refused, as Lambda deletes a message after the function has returned',
      ),
    },
  ]),
  ...bugsIn('src/messages/receiving.ts', 'messages', [
    {
      id: 'sqs: no heartbeat while the handler runs',
      find: 'start: () => void (cancel ??= schedule())',
      replace: 'start: () => void (cancel ??= () => {})',
      caughtBy: onServer('a message is kept from others for as long as its handler runs'),
    },
    {
      id: 'sqs: messages in flight are not counted',
      find: 'free: () => source.inFlight - held.size',
      replace: 'free: () => source.inFlight',
      caughtBy: onServer('no more messages are taken than may be in flight'),
    },
    {
      id: 'sqs: stop cuts off a question that is under way',
      find: 'Math.max(0, askedAt + waitMs - clock.elapsed())',
      replace: 'Math.min(0, askedAt + waitMs - clock.elapsed())',
      caughtBy: onServer('a message that comes while stop waits for the last question is given back at once'),
    },
    {
      id: 'sqs: stop does not wait for what is being handled',
      find: 'await Promise.all(work)\n',
      replace: '',
      caughtBy: onServer('a consumer that is stopped finishes what it handles and leaves the rest in the queue'),
    },
  ]),
  ...bugsIn('src/messages/sqs/lanes.ts', 'messages', [
    {
      id: 'sqs: a failure does not stop its group',
      find: 'done[index] && lane.length',
      replace: 'lane.length',
      caughtBy: onServer(
        'of a group of a FIFO queue the messages are handled in order, and a failure stops only its group',
      ),
    },
  ]),
  ...bugsIn('src/messages/sqs/message.ts', 'messages', [
    {
      id: "sqs: a message is known by the broker's id, which a second send does not have",
      find: "const id = headers['ce-id'] ??",
      replace: 'const id = received.MessageId ??',
      caughtBy: onServer('a message that was sent twice has one effect, and both are deleted'),
    },
    {
      id: 'sqs: an id that the queue made from the body makes two messages one',
      find: 'deduplicationId === undefined || deduplicationId === sha256(body)',
      replace: 'deduplicationId === undefined',
      caughtBy: onServer('an id that a FIFO queue made from the body is not taken for the id of the message'),
    },
    {
      id: 'sqs: a FIFO queue is not told the id of a message',
      find: 'MessageDeduplicationId: fitting(id)',
      replace: 'MessageDeduplicationId: `${fitting(id)}-${performance.now()}`',
      caughtBy: onServer('a message that a relay sends again is dropped by a FIFO queue'),
    },
  ]),
  ...bugsIn('src/messages/sqs/publisher.ts', 'messages', [
    {
      id: 'sqs: a later message of a key is sent after one that failed',
      find: "typeof url === 'string' && isFifo(url) ? JSON",
      replace: "typeof url === 'number' ? JSON",
      caughtBy: onServer('of a batch to publish, what fails is named, and nothing of its key is sent after it'),
    },
  ]),
  ...bugsIn('src/messages/sqs/requests.ts', 'messages', [
    {
      id: 'sqs: a batch of which an entry failed is taken for success',
      find: 'done.has(Id) ? undefined : errorOf(failed.get(Id))',
      replace: 'undefined',
      caughtBy: byTest('src/messages/sqs/lambda.test.ts', 'an entry of a batch is done only when SQS says so'),
    },
  ]),
  ...bugsIn('src/messages/sqs/lambda.ts', 'messages', [
    {
      id: 'sqs: Lambda is not told of what follows a failure in its group',
      find: 'delivered.forEach(({ acknowledged }, at) => acknowledged && open.delete(positions[at]!))',
      replace:
        'delivered.forEach(({ acknowledged }, at) => acknowledged && open.delete(positions[at]!))\n    open.forEach((each) => positions.includes(each) || open.delete(each))',
      caughtBy: byTest(
        'src/messages/sqs/lambda.test.ts',
        'of a FIFO queue, what follows a failure in its group comes again, too, and is not handled',
      ),
    },
  ]),
]
