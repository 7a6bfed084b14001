// The relay on every SQL database: heads that fail, relays that meet in one shard, relays that die between any two calls.
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { FinalError } from '../../src/core/errors.ts'
import type { Outgoing, Publisher } from '../../src/messages/broker.ts'
import { createRelay, type RelaySource } from '../../src/messages/outbox.ts'
import { needs } from '../servers/needs.ts'
import { grounds, type MessagesGround } from './grounds.ts'
import {
  emptyOutbox,
  endLeases,
  keysOfOneShard,
  listBroker,
  makeDue,
  openOutbox,
  type OpenOutbox,
  shardOfKey,
} from './outbox-ground.ts'

for (const { name, server, start } of grounds) {
  const suite = server === undefined ? describe : needs(server, { ours: true }).describe
  suite(`a relay on ${name}`, () => {
    let ground: MessagesGround
    let open: OpenOutbox
    beforeAll(async () => {
      ground = await start()
      open = await openOutbox(ground)
      await open.outbox.migrate()
      await open[Symbol.asyncDispose]()
    })
    afterAll(() => ground[Symbol.asyncDispose]())
    beforeEach(async () => {
      await emptyOutbox(ground)
      open = await openOutbox(ground)
    })
    afterEach(() => open[Symbol.asyncDispose]())

    const addAll = async (keys: readonly string[]): Promise<string[]> => {
      const ids: string[] = []
      for (const key of keys) ids.push(await open.addOne({ key }))
      return ids
    }

    test('a head that fails blocks its key and no other, and is delivered first when it succeeds', async () => {
      let isBroken = true
      const [bad1, good1, bad2, good2] = await addAll(['bad', 'good', 'bad', 'good'])
      const broker = listBroker(({ id }) => (isBroken && id === bad1 ? new Error('refused') : undefined))
      const relay = open.relay({ publisher: broker })
      expect(await relay.runOnce()).toEqual({ sent: 2, held: 2, dead: 0 })
      const [bad3, good3] = await addAll(['bad', 'good'])
      await relay.runOnce()
      await makeDue(ground)
      await relay.runOnce()
      expect(broker.firsts()).toEqual([good1, good2, good3])
      expect(await open.outbox.status()).toMatchObject({ unsent: 0, blockedKeys: 1, waiting: 3, parked: 0, dead: 0 })
      expect(await open.outbox.deadLetters()).toEqual([])
      const [head] = await open.outbox.deadLetters({ state: 'waiting' })
      expect(head).toMatchObject({ id: bad1, key: 'bad', reason: 'Error: refused' })
      // More often when the machine is slow: it is due again after a second.
      expect(head!.tries).toBeGreaterThanOrEqual(2)
      isBroken = false
      await makeDue(ground)
      // It is there before the held ones leave, and must not be held behind nothing.
      const [bad4] = await addAll(['bad'])
      await relay.runOnce()
      expect(broker.ofKey('bad')).toEqual([bad1, bad2, bad3, bad4])
      expect(broker.arrived).toHaveLength(7)
      expect(await open.outbox.status()).toMatchObject({ blockedKeys: 0, waiting: 0 })
    })

    test('held rows of a key that are more than a batch leave in their order, and the key is free afterwards', async () => {
      let isBroken = true
      const broker = listBroker(({ key }) => (isBroken && key === 'bad' ? new Error('refused') : undefined))
      const relay = open.relay({ publisher: broker, batch: 3 })
      const ids = await addAll(Array.from({ length: 9 }, () => 'bad'))
      await relay.runOnce()
      isBroken = false
      await makeDue(ground)
      await relay.runOnce()
      expect(broker.firsts()).toEqual(ids)
      const later = await addAll(['bad', 'bad'])
      expect(await relay.runOnce()).toEqual({ sent: 2, held: 0, dead: 0 })
      expect(broker.firsts()).toEqual([...ids, ...later])
    })

    test('a row that fails too often is a dead letter with its reason, its key goes on, and a redrive sends it', async () => {
      let isBroken = true
      const [bad1, bad2, good] = await addAll(['bad', 'bad', 'good'])
      const broker = listBroker(({ id }) => (isBroken && id === bad1 ? new Error('too large') : undefined))
      const relay = open.relay({ publisher: broker, onFailure: { skipAfter: 2 } })
      await relay.runOnce()
      expect(broker.firsts()).toEqual([good])
      await makeDue(ground)
      await relay.runOnce()
      expect(broker.firsts()).toEqual([good, bad2])
      const letters = await open.outbox.deadLetters()
      expect(letters).toMatchObject([
        { id: bad1, state: 'dead', tries: 2, reason: 'Error: too large', topic: 'orders' },
      ])
      expect(await open.outbox.redrive({ topic: 'others' })).toBe(0)
      isBroken = false
      expect(await open.outbox.redrive({ key: 'bad' })).toBe(1)
      await relay.runOnce()
      expect(broker.firsts()).toEqual([good, bad2, bad1])
      expect(await open.outbox.deadLetters()).toEqual([])
    })

    test('a key is parked behind a row that fails too often, and a redrive sends all of it in order', async () => {
      let isBroken = true
      const [bad1, good] = await addAll(['bad', 'good'])
      const broker = listBroker(({ id }) => (isBroken && id === bad1 ? new FinalError('no such topic') : undefined))
      const relay = open.relay({ publisher: broker, onFailure: 'park' })
      await relay.runOnce()
      const [bad2] = await addAll(['bad'])
      await makeDue(ground)
      await relay.runOnce()
      expect(broker.firsts()).toEqual([good])
      expect(await open.outbox.deadLetters()).toMatchObject([{ id: bad1, state: 'parked', tries: 1 }])
      expect(await open.outbox.status()).toMatchObject({ parked: 1, waiting: 1 })
      isBroken = false
      expect(await open.outbox.redrive()).toBe(1)
      await relay.runOnce()
      expect(broker.firsts()).toEqual([good, bad1, bad2])
    })

    test('a row behind a parked one does not leave before it, though it was due when it was next', async () => {
      const [bad1, bad2, bad3] = await addAll(['bad', 'bad', 'bad'])
      let refused = bad1
      const broker = listBroker(({ id }) => (id === refused ? new Error('refused') : undefined))
      const relay = open.relay({ publisher: broker, onFailure: { parkAfter: 2 } })
      await relay.runOnce()
      refused = bad2
      for (let tries = 0; tries < 3; tries++) {
        await makeDue(ground)
        await relay.runOnce()
      }
      expect(await open.outbox.deadLetters()).toMatchObject([{ id: bad2, state: 'parked', tries: 2 }])
      expect(broker.firsts()).toEqual([bad1])
      refused = undefined
      await open.outbox.redrive({ id: bad2! })
      await relay.runOnce()
      expect(broker.firsts()).toEqual([bad1, bad2, bad3])
    })

    test('a broker that takes nothing holds nothing: rows stay where they are and leave in order when it is back', async () => {
      const [a, b] = keysOfOneShard(2) as [string, string]
      const ids = await addAll([a, b, a, b])
      let isDown = true
      const broker = listBroker(() => (isDown ? new Error('ECONNREFUSED') : undefined))
      const closed: Publisher = { name: 'closed', publish: () => Promise.reject(new Error('closed')) }
      for (const publisher of [closed, broker]) {
        const relay = open.relay({ publisher, onFailure: { skipAfter: 1 } })
        expect(await relay.runOnce()).toMatchObject({ sent: 0, held: 0, dead: 0, error: expect.any(Error) as Error })
        expect(await open.outbox.status()).toMatchObject({ unsent: 4, waiting: 0, dead: 0 })
      }
      isDown = false
      await open.relay({ publisher: broker }).runOnce()
      expect(broker.arrived).toHaveLength(4)
      expect(broker.ofKey(a)).toEqual([ids[0], ids[2]])
      expect(broker.ofKey(b)).toEqual([ids[1], ids[3]])
    })

    test('a relay that has lost its shard marks nothing, and what it publishes late is only a repetition', async () => {
      const [a, b] = keysOfOneShard(2) as [string, string]
      const ids = await addAll([a, b, a, b])
      const broker = listBroker()
      const slow = gated(broker)
      const zombie = open.relay({ publisher: slow, shardsMax: 1 })
      // It takes one shard, the one that has the rows: the others are another relay's.
      await ground.ask(
        `update onceonly_outbox_shards set owner = 'another', lease_until_ms = 9999999999999 where shard <> ${shardOfKey(a)}`,
      )
      const late = zombie.runOnce()
      await slow.reached
      await endLeases(ground)
      await using other = await openOutbox(ground)
      const successor = other.relay({ publisher: broker })
      expect(await successor.runOnce()).toMatchObject({ sent: 4 })
      const cursors = (): Promise<string[]> => ground.ask('select cursors from onceonly_outbox_shards order by shard')
      const before = await cursors()
      const later = await addAll([a])
      slow.open()
      expect(await late).toEqual({ sent: 0, held: 0, dead: 0 })
      expect(await cursors()).toEqual(before)
      expect(broker.arrived).toHaveLength(8)
      await successor.runOnce()
      expect(broker.firsts()).toHaveLength(5)
      expect(broker.ofKey(a)).toEqual([ids[0], ids[2], ...later])
      expect(broker.ofKey(b)).toEqual([ids[1], ids[3]])
    })

    test('an old epoch can neither move a cursor nor hold a row, whatever it says', async () => {
      const [id] = await addAll(['a'])
      const { rows } = open.outbox
      const shard = shardOfKey('a')
      const old = (await rows.take(shard, 'old', 60_000))!
      const [row] = await rows.read(old, 0, 10)
      await endLeases(ground)
      const current = (await rows.take(shard, 'current', 60_000))!
      expect(current.epoch).toBe(old.epoch + 1)
      const cursors = new Map([[row!.lane, row!.position]])
      const nothing = { cursors, hold: [], again: [], sent: [] }
      const held = { row: row!, state: 'dead', tries: 1, dueInMs: undefined, reason: 'zombie' } as const
      expect(await rows.mark(old, nothing, 60_000)).toBe('lost')
      expect(await rows.mark(old, { ...nothing, hold: [held] }, 60_000)).toBe('lost')
      await rows.give([old])
      expect(await rows.take(shard, 'third', 60_000)).toBeUndefined()
      expect(await rows.read(current, 0, 10)).toMatchObject([{ id }])
      expect(await open.outbox.deadLetters({ state: 'dead' })).toEqual([])
      expect(await rows.mark(current, nothing, 60_000)).toBe('done')
      expect(await rows.read({ ...current, cursors }, 0, 10)).toEqual([])
    })

    test('relays share the shards, and one takes over what another has left', async () => {
      const broker = listBroker()
      await using other = await openOutbox(ground)
      const options = { publisher: broker, leaseMs: 300 }
      const relays = [open.relay(options), other.relay(options)]
      relays.forEach((relay) => relay.start())
      const owners = (): Promise<string[]> =>
        ground.ask(`select distinct owner from onceonly_outbox_shards where owner <> ''`)
      await expect.poll(async () => (await owners()).length, { timeout: 30_000 }).toBe(2)
      const ids = await addAll(Array.from({ length: 30 }, (_, index) => `key-${index % 10}`))
      await expect.poll(() => broker.firsts().length, { timeout: 30_000 }).toBe(30)
      await relays[0]!.stop()
      const more = await addAll(Array.from({ length: 30 }, (_, index) => `key-${index % 10}`))
      await expect.poll(() => broker.firsts().length, { timeout: 30_000 }).toBe(60)
      await relays[1]!.stop()
      expect(broker.firsts().toSorted()).toEqual([...ids, ...more].toSorted())
      for (let key = 0; key < 10; key++) {
        const own = [...ids, ...more].filter((_, index) => index % 10 === key)
        expect(broker.ofKey(`key-${key}`)).toEqual(own)
      }
      expect(await owners()).toEqual([])
      expect(await ground.ask('select owner from onceonly_outbox_relays')).toEqual([])
    })

    test('stop marks what is being published, and publishes no more', async () => {
      const broker = listBroker()
      const slow = gated(broker)
      await addAll(['a', 'a', 'a'])
      const order: string[] = []
      const { rows, onAdded } = open.outbox
      const give: RelaySource['give'] = (given) => {
        if (given.length > 0) order.push(`given after ${broker.arrived.length}`)
        return rows.give(given)
      }
      const relay = createRelay({ outbox: { rows: { ...rows, give }, onAdded }, publisher: slow, batch: 1 })
      relay.start()
      await slow.reached
      const stopping = relay.stop()
      // Time for a stop that does not wait.
      for (let asked = 0; asked < 20 && order.length === 0; asked++) await open.outbox.status()
      slow.open()
      await stopping
      expect(order).toEqual(['given after 1'])
      expect(broker.arrived).toHaveLength(1)
      expect(await open.outbox.status()).toMatchObject({ unsent: 2 })
      await open.relay({ publisher: broker }).runOnce()
      expect(broker.arrived).toHaveLength(3)
    })

    test('a relay that is stopped while it attends to its leases publishes no more', async () => {
      const broker = listBroker()
      const slow = gated(broker)
      const attending = Promise.withResolvers<void>()
      await addAll(['a', 'a', 'a'])
      const { rows, onAdded } = open.outbox
      const outbox = { rows: { ...rows, retain: () => attending.promise }, onAdded }
      const relay = createRelay({ outbox, publisher: slow, batch: 1 })
      relay.start()
      await slow.reached
      const stopping = relay.stop()
      slow.open()
      await expect.poll(async () => (await open.outbox.status()).unsent, { timeout: 30_000 }).toBeLessThan(3)
      // Time for a worker that was not told.
      for (let asked = 0; asked < 20 && broker.arrived.length < 2; asked++) await open.outbox.status()
      attending.resolve()
      await stopping
      expect(broker.arrived).toHaveLength(1)
    })

    test('a relay that dies at any call loses nothing, repeats only what was not marked, and keeps the order', async () => {
      let crashes = 0
      const [a, b, bad] = keysOfOneShard(3) as [string, string, string]
      const options = { batch: 2, shardsMax: 1, onFailure: { skipAfter: 1 } } as const
      for (let at = 0; ; at++) {
        await emptyOutbox(ground)
        const ids = await addAll([a, b, bad, a, bad, b, a])
        const broker = listBroker(({ id }) => (id === ids[2] ? new Error('refused') : undefined))
        const marked = new Set<string>()
        const crash = crashAt(at)
        const crashing = {
          rows: crash.around(open.outbox.rows, () => broker.firsts().forEach((id) => marked.add(id))),
          onAdded: open.outbox.onAdded,
        }
        const published = {
          name: 'list',
          publish: crash.call((messages: readonly Outgoing[]) => broker.publish(messages)),
        }
        const died = await createRelay({ ...options, outbox: crashing, publisher: published })
          .runOnce()
          .then(
            ({ error }) => error !== undefined,
            () => true,
          )
        const before = broker.arrived.length
        await endLeases(ground)
        await open.relay({ ...options, publisher: broker }).runOnce()
        expect(broker.firsts().toSorted(), `died at call ${at}`).toEqual(ids.filter((id) => id !== ids[2]).toSorted())
        expect(broker.ofKey(a)).toEqual([ids[0], ids[3], ids[6]])
        expect(broker.ofKey(b)).toEqual([ids[1], ids[5]])
        expect(await open.outbox.deadLetters()).toMatchObject([{ id: ids[2] }])
        const repeated = broker.arrived.slice(before).filter(({ id }) => marked.has(id))
        expect(repeated, `what was marked before call ${at} came again`).toEqual([])
        if (!died) break
        crashes++
      }
      expect(crashes).toBeGreaterThan(20)
    })
  })
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

// A process that dies at its call number `at`: before the call for an even one, after it for an odd one. The dead make no more calls.
function crashAt(at: number): {
  call<Given extends unknown[], T>(work: (...given: Given) => Promise<T>): (...given: Given) => Promise<T>
  around(source: RelaySource, onMarked: () => void): RelaySource
} {
  let calls = 0
  const call =
    <Given extends unknown[], T>(work: (...given: Given) => Promise<T>) =>
    async (...given: Given): Promise<T> => {
      const number = calls++
      if (number > at >> 1 || (number === at >> 1 && at % 2 === 0)) throw new Error('the process is dead')
      const value = await work(...given)
      if (number === at >> 1) throw new Error('the process is dead')
      return value
    }
  return {
    call,
    around: (source, onMarked) => ({
      attend: call(source.attend),
      take: call(source.take),
      give: call(source.give),
      leave: call(source.leave),
      heldAmong: call(source.heldAmong),
      read: call(source.read),
      blocked: call(source.blocked),
      readDue: call(source.readDue),
      mark: call(async (...given) => {
        const marked = await source.mark(...given)
        onMarked()
        return marked
      }),
      retain: call(source.retain),
      status: call(source.status),
    }),
  }
}
