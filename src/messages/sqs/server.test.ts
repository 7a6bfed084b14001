// SQS on a real server: what goes out comes in, once at the inbox, whatever fails in between.

import { fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import type { SQS } from '@aws-sdk/client-sqs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { makeFolder } from '../../../test/cli/program.ts'
import { numbered, outgoing } from '../../../test/messages/outgoing.ts'
import { rememberingReceiver } from '../../../test/messages/remembering-receiver.ts'
import { elasticmq, startElasticmq } from '../../../test/servers/elasticmq.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import { sharedUrl } from '../../../test/servers/shared.ts'
import { connectSqs, countIn, createQueue } from '../../../test/subjects/sqs.ts'
import { createOnce } from '../../core/once.ts'
import { sqliteStore } from '../../stores/sqlite.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import type { SqsClient } from '../../clients/sqs.ts'
import type { Outgoing } from '../broker.ts'
import { createInbox } from '../inbox.ts'
import { sqsBatchConsumer, sqsConsumer, sqsPublisher } from '../sqs.ts'
import type { SqsMessage } from '../sqs.ts'

const fifo = { FifoQueue: 'true' }
const quick = { waitMs: 1_000, visibilityMs: 30_000 }

const idsOf = (messages: readonly { id?: string }[]): (string | undefined)[] => messages.map(({ id }) => id)
const noteId = (tx: string[], message: SqsMessage): void => void tx.push(message.id!)

function gate(): { readonly opened: Promise<void>; open(): void } {
  const { promise, resolve } = Promise.withResolvers<void>()
  return { opened: promise, open: resolve }
}

needs('elasticmq').describe('SQS', () => {
  let serverUrl: string
  let client: SQS
  beforeAll(async () => {
    serverUrl = await sharedUrl(elasticmq)
    client = connectSqs(serverUrl)
  })
  afterAll(() => client.destroy())

  async function send(queueUrl: string, messages: readonly Outgoing[]): Promise<void> {
    const published = await sqsPublisher({ client, queueUrl }).publish(messages)
    expect(published.filter((each) => each !== undefined)).toEqual([])
  }

  test('what a relay publishes arrives with its id, key, body and headers, whatever bytes they are', async () => {
    const queueUrl = await createQueue(client)
    const many = Object.fromEntries(Array.from({ length: 14 }, (_, n) => [`x-${n}`, `value ${n}`]))
    const sent = [
      outgoing('text', { key: 'customer 7', headers: { 'ce-type': 'order.placed', traceparent: '00-1-2-01' } }),
      outgoing('bytes', { body: Uint8Array.of(0, 255, 128, 10) }),
      outgoing('control', { body: Buffer.from('bell \u0007') }),
      outgoing('empty', { body: new Uint8Array() }),
      outgoing('headers', { headers: { ...many, empty: '', headers: 'mine', 'x y': 'ü \u0001' } }),
    ]
    await send(queueUrl, sent)
    const inbox = rememberingReceiver()
    const consuming = sqsConsumer({ client, queueUrl, inbox, ...quick }, noteId)
    await pollUntil('all to arrive', () => inbox.effects.length === sent.length)
    await consuming.stop()
    for (const { id, key, body, headers } of sent) {
      const arrived = inbox.seen.find((message) => message.id === id)!
      expect(arrived).toMatchObject({ topic: queueUrl.split('/').at(-1), delivery: 1, headers })
      expect(Buffer.from(arrived.body)).toEqual(Buffer.from(body))
      expect(arrived.key).toBe(key)
      expect(arrived.sentAtMs).toBeGreaterThan(1_700_000_000_000)
    }
    expect(await countIn(client, queueUrl)).toEqual({ visible: 0, hidden: 0 })
  })

  test('a message that was sent twice has one effect, and both are deleted', async () => {
    const queueUrl = await createQueue(client)
    await send(queueUrl, [outgoing('a'), outgoing('a'), outgoing('b')])
    const inbox = rememberingReceiver()
    const consuming = sqsConsumer({ client, queueUrl, inbox, ...quick }, noteId)
    await pollUntil('all to be deleted', async () => {
      const { visible, hidden } = await countIn(client, queueUrl)
      return inbox.seen.length >= 3 && visible + hidden === 0
    })
    await consuming.stop()
    expect(inbox.effects.toSorted()).toEqual(['a', 'b'])
  })

  test('a message that failed comes again, and the others do not wait for it', async () => {
    const queueUrl = await createQueue(client)
    await send(queueUrl, numbered(5))
    const inbox = rememberingReceiver()
    let failures = 0
    const consuming = sqsConsumer({ client, queueUrl, inbox, ...quick }, (tx, message) => {
      if (message.id === 'm2' && failures++ < 2) throw new Error('not now')
      tx.push(message.id!)
    })
    await pollUntil('all to be done', () => inbox.effects.length === 5)
    await consuming.stop()
    expect(inbox.effects.toSorted()).toEqual(['m0', 'm1', 'm2', 'm3', 'm4'])
    expect(inbox.seen.filter(({ id }) => id === 'm2').map(({ delivery }) => delivery)).toEqual([1, 2, 3])
  })

  test('a message that failed stays away for as long as the inbox said', async () => {
    const queueUrl = await createQueue(client)
    await send(queueUrl, [outgoing('a')])
    const inbox = rememberingReceiver(3_000)
    const handledAtMs: number[] = []
    const consuming = sqsConsumer({ client, queueUrl, inbox, ...quick }, (tx, message) => {
      handledAtMs.push(performance.now())
      if (handledAtMs.length === 1) throw new Error('not now')
      tx.push(message.id!)
    })
    await pollUntil('it to be done', () => inbox.effects.length === 1)
    await consuming.stop()
    // The server counts in whole seconds, on a clock of its own.
    expect(handledAtMs[1]! - handledAtMs[0]!).toBeGreaterThan(2_000)
    expect(handledAtMs[1]! - handledAtMs[0]!).toBeLessThan(quick.visibilityMs)
  })

  test('of a group of a FIFO queue the messages are handled in order, and a failure stops only its group', async () => {
    const queueUrl = await createQueue(client, fifo)
    await send(
      queueUrl,
      numbered(20, (n) => ({ key: n % 2 === 0 ? 'even' : 'odd' })),
    )
    const inbox = rememberingReceiver()
    let failures = 0
    const consuming = sqsConsumer({ client, queueUrl, inbox, ...quick }, (tx, message) => {
      if (message.id === 'm4' && failures++ < 2) throw new Error('not now')
      tx.push(message.id!)
    })
    await pollUntil('all to be done', () => inbox.effects.length === 20)
    await consuming.stop()
    const ofGroup = (rest: number): string[] => inbox.effects.filter((id) => Number(id.slice(1)) % 2 === rest)
    expect(ofGroup(0)).toEqual(numbered(20).flatMap(({ id }, n) => (n % 2 === 0 ? id : [])))
    expect(ofGroup(1)).toEqual(numbered(20).flatMap(({ id }, n) => (n % 2 === 1 ? id : [])))
    expect(failures).toBe(3)
    expect(await countIn(client, queueUrl)).toEqual({ visible: 0, hidden: 0 })
  })

  test('a batch on a FIFO queue keeps the order of each group, too', async () => {
    const queueUrl = await createQueue(client, fifo)
    await send(
      queueUrl,
      numbered(12, (n) => ({ key: `group ${n % 3}` })),
    )
    const inbox = rememberingReceiver()
    let failures = 0
    const consuming = sqsBatchConsumer({ client, queueUrl, inbox, ...quick }, (tx, fresh) => {
      if (fresh.some(({ id }) => id === 'm3') && failures++ < 1) throw new Error('not now')
      tx.push(...fresh.map(({ id }) => id!))
    })
    await pollUntil('all to be done', () => inbox.effects.length === 12)
    await consuming.stop()
    for (const rest of [0, 1, 2]) {
      const ids = inbox.effects.filter((id) => Number(id.slice(1)) % 3 === rest)
      expect(ids).toEqual([0, 3, 6, 9].map((n) => `m${n + rest}`))
    }
  })

  test('a batch deletes what was done and gives back what was not', async () => {
    const queueUrl = await createQueue(client)
    await send(queueUrl, numbered(10))
    const inbox = rememberingReceiver()
    let isFailing = true
    const consuming = sqsBatchConsumer({ client, queueUrl, inbox, ...quick }, (tx, fresh) => {
      if (isFailing && fresh.some(({ id }) => id === 'm7')) throw new Error('not now')
      tx.push(...fresh.map(({ id }) => id!))
    })
    await pollUntil('nine to be done', async () => {
      const { visible, hidden } = await countIn(client, queueUrl)
      return inbox.effects.length === 9 && visible + hidden === 1
    })
    isFailing = false
    await pollUntil('all to be done', () => inbox.effects.length === 10)
    await consuming.stop()
    expect(new Set(inbox.effects)).toEqual(new Set(numbered(10).map(({ id }) => id)))
    expect(await countIn(client, queueUrl)).toEqual({ visible: 0, hidden: 0 })
  })

  test.each(['one by one', 'batches'])(
    'while the database is down no message is used up by a redrive policy, %s',
    async (how) => {
      const dead = await createQueue(client)
      const { Attributes } = await client.getQueueAttributes({ QueueUrl: dead, AttributeNames: ['QueueArn'] })
      const policy = { deadLetterTargetArn: Attributes!.QueueArn, maxReceiveCount: 2 }
      const queueUrl = await createQueue(client, { RedrivePolicy: JSON.stringify(policy) })
      using folder = makeFolder()
      const path = join(folder.path, 'shop.db')
      const store = sqliteStore({ path, lockWaitMs: 50 })
      const inbox = createInbox(createOnce({ store, scope: 'shop', sweepEveryMs: false }), { consumer: 'mailer' })
      await inbox.migrate()
      const database = new DatabaseSync(path)
      database.exec('create table mails (id text)')
      // SQLite has one writer. While this one writes, the inbox cannot.
      database.exec('begin immediate')
      let refusals = 0
      const refusing: typeof inbox = {
        ...inbox,
        async deliver(...given) {
          const delivered = await inbox.deliver(...given)
          if (!delivered.acknowledged) refusals += 1
          return delivered
        },
        async deliverBatch(...given) {
          const delivered = await inbox.deliverBatch(...given)
          refusals += delivered.filter(({ acknowledged }) => !acknowledged).length
          return delivered
        },
      }
      await send(queueUrl, numbered(3))
      const deliveries: (number | undefined)[] = []
      const mail = (tx: typeof database, { id, delivery }: SqsMessage): void => {
        deliveries.push(delivery)
        tx.prepare('insert into mails values (?)').run(id!)
      }
      const options = { client, queueUrl, inbox: refusing, ...quick }
      const consuming =
        how === 'batches'
          ? sqsBatchConsumer(options, (tx, fresh) => fresh.forEach((each) => mail(tx as typeof database, each)))
          : sqsConsumer(options, (tx, message) => mail(tx as typeof database, message))
      // More often than the policy allows, of each.
      await pollUntil('the inbox to fail', async () => refusals >= 15 || (await countIn(client, dead)).visible > 0)
      expect(await countIn(client, dead)).toEqual({ visible: 0, hidden: 0 })
      database.exec('rollback')
      const count = database.prepare('select count(*) as mails from mails')
      await pollUntil('all to be done', () => count.get()!['mails'] === 3)
      await consuming.stop()
      expect(deliveries).toEqual([1, 1, 1])
      expect(await countIn(client, dead)).toEqual({ visible: 0, hidden: 0 })
      expect(await countIn(client, queueUrl)).toEqual({ visible: 0, hidden: 0 })
      database.close()
      store.close()
    },
  )

  test('an id that a FIFO queue made from the body is not taken for the id of the message', async () => {
    const queueUrl = await createQueue(client, { ...fifo, ContentBasedDeduplication: 'true' })
    const inbox = rememberingReceiver()
    await client.sendMessage({ QueueUrl: queueUrl, MessageBody: 'tick', MessageGroupId: 'g' })
    await client.sendMessage({
      QueueUrl: queueUrl,
      MessageBody: 'named',
      MessageGroupId: 'g',
      MessageDeduplicationId: 'mine',
    })
    const consuming = sqsConsumer({ client, queueUrl, inbox, ...quick }, noteId)
    await pollUntil('both to be done', () => inbox.effects.length === 2)
    await consuming.stop()
    const [tick, named] = inbox.seen
    expect(tick!.id).toBe((tick as SqsMessage).raw.MessageId)
    expect(named!.id).toBe('mine')
  })

  test('no more messages are taken than may be in flight', async () => {
    const queueUrl = await createQueue(client)
    await send(queueUrl, numbered(12))
    const inbox = rememberingReceiver()
    const running = new Set<string>()
    let most = 0
    const { opened, open } = gate()
    const consuming = sqsConsumer({ client, queueUrl, inbox, inFlight: 3, ...quick }, async (tx, message) => {
      running.add(message.id!)
      most = Math.max(most, running.size)
      await opened
      running.delete(message.id!)
      tx.push(message.id!)
    })
    await pollUntil('three to be handled', () => running.size === 3)
    expect(await countIn(client, queueUrl)).toEqual({ visible: 9, hidden: 3 })
    open()
    await pollUntil('all to be done', () => inbox.effects.length === 12)
    await consuming.stop()
    expect(most).toBe(3)
  })

  test('a message stays in the queue until its handler is done', async () => {
    const queueUrl = await createQueue(client)
    await send(queueUrl, [outgoing('a')])
    const inbox = rememberingReceiver()
    const { opened, open } = gate()
    const consuming = sqsConsumer({ client, queueUrl, inbox, ...quick }, async () => opened)
    await pollUntil('it to be handled', () => inbox.seen.length === 1)
    expect(await countIn(client, queueUrl)).toEqual({ visible: 0, hidden: 1 })
    open()
    await consuming.stop()
    expect(await countIn(client, queueUrl)).toEqual({ visible: 0, hidden: 0 })
  })

  test('a message that comes while stop waits for the last question is given back at once', async () => {
    const queueUrl = await createQueue(client)
    const inbox = rememberingReceiver()
    const clock = manualClock(1_800_000_000_000)
    let asked = 0
    const answered: number[] = []
    const watched = Object.assign(Object.create(client) as SQS, {
      async receiveMessage(...given: Parameters<SqsClient['receiveMessage']>) {
        asked++
        const answer = await (client as SqsClient).receiveMessage(...given)
        answered.push(answer.Messages?.length ?? 0)
        return answer
      },
    })
    const options = { client: watched, queueUrl, inbox, clock, waitMs: 20_000, visibilityMs: 600_000 }
    const consuming = sqsConsumer(options, noteId)
    await pollUntil('the question', () => asked === 1)
    const stopped = consuming.stop()
    await clock.advance(19_000)
    await send(queueUrl, numbered(1))
    await stopped
    expect(answered).toEqual([1])
    expect(inbox.seen).toEqual([])
    expect(await countIn(client, queueUrl)).toEqual({ visible: 1, hidden: 0 })
  })

  test('a consumer that is stopped finishes what it handles and leaves the rest in the queue', async () => {
    const queueUrl = await createQueue(client)
    await send(queueUrl, numbered(2))
    const inbox = rememberingReceiver()
    const { opened, open } = gate()
    const consuming = sqsConsumer({ client, queueUrl, inbox, ...quick }, async (tx, message) => {
      await opened
      tx.push(message.id!)
    })
    await pollUntil('two to be handled', () => inbox.seen.length === 2)
    let isStopped = false
    const stopped = consuming.stop().then(() => (isStopped = true))
    // Its last question is still open, and must not keep these.
    await send(queueUrl, [outgoing('later'), outgoing('last')])
    const askedAtMs = performance.now()
    await pollUntil('the last question to be answered', () => performance.now() > askedAtMs + 1_500)
    expect(isStopped).toBe(false)
    open()
    await stopped
    await consuming.ended
    expect(inbox.effects.toSorted()).toEqual(['m0', 'm1'])
    expect(await countIn(client, queueUrl)).toEqual({ visible: 2, hidden: 0 })
  })

  test('a message is kept from others for as long as its handler runs', async () => {
    const queueUrl = await createQueue(client)
    await send(queueUrl, [outgoing('long')])
    const [first, second] = [rememberingReceiver(), rememberingReceiver()]
    const options = { client, queueUrl, waitMs: 1_000, visibilityMs: 6_000 }
    const { opened, open } = gate()
    let beganMs = 0
    const one = sqsConsumer({ ...options, inbox: first }, async (tx, message) => {
      beganMs = performance.now()
      await opened
      tx.push(message.id!)
    })
    await pollUntil('it to be handled', () => beganMs > 0)
    const other = sqsConsumer({ ...options, inbox: second }, noteId)
    await pollUntil('its first time to be over', () => performance.now() > beganMs + 8_000)
    open()
    await one.stop()
    await other.stop()
    expect(idsOf(first.seen)).toEqual(['long'])
    expect(second.seen).toEqual([])
    expect(await countIn(client, queueUrl)).toEqual({ visible: 0, hidden: 0 })
  })

  test('what a consumer was handling when it was killed goes to another', async () => {
    const queueUrl = await createQueue(client)
    await send(queueUrl, numbered(4))
    const program = join(import.meta.dirname, '../../../test/messages/hanging-sqs-consumer.ts')
    const child = fork(program, [serverUrl, queueUrl], { execArgv: [] })
    const [taken] = (await once(child, 'message')) as [string]
    const exited = once(child, 'exit')
    child.kill('SIGKILL')
    await exited
    const inbox = rememberingReceiver()
    const consuming = sqsConsumer({ client, queueUrl, inbox, ...quick }, noteId)
    await pollUntil('all to be done', () => inbox.effects.length === 4)
    await consuming.stop()
    expect(inbox.effects.toSorted()).toEqual(['m0', 'm1', 'm2', 'm3'])
    expect(inbox.seen.find(({ id }) => id === taken)!.delivery).toBeGreaterThan(1)
  })

  test('a queue that is not there ends the consumer with what to do', async () => {
    const inbox = rememberingReceiver()
    const queueUrl = `${serverUrl}/000000000000/nowhere`
    const consuming = sqsConsumer({ client, queueUrl, inbox, ...quick }, noteId)
    await expect(consuming.ended).rejects.toThrow(/remembering cannot receive from .*nowhere .*Check the URL/)
    await consuming.stop()
  })

  test('of a batch to publish, what fails is named, and nothing of its key is sent after it', async () => {
    const queueUrl = await createQueue(client, fifo)
    const other = await createQueue(client)
    const queueUrlOf = (topic: string): string => {
      if (topic === 'unknown') throw new Error('no queue for unknown')
      return topic === 'nowhere' ? `${serverUrl}/000000000000/nowhere` : topic === 'other' ? other : queueUrl
    }
    const large = new Uint8Array(1_048_577).fill(97)
    const published = await sqsPublisher({ client, queueUrlOf }).publish([
      outgoing('a1', { key: 'a' }),
      outgoing('a2', { key: 'a', body: large }),
      outgoing('a3', { key: 'a' }),
      outgoing('b1', { key: 'b' }),
      outgoing('n1', { topic: 'nowhere' }),
      outgoing('u1', { topic: 'unknown' }),
      outgoing('o1', { topic: 'other' }),
    ])
    expect(published.map((each) => each?.name)).toEqual([
      undefined,
      'Error',
      'NotSentError',
      undefined,
      'QueueDoesNotExist',
      'Error',
      undefined,
    ])
    expect(published[1]!.message).toMatch(/message a2 has \d+ bytes .* SQS takes 1048576/)
    expect(published[2]!.message).toMatch(/message a3 was not sent: a2 before it failed/)
    expect(await countIn(client, queueUrl)).toEqual({ visible: 2, hidden: 0 })
    expect(await countIn(client, other)).toEqual({ visible: 1, hidden: 0 })
  })

  test('a message that a relay sends again is dropped by a FIFO queue', async () => {
    const queueUrl = await createQueue(client, fifo)
    await send(queueUrl, [outgoing('a', { key: 'k' })])
    await send(queueUrl, [outgoing('a', { key: 'k' }), outgoing('b', { key: 'k' })])
    expect(await countIn(client, queueUrl)).toEqual({ visible: 2, hidden: 0 })
  })
})

needs('elasticmq', { ours: true }).describe('SQS whose server is killed', () => {
  test('every message has one effect, though publisher and consumer lose their server three times', async () => {
    await using server = await startElasticmq()
    const client = connectSqs(server.url)
    const queueUrl = await createQueue(client)
    const inbox = rememberingReceiver()
    const options = { client, queueUrl, inbox, timeoutMs: 5_000, waitMs: 1_000, visibilityMs: 5_000 }
    const consuming = sqsConsumer(options, noteId)
    const sent = numbered(300)
    let confirmed = 0
    const publishing = publishUntilConfirmed(client, queueUrl, sent, () => (confirmed += 10))
    for (const share of [60, 150, 240]) {
      await pollUntil(`${share} to be confirmed`, () => confirmed >= share)
      await server.crash()
      await server.restart()
    }
    await publishing
    await pollUntil('all to be done and deleted', async () => {
      const { visible, hidden } = await countIn(client, queueUrl)
      return inbox.effects.length >= sent.length && visible + hidden === 0
    })
    await consuming.stop()
    client.destroy()
    expect(inbox.effects.toSorted()).toEqual(sent.map(({ id }) => id).toSorted())
  })
})

/** As a relay does: batch after batch, each until the broker has confirmed all of it. */
async function publishUntilConfirmed(
  client: SQS,
  queueUrl: string,
  sent: readonly Outgoing[],
  onConfirmed: () => void,
): Promise<void> {
  const publisher = sqsPublisher({ client, queueUrl, timeoutMs: 5_000 })
  for (let at = 0; at < sent.length; at += 10) {
    let left: readonly Outgoing[] = sent.slice(at, at + 10)
    await pollUntil('a batch to be confirmed', async () => {
      const published = await publisher.publish(left)
      left = left.filter((_, index) => published[index] !== undefined)
      return left.length === 0
    })
    onConfirmed()
  }
}
