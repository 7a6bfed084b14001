// The outbox on every SQL database: what commits is delivered, what is rolled back never is, and the order per key is that of commits.
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { createOnce } from '../../src/core/once.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { createOutbox } from '../../src/messages/outbox.ts'
import { needs } from '../servers/needs.ts'
import { grounds, insertEffect, type MessagesGround } from './grounds.ts'
import { emptyOutbox, listBroker, openOutbox, type OpenOutbox, textIn } from './outbox-ground.ts'

const order = { topic: 'orders', type: 'order.placed' }

for (const { name, server, start } of grounds) {
  const suite = server === undefined ? describe : needs(server, { ours: true }).describe
  suite(`an outbox on ${name}`, () => {
    let ground: MessagesGround
    let open: OpenOutbox
    beforeAll(async () => {
      ground = await start()
      open = await openOutbox(ground)
      await Promise.all([open.outbox.migrate(), open.outbox.migrate()])
      await open[Symbol.asyncDispose]()
    })
    afterAll(() => ground[Symbol.asyncDispose]())
    beforeEach(async () => {
      await emptyOutbox(ground)
      open = await openOutbox(ground)
    })
    afterEach(() => open[Symbol.asyncDispose]())

    test('what a transaction adds is delivered when it commits, and never when it is rolled back', async () => {
      const broker = listBroker()
      const relay = open.relay({ publisher: broker })
      const ids = await open.transaction((tx) =>
        open.outbox.add(tx, [
          { ...order, key: 'order-1', data: { total: 1 } },
          { ...order, key: 'order-1', data: { total: 2 } },
          { ...order, data: new Uint8Array([0, 1, 255]) },
        ]),
      )
      const undone = open.transaction(async (tx) => {
        await open.outbox.add(tx, { ...order, key: 'order-1' })
        throw new Error('undone')
      })
      await expect(undone).rejects.toThrow('undone')
      expect(await relay.runOnce()).toEqual({ sent: 3, held: 0, dead: 0 })
      expect(broker.firsts().toSorted()).toEqual([...ids].toSorted())
      expect(broker.ofKey('order-1')).toEqual(ids.slice(0, 2))
      expect(broker.arrived.find(({ id }) => id === ids[2])!.body).toEqual(Buffer.from([0, 1, 255]))
      expect(await relay.runOnce()).toEqual({ sent: 0, held: 0, dead: 0 })
    })

    test('a row is a CloudEvent with an id that sorts by time, and every odd character arrives', async () => {
      const broker = listBroker()
      const traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
      const odd = String.raw`it's "quoted" \ ? $1 :name {a} %s -- ; ü 🙂`
      const id = await open.addOne({
        topic: odd,
        key: odd,
        data: { odd, nul: '\0' },
        headers: { tenant: odd },
        traceparent,
      })
      await open.relay({ publisher: broker }).runOnce()
      expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7/)
      const [message] = broker.arrived
      expect(message).toMatchObject({ id, topic: odd, key: odd })
      expect(JSON.parse(textIn(message!))).toEqual({ odd, nul: '\0' })
      expect(message!.headers).toMatchObject({
        'ce-id': id,
        'ce-source': 'shop',
        'ce-type': 'order.placed',
        'ce-specversion': '1.0',
        'ce-partitionkey': odd,
        'content-type': 'application/json',
        tenant: odd,
        traceparent,
      })
    })

    test('a body of any characters arrives, and so do headers that somebody has laid out over lines', async () => {
      const broker = listBroker()
      const data = 'one\ntwo\u001ethree\r\n'
      await open.addOne({ data, contentType: 'text/plain' })
      await ground.ask(`update onceonly_outbox set headers = '{\n  "tenant": "acme"\n}'`)
      await open.relay({ publisher: broker }).runOnce()
      expect(textIn(broker.arrived[0]!)).toBe(data)
      expect(broker.arrived[0]!.headers).toEqual({ tenant: 'acme' })
    })

    test('the columns are those that the outbox event router of Debezium reads by default', async () => {
      const id = await open.addOne({ key: 'order-1', data: { total: 1 } })
      for (const [column, value] of Object.entries({
        id,
        aggregatetype: 'orders',
        aggregateid: 'order-1',
        type: 'order.placed',
        payload: '{"total":1}',
      }))
        expect(await ground.ask(`select ${column} from onceonly_outbox`)).toEqual([value])
    })

    test('an event commits with the effect and the record of a key', async () => {
      const broker = listBroker()
      const once = createOnce({ store: open.store, scope: 'shop' })
      for (let attempt = 1; attempt <= 2; attempt++) {
        await once.transaction('order-1', async (tx) => {
          await insertEffect(ground, open.database, tx, 'order-1')
          await open.outbox.add(tx, { ...order, key: 'order-1' })
          return 'placed'
        })
      }
      const failing = once.transaction('order-2', async (tx) => {
        await open.outbox.add(tx, { ...order, key: 'order-2' })
        throw new Error('declined')
      })
      await expect(failing).rejects.toThrow('declined')
      await open.relay({ publisher: broker }).runOnce()
      expect(broker.arrived.map(({ key }) => key)).toEqual(['order-1'])
      expect(await ground.effects()).toEqual(['order-1'])
      await once.close()
    })

    test('a transaction that commits late is not lost behind one that commits before it', async () => {
      if (ground.dialect === 'sqlite') return // has one writer: a transaction that commits late has begun late
      const broker = listBroker()
      const relay = open.relay({ publisher: broker })
      const slow = await open.begin()
      const slowId = await open.outbox.add(slow.tx, { ...order, key: 'slow' })
      // Enough of them that some share the shard of the slow one.
      const quick = await Promise.all(Array.from({ length: 40 }, (_, index) => open.addOne({ key: `quick-${index}` })))
      await relay.runOnce()
      expect(broker.firsts()).not.toContain(slowId)
      await slow.commit()
      await relay.runOnce()
      expect(broker.firsts().toSorted()).toEqual([...quick, slowId].toSorted())
      expect(broker.arrived).toHaveLength(41)
    })

    test('of one key the second transaction waits for the first, and is delivered after it', async () => {
      if (ground.dialect === 'sqlite') return // has one writer
      const broker = listBroker()
      const relay = open.relay({ publisher: broker })
      const began = await open.begin()
      const other = await open.begin()
      const first = await open.outbox.add(other.tx, { ...order, key: 'order-1' })
      let hasAdded = false
      const adding = open.outbox.add(began.tx, { ...order, key: 'order-1' }).then((id) => {
        hasAdded = true
        return id
      })
      await relay.runOnce()
      expect(hasAdded).toBe(false)
      await other.commit()
      const second = await adding
      await relay.runOnce()
      expect(broker.firsts()).toEqual([first])
      await began.commit()
      await relay.runOnce()
      expect(broker.firsts()).toEqual([first, second])
    })

    test('under many transactions at once every commit is delivered, in the order of commits per key', async () => {
      const broker = listBroker()
      const relay = open.relay({ publisher: broker, batch: 7, leaseMs: 60_000 })
      relay.start()
      const committed: string[] = []
      const keys = ['a', 'b', 'c']
      const work = Array.from({ length: 60 }, async (_, index) => {
        const key = keys[index % keys.length]!
        const doing = open.transaction(async (tx) => {
          const id = await open.outbox.add(tx, { ...order, key })
          // The number of the effect is taken under the lock of the key, too: its order is the order of commits.
          await insertEffect(ground, open.database, tx, `${key} ${id}`)
          if (index % 5 === 0) throw new Error('rolled back')
          committed.push(id)
        })
        await doing.catch((error: unknown) => expect(String(error)).toContain('rolled back'))
      })
      await Promise.all(work)
      await expect.poll(() => broker.firsts().length, { timeout: 60_000 }).toBe(committed.length)
      await relay.stop()
      expect(broker.firsts().toSorted()).toEqual(committed.toSorted())
      const effects = await ground.effects()
      for (const key of keys) {
        expect(broker.ofKey(key)).toEqual(effects.filter((each) => each.startsWith(key)).map((each) => each.slice(2)))
      }
      expect(await open.outbox.status()).toMatchObject({ unsent: 0, blockedKeys: 0, parked: 0, dead: 0, waiting: 0 })
    })

    test('of a large backlog the age is told exactly, and no more rows are counted than tell something', async () => {
      await open.addOne({ key: 'order-1' })
      if (ground.dialect === 'postgres') {
        const columns = 'period, aggregatetype, aggregateid, type, payload, encoding, headers, added_at_ms'
        // In two lanes, neither of which has as many.
        await ground.ask(`insert into onceonly_outbox (lane, position, id, ${columns})
          select lane # (n % 2)::smallint, nextval('onceonly_outbox_position'), gen_random_uuid(), ${columns}
          from onceonly_outbox, generate_series(1, 12000) n`)
        await ground.ask(`update onceonly_outbox set added_at_ms = added_at_ms - 3600000
          where position = (select min(position) from onceonly_outbox)`)
      }
      const { unsent, lagMs } = await open.outbox.status()
      expect(unsent).toBe(ground.dialect === 'postgres' ? 10_000 : 1)
      expect(lagMs).toBeGreaterThanOrEqual(ground.dialect === 'postgres' ? 3_600_000 : 0)
      expect(lagMs).toBeLessThan(3_700_000)
    })

    const backlogs = {
      'many rows that are sent': { sent: 40_000, unsent: 5 },
      'many rows that are not sent': { sent: 5, unsent: 40_000 },
    }
    test.each(Object.entries(backlogs))(
      'the status reads the rows that it counts, and no table for each lane, whatever the planner finds cheap (%s)',
      async (_name, { sent, unsent }) => {
        if (ground.dialect !== 'postgres') return // the others count by the counters of the lanes
        await fillTwoLanes(ground, open.outbox, sent, unsent)
        const [database] = await ground.ask('select current_database()')
        // As on a server whose index is bloated, or not in memory.
        await ground.ask(`alter database "${database}" set random_page_cost = 40`)
        const before = await rowsRead(ground)
        const asking = await openOutbox(ground)
        const { unsent: counted } = await asking.outbox.status()
        await asking[Symbol.asyncDispose]()
        await ground.ask(`alter database "${database}" reset random_page_cost`)
        const told = Math.min(unsent, 10_000)
        expect(counted).toBe(told)
        // The server tells what a connection has read at the latest when it ends.
        const read = async (): Promise<number> => (await rowsRead(ground)) - before
        await expect.poll(read, { timeout: 30_000 }).toBeGreaterThanOrEqual(told)
        expect(await read()).toBeLessThan(told + 1_000)
      },
    )

    test('a connection outside of a transaction is refused, and nothing is added', async () => {
      const transaction = await open.begin()
      await open.database.join(transaction.tx, 'test').query({ texts: ['rollback'], values: [] })
      if (ground.dialect === 'mysql')
        await open.database.join(transaction.tx, 'test').query({ texts: ['set autocommit = 1'], values: [] })
      const adding = open.outbox.add(transaction.tx, { ...order, key: 'order-1' })
      await expect(adding).rejects.toMatchObject({ code: 'INVALID_ARGUMENT', executed: 'no' })
      await transaction.rollback()
      expect(await ground.ask('select count(*) from onceonly_outbox')).toEqual(['0'])
    })

    test('what is sent and old is removed, and what is not sent stays', async () => {
      await open[Symbol.asyncDispose]()
      open = await openOutbox(ground, 1)
      const broker = listBroker()
      await open.addOne({ key: 'sent' })
      await open.relay({ publisher: broker }).runOnce()
      const unsent = await open.addOne({ key: 'unsent' })
      // Rows of different periods: a table that holds a row that is not sent is not emptied.
      if (ground.dialect === 'postgres') {
        await ground.ask(`update onceonly_outbox set period = 0 where aggregateid = 'sent'`)
        await ground.ask(`update onceonly_outbox set period = 1 where aggregateid = 'unsent'`)
      }
      const left = async (): Promise<string[]> => {
        await open.outbox.rows.retain()
        return ground.ask('select aggregateid from onceonly_outbox order by aggregateid')
      }
      await expect.poll(left, { timeout: 30_000 }).toEqual(['unsent'])
      // A period is a millisecond here: each of them has its turn.
      for (let looked = 0; looked < 30; looked++) expect(await left()).toEqual(['unsent'])
      await open.relay({ publisher: broker }).runOnce()
      expect(broker.firsts().at(-1)).toBe(unsent)
    })

    test('a period is emptied without reading its rows once per lane, while others wait for its lock', async () => {
      if (ground.dialect !== 'postgres') return // the others delete row by row
      await fillTwoLanes(ground, open.outbox, 40_000, 0)
      const before = await rowsRead(ground)
      const retaining = await openOutbox(ground, 1)
      const left = async (): Promise<string[]> => {
        await retaining.outbox.rows.retain()
        return ground.ask('select lane from onceonly_outbox limit 1')
      }
      await expect.poll(left, { timeout: 60_000 }).toEqual([])
      await retaining[Symbol.asyncDispose]()
      const read = async (): Promise<number> => (await rowsRead(ground)) - before
      await expect.poll(read, { timeout: 30_000 }).toBeGreaterThan(0)
      expect(await read()).toBeLessThan(1_000)
    })

    test('missing tables are named with their cure', async () => {
      await ground.ask('alter table onceonly_outbox_lanes rename to moved_lanes')
      const error = await open.addOne({ key: 'order-1' }).catch((thrown: unknown) => thrown)
      await ground.ask('alter table moved_lanes rename to onceonly_outbox_lanes')
      expect(error).toMatchObject({ code: 'SCHEMA_MISSING' })
    })
  })
}

/** Rows of two lanes by turns: so many that are sent, with those that are not after them. */
async function fillTwoLanes(
  ground: MessagesGround,
  outbox: { migrate(): Promise<void> },
  sent: number,
  unsent: number,
): Promise<void> {
  // What was deleted would still be read in the index, and a connection tells seconds later what it has read of a table. Of these nobody has.
  await ground.ask('drop table onceonly_outbox')
  await outbox.migrate()
  await ground.ask(`insert into onceonly_outbox
      (lane, position, period, id, aggregatetype, type, payload, encoding, headers, added_at_ms)
    select n % 2, n, 0, gen_random_uuid(), 'orders', 'order.placed', '{}', 'text', '{}', 1
    from generate_series(1, ${sent + unsent}) n`)
  await ground.ask(`update onceonly_outbox_shards set cursors = (
    select json_object_agg(lane, ${sent})::text from onceonly_outbox_lanes)`)
  await ground.ask('analyze onceonly_outbox')
}

/** Of the outbox, from its tables one after the other, and from their indexes. */
async function rowsRead(ground: MessagesGround): Promise<number> {
  const [read] = await ground.ask(`select
    (select sum(seq_tup_read) from pg_stat_user_tables where relname ~ '^onceonly_outbox_[0-9]$') +
    (select sum(idx_tup_read) from pg_stat_user_indexes where relname ~ '^onceonly_outbox_[0-9]$')`)
  return Number(read)
}

test('a store without a SQL database has no outbox', () => {
  expect(() => createOutbox({ store: memoryStore() as never, source: 'shop' })).toThrow(
    expect.objectContaining({ code: 'UNSUPPORTED' }) as Error,
  )
})
