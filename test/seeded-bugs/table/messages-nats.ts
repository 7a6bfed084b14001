// NATS JetStream: what a consumer and a publisher get wrong between a broker and an inbox.

import { bugsIn, byTest } from '../bug.ts'
import type { CaughtBy, SeededBug } from '../bug.ts'

const caught = (test: string): CaughtBy => byTest('test/messages/nats.test.ts', test, 'nats')

export const natsBugs: readonly SeededBug[] = [
  ...bugsIn('src/messages/nats/consumer.ts', 'messages', [
    {
      id: 'nats: acknowledged before the handler',
      find: '  heartbeat.hold(raw)\n',
      replace: '  void raw.ackAck({ timeout: timeoutMs })\n  raw.ackAck = async () => true\n',
      caughtBy: caught('a message whose handler fails comes again after its pause, and the server has counted'),
    },
    {
      id: 'nats: the server is not told that a message is worked on',
      find: '        raw.working()\n',
      replace: '        void raw\n',
      caughtBy: caught('a message in hand for longer than ack_wait is not delivered again'),
    },
    {
      id: 'nats: the heartbeat is slower than the patience of the server',
      find: 'ackWaitMs / 3',
      replace: 'ackWaitMs * 2',
      caughtBy: caught('a message in hand for longer than ack_wait is not delivered again'),
    },
    {
      id: 'nats: a message goes back without a pause',
      find: 'raw.nak(afterMs)',
      replace: 'raw.nak(0)',
      caughtBy: caught('a message that waits for its next try does not keep the others waiting'),
    },
    {
      id: 'nats: a message that failed is left to ack_wait',
      find: '        raw.nak(afterMs)\n',
      replace: '        void afterMs\n',
      caughtBy: caught('a message whose handler fails comes again after its pause, and the server has counted'),
    },
    {
      id: 'nats: a message that failed costs one of its last deliveries',
      find: 'canWaitAtBroker: hasNoLimit',
      replace: 'canWaitAtBroker: hasNoLimit || true',
      caughtBy: caught(
        'where deliveries are limited, a message that fails is tried again in place and not left behind',
      ),
    },
    {
      id: 'nats: more is asked for than fits',
      find: 'max_messages: inFlight - inHand.size',
      replace: 'max_messages: inFlight * 2',
      caughtBy: caught('no more messages than inFlight are asked for, and no more are handled at once'),
    },
    {
      id: 'nats: a message whose acknowledgement was lost is tried for ever',
      find: `      letGo()
      if (!(await raw.ackAck`,
      replace: `      if (!(await raw.ackAck`,
      caughtBy: caught('an acknowledgement whose answer is lost has no second effect'),
    },
    {
      id: 'nats: stop does not wait for the handlers',
      find: '    await inHand.empty()\n',
      replace: '',
      caughtBy: caught('stop ends what is being handled, acknowledges it, and leaves the rest to others at once'),
    },
  ]),
  ...bugsIn('src/messages/in-hand.ts', 'messages', [
    {
      id: 'messages: what comes during a stop is kept and not given back',
      find: 'if (stop.aborted || !held.isOurs()) return held.giveBack(0)',
      replace: 'if (stop.aborted || !held.isOurs()) return',
      caughtBy: caught('a stop while nothing is there loses nothing that comes at that moment'),
    },
  ]),
  ...bugsIn('src/messages/nats/fitness.ts', 'messages', [
    {
      id: 'nats: max_deliver is not looked at',
      find: 'deliveries > 0 && deliveries < attempts',
      replace: 'deliveries < 0 && deliveries < attempts && false',
      caughtBy: caught('a consumer that leaves messages behind before the inbox parks them is refused'),
    },
    {
      id: 'nats: a consumer without acknowledgements is taken',
      find: "config.ack_policy !== 'explicit'",
      replace: "config.ack_policy === ''",
      caughtBy: caught('a consumer without explicit acknowledgements is refused'),
    },
  ]),
  ...bugsIn('src/messages/nats/publisher.ts', 'messages', [
    {
      id: 'nats: a message that no stream takes counts as sent',
      find: '  } catch (error) {\n',
      replace: '  } catch (error) {\n    if (error) return\n',
      caughtBy: caught('a message that no stream takes is a failure and ends its key'),
    },
    {
      id: 'nats: a message for another stream is taken',
      find: '...(stream !== undefined && { expect: { streamName: stream } }),',
      replace: '',
      caughtBy: caught('a message that no stream takes is a failure and ends its key'),
    },
    {
      id: 'nats: another message id for every attempt',
      find: 'msgID: message.id',
      replace: 'msgID: crypto.randomUUID()',
      caughtBy: caught('a message whose acknowledgement is lost has failed, and the same id is not stored again'),
    },
    {
      id: 'nats: later messages of a key are sent although one failed',
      find: 'inOrderOfKeys(messages, (message) => send(options, message))',
      replace: 'inOrderOfKeys(messages.map(({ key: _key, ...each }) => each), (message) => send(options, message))',
      caughtBy: caught('a message that no stream takes is a failure and ends its key'),
    },
  ]),
  ...bugsIn('src/messages/nats/message.ts', 'messages', [
    {
      id: 'nats: the attributes of a CloudEvent are not encoded',
      find: "name.startsWith('ce-') ? encoded(value) : value",
      replace: 'value',
      caughtBy: caught('a published message arrives as it was sent, and is acknowledged'),
    },
  ]),
  ...bugsIn('src/messages/nats.ts', 'messages', [
    {
      id: 'nats: a batch consumer has a transaction per message',
      find: 'handler as BatchHandler<Tx>, options.inFlight ?? 10)',
      replace: 'handler as BatchHandler<Tx>, 1)',
      caughtBy: byTest(
        'test/messages/broker-batches.test.ts',
        'NATS: batches keep the order of each key, and a failure sinks no other',
        'nats',
      ),
    },
  ]),
]
