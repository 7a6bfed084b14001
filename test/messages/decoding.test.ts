// A relay that hears of commits by logical decoding, on the real server: the stream makes it quick, and whatever happens to the stream
// loses nothing, delivers nothing that was rolled back, and changes no order.
import { type ChildProcess, fork } from 'node:child_process'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest'
import { createDecoding, type Decoding } from '../../src/messages/outbox.ts'
import type { Publisher } from '../../src/messages/broker.ts'
import { seededRandom } from '../../src/testing/seeded-random.ts'
import { type FaultProxy, startFaultProxy } from '../servers/fault-proxy.ts'
import { needs } from '../servers/needs.ts'
import { requireReplication } from '../servers/pg-logical-replication.ts'
import { pollUntil } from '../servers/poll.ts'
import { eventually } from './eventually.ts'
import { insertEffect, type MessagesGround, startPostgresMessages } from './grounds.ts'
import { emptyOutbox, keysOfOneShard, listBroker, makeDue, openOutbox, type OpenOutbox } from './outbox-ground.ts'

const order = { topic: 'orders', type: 'order.placed' }
// Nothing that a relay does with its lease helps in these tests.
const leaseMs = 600_000

needs(['postgres', 'pg-logical-replication'], { ours: true }).describe('a relay with logical decoding', () => {
  let ground: MessagesGround
  // Between the stream and the server, and nothing else.
  let wire: FaultProxy
  // The process of the relay, and the process that commits: the first hears of the second by the stream alone.
  let open: OpenOutbox
  let other: OpenOutbox
  let said: string[]
  const decodings: Decoding[] = []
  const hear = (event: unknown): void => {
    const { slot, how, reason } = event as { slot: string; how: string; reason?: string }
    said.push([slot, how, ...(reason === undefined ? [] : [reason])].join(' '))
  }

  beforeAll(async () => {
    ground = await startPostgresMessages({ wal_level: 'logical' })
    wire = await startFaultProxy({ target: { url: ground.proxy!.url } })
    subscribe('onceonly:relay-decoding', hear)
    open = await openOutbox(ground)
    await open.outbox.migrate()
    await open[Symbol.asyncDispose]()
  })
  afterAll(async () => {
    unsubscribe('onceonly:relay-decoding', hear)
    await wire.close()
    await ground[Symbol.asyncDispose]()
  })
  beforeEach(async () => {
    said = []
    await emptyOutbox(ground)
    open = await openOutbox(ground)
    other = await openOutbox(ground)
  })
  afterEach(async () => {
    await wire.setMode('pass')
    await Promise.all(decodings.map((decoding) => decoding.close()))
    for (const decoding of decodings.splice(0))
      await eventually('the slot to be dropped', () =>
        decoding.drop().then(
          () => true,
          () => false,
        ),
      )
    await open[Symbol.asyncDispose]()
    await other[Symbol.asyncDispose]()
  })

  async function decode(slot = 'relay_1', outbox = open.outbox): Promise<Decoding> {
    const connection = { connectionString: wire.url }
    const decoding = createDecoding({ outbox, library: requireReplication(), connection, slot })
    decodings.push(decoding)
    await decoding.create()
    return decoding
  }

  const streaming = (times = 1): Promise<unknown> =>
    eventually('the relay to stream', () => said.filter((each) => each === 'relay_1 streaming').length >= times)

  // All shards are taken, and each has been looked at in the session that streams. Then only the stream says that there is more.
  async function quiet(decoding: Decoding): Promise<{ looks: () => number }> {
    await streaming()
    const read = vi.spyOn(open.outbox.rows, 'read')
    const asked = vi.spyOn(decoding.rows, 'read')
    await eventually('the relay to have nothing to look for', () => {
      const [before, questions] = [read.mock.calls.length, asked.mock.calls.length]
      return eventually('more questions', () => asked.mock.calls.length >= questions + 12).then(
        () => read.mock.calls.length === before,
      )
    })
    return { looks: () => read.mock.calls.length }
  }

  test('a commit of another process is delivered, and while there is none no row is looked for', async () => {
    const decoding = await decode()
    const broker = listBroker()
    open.relay({ outbox: decoding, publisher: broker, leaseMs }).start()
    const due = vi.spyOn(open.outbox.rows, 'readDue')
    const { looks } = await quiet(decoding)
    const [before, dueBefore] = [looks(), due.mock.calls.length]
    const id = await other.addOne({ key: 'order-1' })
    await eventually('the event to arrive', () => broker.firsts().includes(id))
    expect(looks() - before).toBeLessThanOrEqual(20)
    expect(due.mock.calls.length).toBe(dueBefore)
    expect(said).toEqual(['relay_1 streaming'])
  })

  test('under many transactions of several processes at once every commit is delivered, in the order of commits per key', async () => {
    const broker = listBroker()
    open.relay({ outbox: await decode(), publisher: broker, batch: 7, leaseMs }).start()
    await streaming()
    const committed: string[] = []
    const keys = ['a', 'b', 'c']
    // It takes the first place of its key, and commits when most of the others have.
    const slow = await other.begin()
    const slowId = await other.outbox.add(slow.tx, { ...order, key: 'slow' })
    const work = Array.from({ length: 60 }, async (_, index) => {
      const key = keys[index % keys.length]!
      const doing = other.transaction(async (tx) => {
        const id = await other.outbox.add(tx, { ...order, key })
        // The number of the effect is taken under the lock of the key, too: its order is the order of commits.
        await insertEffect(ground, other.database, tx, `${key} ${id}`)
        if (index % 5 === 0) throw new Error('rolled back')
        committed.push(id)
      })
      await doing.catch((error: unknown) => expect(String(error)).toContain('rolled back'))
    })
    await Promise.all(work)
    await eventually('all others to arrive', () => broker.firsts().length === committed.length)
    expect(broker.firsts()).not.toContain(slowId)
    await slow.commit()
    await eventually('the slow one to arrive', () => broker.firsts().includes(slowId))
    expect(broker.firsts().toSorted()).toEqual([...committed, slowId].toSorted())
    const effects = await ground.effects()
    for (const key of keys)
      expect(broker.ofKey(key)).toEqual(effects.filter((each) => each.startsWith(key)).map((each) => each.slice(2)))
  })

  test('a transaction of thousands of rows arrives whole and in order, and one that is rolled back never', async () => {
    const broker = listBroker()
    open.relay({ outbox: await decode(), publisher: broker, batch: 500, leaseMs }).start()
    await streaming()
    const events = Array.from({ length: 1_500 }, (_, index) => ({ ...order, key: `key-${index % 40}` }))
    const undone = other.transaction(async (tx) => {
      await other.outbox.add(tx, events)
      throw new Error('rolled back')
    })
    await expect(undone).rejects.toThrow('rolled back')
    const ids = await other.transaction((tx) => other.outbox.add(tx, events))
    await eventually('all to arrive', () => broker.arrived.length >= ids.length)
    expect(broker.firsts().toSorted()).toEqual([...ids].toSorted())
    for (let key = 0; key < 40; key++)
      expect(broker.ofKey(`key-${key}`)).toEqual(ids.filter((_, index) => index % 40 === key))
  })

  test('a row that the stream tells of before it can be seen is delivered when it can be seen', async () => {
    const broker = listBroker()
    const decoding = await decode()
    open.relay({ outbox: decoding, publisher: broker, leaseMs }).start()
    const { looks } = await quiet(decoding)
    const before = looks()
    // The server has the commit in its log and sends it to the slot, but shows it to no session before a standby that does not exist.
    await ground.ask(`alter system set synchronous_standby_names = 'nobody'`)
    await ground.ask('select pg_reload_conf()')
    const adding = other.addOne({ key: 'order-1' })
    try {
      await eventually('the relay to look in vain', () => looks() >= before + 3)
      expect(broker.arrived).toEqual([])
    } finally {
      await ground.ask('alter system reset synchronous_standby_names')
      await ground.ask('select pg_reload_conf()')
    }
    const id = await adding
    await eventually('the event to arrive', () => broker.firsts().includes(id))
  })

  test('while the stream is cut the relay polls, and streams again afterwards', async () => {
    const broker = listBroker()
    const decoding = await decode()
    open.relay({ outbox: decoding, publisher: broker, leaseMs }).start()
    await streaming()
    const ids = [await other.addOne({ key: 'order-1' })]
    await wire.setMode('reset')
    await eventually('the relay to notice', () => said.some((each) => each.startsWith('relay_1 polling')))
    ids.push(await other.addOne({ key: 'order-1' }))
    await eventually('what is committed meanwhile to arrive', () => broker.firsts().length === 2)
    await wire.setMode('pass')
    await streaming(2)
    ids.push(await other.addOne({ key: 'order-1' }))
    await eventually('what is committed afterwards to arrive', () => broker.firsts().length === 3)
    expect(broker.firsts()).toEqual(ids)
  })

  test('a relay polls until its stream has caught up', async () => {
    const decoding = await decode()
    await other.addOne({ key: 'order-1' })
    await ground.ask('create table if not exists noise (text text)')
    await ground.ask(`insert into noise select repeat('x', 1000) from generate_series(1, 40000)`)
    const [end] = await ground.ask('select pg_current_wal_flush_lsn()')
    const asked = Promise.withResolvers<string[]>()
    const ask = (): void =>
      asked.resolve(ground.ask(`select bool_and(sent_lsn >= '${end}'::pg_lsn) from pg_stat_replication`))
    subscribe('onceonly:relay-decoding', ask)
    open.relay({ outbox: decoding, publisher: listBroker(), leaseMs }).start()
    await streaming()
    unsubscribe('onceonly:relay-decoding', ask)
    expect(await asked.promise).toEqual(['true'])
  })

  test('a stream that falls silent is noticed, and the relay polls', async () => {
    const broker = listBroker()
    open.relay({ outbox: await decode(), publisher: broker, leaseMs: 3_000 }).start()
    await streaming()
    await wire.setMode('blackHole')
    await eventually('the relay to notice', () => said.includes('relay_1 polling SILENT'))
    const id = await other.addOne({ key: 'order-1' })
    await eventually('the event to arrive', () => broker.firsts().includes(id))
  })

  test('what no session has heard of is found by a look at the whole shard when the next one begins', async () => {
    const [a, b] = keysOfOneShard(2) as [string, string]
    const broker = listBroker()
    const slow = gated(broker)
    const decoding = await decode()
    open.relay({ outbox: decoding, publisher: slow, leaseMs }).start()
    await quiet(decoding)
    const first = await other.addOne({ key: a })
    await slow.reached
    await wire.setMode('reset')
    await eventually('the relay to notice', () => said.some((each) => each.startsWith('relay_1 polling')))
    // The worker of the shard is busy with the first, and the slot begins anew behind the second.
    const second = await other.addOne({ key: b })
    await eventually('the old slot to go', () =>
      ground.ask(`select pg_drop_replication_slot('relay_1')`).then(
        () => true,
        () => false,
      ),
    )
    await decoding.create()
    await wire.setMode('pass')
    await streaming(2)
    slow.open()
    await eventually('both to arrive', () => broker.firsts().length === 2)
    expect(broker.firsts()).toEqual([first, second])
  })

  test('a relay whose slot another one streams polls until the slot is free', async () => {
    const broker = listBroker()
    // Two that begin at once can want the same shard, and one of them looks for another when it attends to its lease.
    const shared = { publisher: broker, leaseMs: 3_000, shardsMax: 2 }
    const holder = open.relay({ outbox: await decode(), ...shared })
    holder.start()
    await streaming()
    const second = await decode('relay_1', other.outbox)
    other.relay({ outbox: second, ...shared }).start()
    await eventually('the second to find it taken', () => said.includes('relay_1 polling 55006'))
    const ids = await Promise.all(Array.from({ length: 40 }, (_, index) => other.addOne({ key: `key-${index}` })))
    await eventually('those of both relays to arrive', () => broker.firsts().length === ids.length)
    const third = await decode('relay_1', other.outbox)
    await expect(third.drop()).rejects.toThrow(/slot relay_1 was not dropped.*another relay/)
    await holder.stop()
    await streaming(2)
  })

  test('a head that fails blocks its key and no other, and leaves first when it succeeds', async () => {
    let isBroken = true
    const broker = listBroker(({ key }) => (isBroken && key === 'bad' ? new Error('refused') : undefined))
    open.relay({ outbox: await decode(), publisher: broker, leaseMs }).start()
    await streaming()
    const bad = [await other.addOne({ key: 'bad' }), await other.addOne({ key: 'bad' })]
    const good = await other.addOne({ key: 'good' })
    await eventually('the good one to arrive', () => broker.firsts().includes(good))
    await eventually('both bad ones to be held', async () => (await other.outbox.status()).waiting === 2)
    isBroken = false
    await makeDue(ground)
    await eventually('the bad ones to arrive', () => broker.firsts().length === 3)
    expect(broker.ofKey('bad')).toEqual(bad)
  })

  test('a dead letter that another process redrives is sent', async () => {
    let isBroken = true
    const broker = listBroker(() => (isBroken ? new Error('refused') : undefined))
    open.relay({ outbox: await decode(), publisher: broker, leaseMs: 3_000, onFailure: { skipAfter: 1 } }).start()
    await streaming()
    const id = await other.addOne({ key: 'order-1' })
    await eventually('the dead letter', async () => (await other.outbox.deadLetters()).length === 1)
    isBroken = false
    expect(await other.outbox.redrive()).toBe(1)
    await eventually('the event to arrive', () => broker.firsts().includes(id))
  })

  test('the slot moves on with what is delivered, and with what other tables write', async () => {
    const broker = listBroker()
    open.relay({ outbox: await decode(), publisher: broker, leaseMs }).start()
    await streaming()
    await other.addOne({ key: 'order-1' })
    await eventually('the event to arrive', () => broker.arrived.length === 1)
    await ground.ask('create table if not exists noise (text text)')
    await ground.ask(`insert into noise select repeat('x', 1000) from generate_series(1, 5000)`)
    const reached = await ground.ask('select pg_current_wal_insert_lsn()')
    await eventually('the slot to be past the noise', async () => {
      const [isPast] = await ground.ask(
        `select confirmed_flush_lsn >= '${reached[0]}'::pg_lsn from pg_replication_slots where slot_name = 'relay_1'`,
      )
      return isPast === 'true'
    })
  })

  test('create may be called again, replaces no slot that lives, and drop leaves nothing', async () => {
    const decoding = await decode()
    const slots = (): Promise<string[]> => ground.ask('select slot_name from pg_replication_slots')
    const publications = (): Promise<string[]> => ground.ask('select pubname from pg_publication')
    const [before] = await ground.ask('select confirmed_flush_lsn from pg_replication_slots')
    await Promise.all([decoding.create(), decoding.create()])
    expect(await ground.ask('select confirmed_flush_lsn from pg_replication_slots')).toEqual([before])
    expect([await slots(), await publications()]).toEqual([['relay_1'], ['onceonly_outbox']])
    const second = await decode('relay_2')
    await second.drop()
    expect([await slots(), await publications()]).toEqual([['relay_1'], ['onceonly_outbox']])
    await decoding.drop()
    expect([await slots(), await publications()]).toEqual([[], []])
    await decoding.drop()
  })

  test('a slot that the server has given up is replaced by create', async () => {
    const decoding = await decode()
    const status = (): Promise<string[]> => ground.ask('select wal_status from pg_replication_slots')
    await ground.ask(`alter system set max_slot_wal_keep_size = '16MB'`)
    await ground.ask('select pg_reload_conf()')
    await eventually('the slot to be lost', async () => {
      await ground.ask('create table if not exists noise (text text)')
      await ground.ask(`insert into noise values ('x')`)
      await ground.ask('select pg_switch_wal()')
      await ground.ask('checkpoint')
      return (await status())[0] === 'lost'
    })
    await ground.ask('alter system reset max_slot_wal_keep_size')
    await ground.ask('select pg_reload_conf()')
    await decoding.create()
    expect(await status()).toEqual(['reserved'])
  })

  test('a relay that is killed anywhere loses nothing and changes no order', { timeout: 120_000 }, async () => {
    await ground.ask('create table if not exists arrived (n bigserial, id text, key text)')
    await decode()
    const random = seededRandom(13)
    const ids: string[] = []
    let isOver = false
    const writing = (async () => {
      for (let index = 0; !isOver; index++) {
        ids.push(await other.addOne({ key: `key-${index % 5}` }))
        await pollUntil('a backlog that is not long', async () => {
          const [count] = await ground.ask('select count(distinct id) from arrived')
          return isOver || ids.length - Number(count) < 40
        })
      }
    })()
    for (let kill = 0; kill < 4; kill++) {
      const relay = startRelay(ground)
      for (let left = random.integer(1, 25); left > 0; left--) await once(relay, 'message')
      relay.kill('SIGKILL')
      await once(relay, 'exit')
    }
    isOver = true
    await writing
    const last = startRelay(ground)
    const firsts = (): Promise<string[]> => ground.ask('select id from arrived group by id order by min(n)')
    await pollUntil('all to arrive', async () => (await firsts()).length >= ids.length)
    last.kill('SIGKILL')
    await once(last, 'exit')
    expect((await firsts()).toSorted()).toEqual(ids.toSorted())
    for (let key = 0; key < 5; key++) {
      const own = await ground.ask(`select id from arrived where key = 'key-${key}' group by id order by min(n)`)
      expect(own).toEqual(ids.filter((_, index) => index % 5 === key))
    }
  })

  test('tables that are missing, a slot of another database and an outbox elsewhere are refused by name', async () => {
    await ground.ask(`select pg_create_logical_replication_slot('taken', 'test_decoding')`)
    const create = (slot: string): Promise<void> =>
      createDecoding({ outbox: open.outbox, library: requireReplication(), connection: {}, slot }).create()
    await expect(create('taken')).rejects.toMatchObject({
      code: 'UNSUPPORTED',
      message: expect.stringMatching('slot taken is of') as string,
    })
    await ground.ask(`select pg_drop_replication_slot('taken')`)
    expect(() => create('Relay-1')).toThrow('expected slot to be 1 to 63 lower-case letters, digits and underscores')
    const elsewhere = { rows: open.outbox.rows, onAdded: open.outbox.onAdded }
    const decoding = { outbox: elsewhere, library: requireReplication(), connection: {}, slot: 'relay_1' }
    expect(() => createDecoding(decoding)).toThrow(
      'createDecoding needs an outbox that createOutbox made on PostgreSQL',
    )
    await using plain = await startPostgresMessages()
    await using opened = await openOutbox(plain)
    const refused = createDecoding({ ...decoding, outbox: opened.outbox })
    await expect(refused.create()).rejects.toMatchObject({
      code: 'UNSUPPORTED',
      message: expect.stringMatching(/wal_level = logical, and this server has replica.*restart PostgreSQL/) as string,
    })
  })
})

function startRelay(ground: MessagesGround): ChildProcess {
  return fork(join(import.meta.dirname, 'decoding-relay.ts'), [ground.proxy!.url, 'relay_1'])
}

// Publishes when it is opened.
function gated(broker: Publisher): Publisher & { readonly reached: Promise<void>; open(): void } {
  const reached = Promise.withResolvers<void>()
  const gate = Promise.withResolvers<void>()
  return {
    name: 'gated',
    reached: reached.promise,
    open: () => gate.resolve(),
    async publish(messages) {
      reached.resolve()
      await gate.promise
      return broker.publish(messages)
    },
  }
}
