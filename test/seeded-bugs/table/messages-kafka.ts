// Bugs in the publisher and the consumers of Kafka.

import { bugsIn, byTest } from '../bug.ts'
import type { CaughtBy, SeededBug } from '../bug.ts'

const published = (test: string): CaughtBy => byTest('src/messages/kafka/publisher.test.ts', test, 'kafka')
const consumed = (test: string): CaughtBy => byTest('src/messages/kafka/consumer.test.ts', test, 'kafka')
const exactly = (test: string): CaughtBy => byTest('src/messages/kafka/exactly-once.test.ts', test, 'kafka')
const transactional = (test: string): CaughtBy =>
  byTest('src/messages/kafka/transactional-publisher.test.ts', test, 'kafka')
const stored = (test: string): CaughtBy => byTest('src/messages/kafka/stored-offsets.test.ts', test, 'kafka')
const taken = 'a relay that takes a shard ends what the one before it had not committed, and fences it'
const beyond = 'a stored offset beyond the end of the log is forgotten, and the group goes on where it has committed'
const inLanes = (test: string): CaughtBy => byTest('src/clients/kafka/partition-lanes.test.ts', test)

export const kafkaBugs: readonly SeededBug[] = [
  ...bugsIn('src/messages/kafka/publisher.ts', 'messages', [
    {
      id: 'kafka: a producer is used again after a time-out',
      find: '} catch (error) {\n      discard()',
      replace: '} catch (error) {',
      caughtBy: published(
        'kafkajs: replies that are lost make no duplicates, and a producer that timed out is not used again',
      ),
    },
    {
      id: 'kafka: several sends at once',
      find: 'const sent = before.then(() => sendNow(messages))',
      replace: 'const sent = sendNow(messages)',
      caughtBy: published(
        'what is confirmed has arrived, once, in the order of each key, with its id, type and headers',
      ),
    },
    {
      id: 'kafka: a message that the broker never takes fails all that are sent with it',
      find: 'messages.length > 1 && published.some',
      replace: 'messages.length > 1000 && published.some',
      caughtBy: published('a message that is too large for the broker fails by itself'),
    },
    {
      id: 'kafka: what follows a large message of its key is sent with it',
      find: 'before.topic === topic && !before.isLarge',
      replace: 'before.topic === topic',
      caughtBy: published(
        '@confluentinc/kafka-javascript: a message that is too large for the broker fails by itself, with what follows of its key',
      ),
    },
    {
      id: 'kafka: after a message that failed the next of its key is sent',
      find: 'if (failed && key !== undefined) failedKeys.set(key, failed)',
      replace: '',
      caughtBy: published(
        '@platformatic/kafka: a message for a topic that does not exist fails by itself, with what follows of its key',
      ),
    },
  ]),
  ...bugsIn('src/messages/kafka/headers.ts', 'messages', [
    {
      id: 'kafka: the id of a row is not sent along',
      find: "headersOf({ ...message.headers, 'ce-id': message.id })",
      replace: 'headersOf(message.headers)',
      caughtBy: published(
        'what is confirmed has arrived, once, in the order of each key, with its id, type and headers',
      ),
    },
  ]),
  ...bugsIn('src/clients/kafka/confluent.ts', 'messages', [
    {
      id: "kafka: Confluent's client sends a key to another partition than Java's",
      find: "partitioner: 'murmur2_random'",
      replace: "partitioner: 'consistent_random'",
      caughtBy: published('all clients send a key to the same partition'),
    },
    {
      id: 'kafka: a producer that is not idempotent is accepted',
      find: "refuse('an idempotent producer', settings, idempotence)",
      replace: '',
      caughtBy: byTest(
        'src/messages/kafka/publisher.test.ts',
        'settings that would break the promise of an idempotent producer are refused by name',
        'kafka',
      ),
    },
  ]),
  ...bugsIn('src/messages/kafka/exactly-once.ts', 'messages', [
    {
      id: 'kafka: offsets outside of the transaction',
      find: 'producer.sendOffsetsToTransaction(offsetsBehind(records), polled.consumer, callMs, done)',
      replace: 'polled.consumer.commitCb(offsetsBehind(records), done)',
      caughtBy: exactly('offsets and output are one: when the broker refuses a record, nothing is committed'),
    },
    {
      id: 'kafka: a worker that stood still commits',
      find: 'halts.check()\n',
      replace: '',
      caughtBy: exactly('a worker that stood still for most of its session commits nothing, and begins anew'),
    },
    {
      id: 'kafka: a random transactional id',
      find: 'client.transactionalProducer(transactionalId, {',
      replace: 'client.transactionalProducer(`${transactionalId}-${systemRandom.uuid()}`, {',
      caughtBy: exactly('what a worker that died left open is ended by its next start'),
    },
    {
      id: 'kafka: a producer goes on after a commit that timed out',
      find: 'if (!(error instanceof TransformFailed)) throw error',
      replace:
        'if (!(error instanceof TransformFailed)) {\n        await seekBack(polled, records)\n        continue\n      }',
      caughtBy: exactly('a commit whose reply was lost is looked up, and not done again'),
    },
    {
      id: 'kafka: a transaction is committed without a record that could not be sent',
      find: 'if (failed) throw failed\n',
      replace: '',
      caughtBy: exactly('a record that the client refuses aborts the transaction'),
    },
    {
      id: 'kafka: messages of a transform that failed are passed over',
      find: 'await seekBack(polled, records)\n',
      replace: '',
      caughtBy: exactly('a transform that fails is tried again with its whole transaction, in order'),
    },
    {
      id: 'kafka: exactlyOnce reads what was aborted',
      find: "isolation: 'read_committed'",
      replace: "isolation: 'read_uncommitted'",
      caughtBy: exactly('records of an aborted transaction are not read'),
    },
    {
      id: 'kafka: a fenced worker begins anew and fences the other',
      find: 'if (isFenced(error)) throw fenced(work, error)',
      replace: '',
      caughtBy: exactly('of two workers with one transactional id the older is fenced, and ends'),
    },
  ]),
  ...bugsIn('src/messages/kafka/transactional-publisher.ts', 'messages', [
    {
      id: 'kafka: what the last relay has published is not looked up',
      find: 'new Map(unsent.map(({ id, place }) => [id, place]))',
      replace: 'new Map<string, string>()',
      caughtBy: transactional('a commit whose reply was lost is looked up, and its rows are not published again'),
    },
    {
      id: 'kafka: a control record names the rows of its own transaction only',
      find: '[...published, ...rows.map',
      replace: '[...rows.map',
      caughtBy: transactional('rows that are published and could not be marked are not published again'),
    },
    {
      id: 'kafka: a relay that lost its shard opens a producer and publishes',
      find: 'if (epoch > shard.epoch) throw lost(work)',
      replace: '',
      caughtBy: transactional(taken),
    },
    {
      id: 'kafka: two relays of a shard do not fence each other',
      find: 'client.transactionalProducer(name, {',
      replace: 'client.transactionalProducer(`${name}-${shard.epoch}`, {',
      caughtBy: transactional(taken),
    },
    {
      id: 'kafka: a transaction is committed without a row that the client refused',
      find: 'if (!failed) {',
      replace: 'if (producer) {',
      caughtBy: transactional('a message that the broker never takes fails by itself, with what follows of its key'),
    },
    {
      id: 'kafka: control records grow for ever',
      find: 'ids.forEach((id) => opened?.published.delete(id))',
      replace: 'void ids',
      caughtBy: transactional('a control record names what is not marked, and no more'),
    },
    {
      id: 'kafka: a relay that takes a shard keeps the names of marked rows',
      find: 'await shard.unsent(rows)',
      replace: 'rows',
      caughtBy: transactional('a control record names what is not marked, and no more'),
    },
  ]),
  ...bugsIn('src/clients/kafka/confluent.ts', 'messages', [
    {
      id: 'kafka: control records of aborted transactions are believed',
      find: "isolation: 'read_committed',\n    begin",
      replace: "isolation: 'read_uncommitted',\n    begin",
      caughtBy: transactional('rows that a transaction named and did not commit are published'),
    },
  ]),
  ...bugsIn('src/messages/relay/way-out.ts', 'messages', [
    {
      id: 'relay: a held row that is published and not marked is taken for marked',
      find: '!isBehind(row) || held.has(row.id)',
      replace: '!isBehind(row) || held.has(row.place)',
      caughtBy: transactional(
        'a held row is published once, also when it could not be marked, and so is a dead letter that a person redrives',
      ),
    },
  ]),
  ...bugsIn('src/messages/kafka/stored-offsets.ts', 'messages', [
    {
      id: 'kafka: a stored offset of a topic that was deleted is believed',
      find: ' ${of.topicId}`',
      replace: '`',
      caughtBy: stored('a topic that was deleted and created again is read from its beginning'),
    },
    {
      id: 'kafka: what retention has left is skipped',
      find: 'next < of.low ? of.low : next',
      replace: 'next',
      caughtBy: stored('a stored offset that retention has passed goes on with what is left'),
    },
    {
      id: 'kafka: a stored offset beyond the end of the log is believed',
      find: 'if (next <= of.high) return',
      replace: 'if (next <= of.high + 1_000n) return',
      caughtBy: stored(beyond),
    },
    {
      id: 'kafka: a stored offset beyond the end of the log is never lowered',
      find: 'await offsets.forget(source)\n',
      replace: '',
      caughtBy: stored(beyond),
    },
    {
      id: 'kafka: the stored offset is not looked at',
      find: 'if (next === undefined) return undefined',
      replace: 'if (next !== undefined) return undefined',
      caughtBy: stored(
        'one by one: without the offsets of the group nothing is delivered again, and nothing is passed over',
      ),
    },
  ]),
  ...bugsIn('src/messages/inbox/offsets.ts', 'messages', [
    {
      id: 'kafka: a zombie moves a stored offset back',
      find: 'next_offset = max(${table}.next_offset, excluded.next_offset)',
      replace: 'next_offset = excluded.next_offset',
      caughtBy: byTest('src/messages/inbox.test.ts', 'a stored offset goes forward only, and commits with its handler'),
    },
  ]),
  ...bugsIn('src/messages/kafka/consumer.ts', 'messages', [
    {
      id: 'kafka: the stored offset is written after the transaction of the effect',
      find: 'await handler(tx, message)\n        await keeper?.write(tx, batch, next)',
      replace: 'await handler(tx, message)\n        setTimeout(() => void keeper?.write(undefined, batch, next), 50)',
      caughtBy: stored('a kill between the commit of the database and that of Kafka delivers nothing again'),
    },
    {
      id: 'kafka: the stored offset of a batch passes a message that is not done with',
      find: 'if (next !== undefined) await keeper?.write(tx, batch, next)',
      replace: 'await keeper?.write(tx, batch, batch.records.at(-1)!.offset + 1n)',
      caughtBy: stored('the stored offset of a batch stays below the first message that is not done with'),
    },
    {
      id: 'kafka: the offset is committed before the handler',
      find: 'const delivered = await inbox.deliver(',
      replace: 'await batch.commit(next)\n        const delivered = await inbox.deliver(',
      caughtBy: consumed('an offset is committed after its handler, never before'),
    },
    {
      id: 'kafka: a message that failed is passed over',
      find: 'done = delivered.acknowledged',
      replace: 'done = true',
      caughtBy: consumed('a message that fails holds up its partition, in order, and no other'),
    },
    {
      id: 'kafka: the offset of a batch passes a message that is not done with',
      find: 'first === -1 ? batch.records.length - 1 : first - 1',
      replace: 'batch.records.length - 1',
      caughtBy: consumed('the offset of a batch stays below the first message that is not done with'),
    },
  ]),
  ...bugsIn('src/messages/kafka/client-options.ts', 'messages', [
    {
      id: 'kafka: read_committed is promised with a client that hands out aborted records',
      find: ' && !abilities.readCommitted',
      replace: ' && false',
      caughtBy: consumed('a promise that a client cannot keep is refused by name'),
    },
  ]),
  ...bugsIn('src/clients/kafka/member.ts', 'messages', [
    {
      id: 'kafka: a process that stood still commits what it has handled',
      find: 'nowMs - lastMs > limitMs',
      replace: 'nowMs - lastMs > 1e9 * limitMs',
      caughtBy: byTest(
        'src/clients/kafka/member.test.ts',
        'a process that stood still for most of its session can commit nothing more, from the first look on',
      ),
    },
  ]),
  ...bugsIn('src/clients/kafka/partition-lanes.ts', 'messages', [
    {
      id: 'kafka: a partition that is gone is still committed',
      find: 'if (lane.gone) throw',
      replace: 'if (lane.gone && lane.partition < 0) throw',
      caughtBy: inLanes('a lane whose partition is gone commits nothing, whatever it has handled'),
    },
    {
      id: 'kafka: two batches of a partition at once',
      find: 'lane.running ??= run(lane, options, slots)',
      replace: 'lane.running = run(lane, options, slots)',
      caughtBy: inLanes('the records of a partition are handled in order and one batch at a time, partitions at once'),
    },
    {
      id: 'kafka: a partition leaves while its message is being handled',
      find: 'if (waitMs === Infinity) await idle',
      replace: 'if (waitMs === Infinity) await undefined',
      caughtBy: inLanes(
        'a lane that is dropped finishes its message, commits it while it is waited for, and takes no other',
      ),
    },
  ]),
]
