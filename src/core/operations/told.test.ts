// What an operation tells while it runs, and when: its events, the pauses between its tries, and the words for people.

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { codeOf, define, dieIn, openShop, thrown } from '../../../test/operations/shop.ts'
import type { Body, Shop } from '../../../test/operations/shop.ts'
import { memoryStore } from '../../stores/memory.ts'
import type { MemoryStore } from '../../stores/memory.ts'
import type { Random } from '../clock.ts'
import { FinalError, NotBegunError, OnceError } from '../errors.ts'
import { eventNames } from '../events.ts'
import type { Change } from '../store.ts'

/** Always the longest pause, so that times can be told in advance. */
const steady: Random = {
  uuid: () => crypto.randomUUID(),
  fraction: () => 1,
  bytes: (count) => crypto.getRandomValues(new Uint8Array(count)),
}

const heard: (readonly [name: string, event: Record<string, unknown>])[] = []
const listeners = eventNames.map((name) => ({
  channel: `onceonly:${name}`,
  listener(event: unknown): void {
    const { scope: _scope, keyHash: _keyHash, ...rest } = event as Record<string, unknown>
    heard.push([name, rest])
  },
}))
beforeEach(() => {
  heard.length = 0
  for (const { channel, listener } of listeners) subscribe(channel, listener)
})
afterEach(() => listeners.forEach(({ channel, listener }) => unsubscribe(channel, listener)))

/** A store that takes 30 ms to enlist an operation, and 20 ms for each of its writes. */
function slowStore({ clock, data }: Shop): MemoryStore {
  const store = memoryStore({ data })
  const after = <T>(ms: number, call: () => Promise<T>): Promise<T> =>
    new Promise((resolve) => clock.schedule(() => resolve(call()), ms))
  return {
    ...store,
    enlist: (...args) => after(30, () => store.enlist(...args)),
    advance: (...args) => after(20, () => store.advance(...args)),
  }
}

async function ended(here: Shop, work: Promise<unknown>, ms = 60_000): Promise<unknown> {
  const settled = work.then(
    (value) => ({ value }),
    (error: unknown) => ({ error }),
  )
  await here.clock.advance(ms)
  return settled
}

describe('the events of an operation', () => {
  test('that completes: its claim, its steps and its end, each with its attempt and its time', async () => {
    const here = openShop()
    await here.clock.advance(500)
    const checkout = define(here.process({ store: slowStore(here), sweepEveryMs: false }), async (op) => {
      await op.step('charge', () => 'paid')
      await op.step('mail', () => 'sent')
      return 'done'
    })
    await ended(here, checkout.run('1', {}))
    expect(heard).toEqual([
      ['claimed', { attempt: 1, how: 'fresh', durationMs: 30 }],
      ['step', { operation: 'checkout', step: 'charge', state: 'began', attempt: 1 }],
      ['step', { operation: 'checkout', step: 'charge', state: 'done', attempt: 1 }],
      ['step', { operation: 'checkout', step: 'mail', state: 'began', attempt: 1 }],
      ['step', { operation: 'checkout', step: 'mail', state: 'done', attempt: 1 }],
      ['settled', { attempt: 1, kind: 'value', durationMs: 20 }],
    ])
  })

  test('that goes back: why, each undo, and the failure that it is settled with', async () => {
    const here = openShop()
    const checkout = define(here.process({ store: slowStore(here), sweepEveryMs: false }), async (op) => {
      await op.step('charge', { run: () => 'paid', undo: () => {} })
      await op.step('ship', () => Promise.reject(new FinalError('no such address')))
    })
    await ended(here, checkout.run('1', {}))
    expect(heard.slice(3)).toEqual([
      ['step', { operation: 'checkout', step: 'ship', state: 'began', attempt: 1 }],
      ['step', { operation: 'checkout', step: 'ship', state: 'failed', attempt: 1 }],
      ['compensating', { operation: 'checkout', why: 'final' }],
      ['step', { operation: 'checkout', step: 'charge', state: 'undoing', attempt: 1 }],
      ['step', { operation: 'checkout', step: 'charge', state: 'undone', attempt: 1 }],
      ['settled', { attempt: 1, kind: 'failure', durationMs: 20 }],
    ])
  })

  test.each<[why: string, how: string]>([
    ['exhausted', 'fails'],
    ['cancelled', 'is cancelled'],
  ])('that goes back because it is %s', async (why, how) => {
    const here = openShop()
    const checkout = define(here.process({ sweepEveryMs: false }), () => Promise.reject(new Error('down')), {
      attempts: how === 'fails' ? 1 : 2,
    })
    const first = await thrown(checkout.run('1', {}))
    const last = how === 'fails' ? first : await checkout.cancel('1', 'out of stock')
    expect(heard.filter(([name]) => name === 'compensating')).toEqual([
      ['compensating', { operation: 'checkout', why }],
    ])
    if (how === 'fails') {
      expect(last).toMatchObject({
        message: 'shop/operations/checkout/1 failed in 1 attempts and goes back. The last error: down',
        data: { why },
      })
    } else {
      expect(last).toMatchObject({ state: 'failed', cancelReason: 'out of stock' })
      expect(await thrown(checkout.run('1', {}))).toMatchObject({
        message: 'shop/operations/checkout/1 was cancelled: out of stock',
        data: { why },
      })
    }
  })

  test('that waits: it is released, and due after its back-off', async () => {
    const here = openShop()
    const once = here.process({ store: slowStore(here), sweepEveryMs: false, random: steady, waitMs: 0 })
    const checkout = define(once, () => Promise.reject(new Error('down')), {
      backoff: { firstMs: 1_000, factor: 3, maxMs: 5_000 },
    })
    const pauses: number[] = []
    for (let attempt = 1; attempt <= 4; attempt++) {
      await ended(here, checkout.run('1', {}), 50)
      pauses.push((await checkout.status('1'))!.dueAtMs! - here.clock.now())
    }
    expect(pauses).toEqual([1_000, 3_000, 5_000, 5_000])
    expect(heard.slice(0, 3)).toEqual([
      ['claimed', { attempt: 1, how: 'fresh', durationMs: 30 }],
      ['released', { attempt: 1, how: 'open', durationMs: 20 }],
      ['claimed', { attempt: 2, how: 'reopened', durationMs: 30 }],
    ])
    expect(await checkout.status('1')).toMatchObject({ state: 'waiting', failures: 4, lastError: 'down' })
  })

  test('that was taken over from a process that died', async () => {
    const here = openShop()
    const body: Body = (op) => op.step('charge', () => 'paid')
    await dieIn('charge', here, body)
    await here.clock.advance(700_000)
    heard.length = 0
    await define(here.process({ sweepEveryMs: false }), body).run('1', { total: 5 })
    expect(heard.slice(0, 2)).toEqual([
      ['claimed', { attempt: 2, how: 'taken-over', durationMs: 0 }],
      ['taken-over', { attempt: 2 }],
    ])
  })

  test.each<[why: string, body: Body]>([
    ['in-doubt', (op) => op.step('charge', { inDoubt: 'park', run: () => Promise.reject(new Error('no answer')) })],
    [
      'undo-stuck',
      async (op) => {
        await op.step('charge', { run: () => 1, undo: () => Promise.reject(new FinalError('no refunds')) })
        throw new FinalError('no')
      },
    ],
    [
      'past-pivot',
      async (op) => {
        await op.step('charge', { run: () => 1, pivot: true })
        throw new Error('down')
      },
    ],
  ])('that is parked says why: %s', async (why, body) => {
    const here = openShop()
    const checkout = define(here.process({ sweepEveryMs: false }), body, { attempts: 2 })
    for (let attempt = 1; attempt <= 2; attempt++) await thrown(checkout.run('1', {}))
    expect(heard.filter(([name]) => name === 'parked')).toEqual([['parked', { operation: 'checkout', why }]])
    const status = (await checkout.status('1'))!
    expect(status.state).toBe('parked')
    expect(status.dueAtMs).toBeUndefined()
    expect(status.parked).toContain('shop/operations/checkout/1')
    expect((await thrown(checkout.run('1', {}))).message).toContain(status.parked!)
  })

  test('whose code has changed: which step it no longer asks for, and only such as took effect', async () => {
    const here = openShop()
    const old: Body = async (op) => {
      await op.step('done', () => 1)
      await op.step('failed', () => Promise.reject(new NotBegunError('no'))).catch(() => {})
      await op.step('absent', { inDoubt: 'park', run: () => Promise.reject(new Error('no answer')) })
    }
    const first = define(here.process({ sweepEveryMs: false }), old)
    await thrown(first.run('1', {}))
    await first.resume('1', { decide: { absent: 'not-found' } })
    heard.length = 0
    await define(here.process({ sweepEveryMs: false }), () => 'done').run('1', {})
    expect(heard.filter(([name]) => name === 'drifted')).toEqual([
      ['drifted', { operation: 'checkout', what: 'step-not-asked-for', step: 'done' }],
    ])
  })

  test('of a newer version: that it is, and when the next look at it is due', async () => {
    const here = openShop()
    const failing: Body = () => Promise.reject(new Error('later'))
    await thrown(define(here.process({ sweepEveryMs: false }), failing, { version: 2 }).run('1', {}))
    const old = define(here.process({ sweepEveryMs: false, leaseMs: 7_000 }), failing, { version: 1 })
    heard.length = 0
    const error = await thrown(old.run('1', {}))
    expect(error.message).toContain('Version 2 of operation "checkout" has worked on shop/operations/checkout/1')
    expect(heard.at(-1)).toEqual(['drifted', { operation: 'checkout', what: 'newer-version' }])
    expect((await old.status('1'))!.dueAtMs! - here.clock.now()).toBe(7_000)
  })
})

describe('the pauses', () => {
  test('between the tries of a step are those of its retry, or the usual ones', async () => {
    const here = openShop()
    const triedAtMs: number[] = []
    const failing = (): never => {
      triedAtMs.push(here.clock.elapsed())
      throw new Error('down')
    }
    const once = here.process({ sweepEveryMs: false, random: steady })
    await ended(
      here,
      define(once, (op) => op.step('a', { run: failing, retry: { attempts: 3, firstMs: 10, factor: 5 } })).run('1', {}),
    )
    expect(triedAtMs).toEqual([0, 10, 60])
    triedAtMs.length = 0
    const usual = once.operation('usual', {}, (op) => op.step('a', { run: failing, retry: { attempts: 3 } }))
    await ended(here, usual.run('1', {}))
    expect(triedAtMs.map((each) => each - 60_000)).toEqual([0, 100, 300])
  })

  test.each<[what: string, error: () => Error]>([
    ['a final failure', () => new FinalError('no')],
    ['an error of ours', () => new OnceError('MISMATCH', { message: 'no' })],
  ])('are none after %s: the step is not tried again', async (_, error) => {
    const here = openShop()
    const run = vi.fn(() => Promise.reject(error()))
    const checkout = define(here.process({ sweepEveryMs: false }), (op) =>
      op.step('a', { run, retry: { attempts: 3 } }),
    )
    await ended(here, checkout.run('1', {}))
    expect(run).toHaveBeenCalledTimes(1)
  })

  test('between the tries of an undo grow, and a final failure of an undo is not tried again', async () => {
    const here = openShop()
    const triedAtMs: number[] = []
    const final = vi.fn(() => Promise.reject(new FinalError('no refunds')))
    const checkout = define(here.process({ sweepEveryMs: false, random: steady }), async (op) => {
      await op.step('a', { run: () => 1, undo: final })
      await op.step('b', {
        run: () => 1,
        undo: () => {
          triedAtMs.push(here.clock.elapsed())
          throw new Error('down')
        },
      })
      throw new FinalError('no')
    })
    await ended(here, checkout.run('1', {}))
    expect(triedAtMs).toEqual([0, 200, 800])
    expect(final).toHaveBeenCalledTimes(1)
    expect((await checkout.status('1'))!.steps).toMatchObject([
      { name: 'a', state: 'stuck', error: 'no refunds' },
      { name: 'b', state: 'stuck', error: 'down' },
    ])
    expect((await checkout.status('1'))!.parked).toContain('could not undo "a", "b".')
  })

  test('of a worker are between half and all of everyMs, which is a second, and it works on eight at once', async () => {
    const here = openShop()
    const asked: { atMs: number; limit: number; holdMs: number }[] = []
    const store = memoryStore({ data: here.data })
    const due: MemoryStore['due'] = (scope, options) => {
      asked.push({ atMs: here.clock.elapsed(), ...options })
      return store.due(scope, options)
    }
    const watching = (leaseMs: number, options?: { everyMs?: number; concurrency?: number }) => {
      const once = here.process({
        store: { ...store, due } as MemoryStore,
        sweepEveryMs: false,
        random: steady,
        leaseMs,
      })
      return once.recover([define(once, () => 1)], options)
    }
    const usual = watching(30_000)
    await here.clock.advance(2_500)
    await usual.stop()
    expect(asked).toEqual([0, 1_000, 2_000].map((atMs) => ({ atMs, limit: 8, holdMs: 10_000 })))
    asked.length = 0
    const own = watching(4_000, { everyMs: 100, concurrency: 3 })
    await here.clock.advance(250)
    await own.stop()
    expect(asked).toEqual([2_500, 2_600, 2_700].map((atMs) => ({ atMs, limit: 3, holdMs: 4_000 })))
    expect(here.clock.pending).toBe(0)
  })
})

describe('a worker', () => {
  test('works on no more than it may at once, takes the next as soon as one has ended, and stops when those that run have', async () => {
    const here = openShop()
    const gates: PromiseWithResolvers<void>[] = []
    const once = here.process({ sweepEveryMs: false })
    const checkout = define(once, async (op) => {
      if (op.attempt === 1) throw new Error('later')
      const gate = Promise.withResolvers<void>()
      gates.push(gate)
      await gate.promise
    })
    for (const id of ['1', '2', '3', '4']) await thrown(checkout.run(id, {}))
    await here.clock.advance(1_000)
    const recovery = once.recover([checkout], { concurrency: 2 })
    await here.clock.advance(5_000)
    expect(gates).toHaveLength(2)
    gates[0]!.resolve()
    await here.clock.advance(0)
    expect(gates).toHaveLength(3)
    const stopped = vi.fn()
    const stopping = recovery.stop().then(stopped)
    await here.clock.advance(0)
    expect(stopped).not.toHaveBeenCalled()
    for (const gate of gates) gate.resolve()
    await here.clock.advance(0)
    await stopping
    await here.clock.advance(60_000)
    expect(gates).toHaveLength(3)
  })

  test('dismisses what is over, ends with close, and a store that fails does not end it', async () => {
    const here = openShop()
    const store = memoryStore({ data: here.data })
    const [dismissed, shown] = [vi.fn(store.dismiss), vi.fn(store.show)]
    let calls = 0
    const subject = { scope: 'shop/operations/checkout', id: 'gone' }
    const due: MemoryStore['due'] = async () => {
      if (++calls === 1) throw new Error('ECONNRESET')
      return calls === 2 ? [{ key: subject, heldUntilMs: 5 }] : []
    }
    const once = here.process({
      store: { ...store, due, dismiss: dismissed, show: shown } as MemoryStore,
      sweepEveryMs: false,
    })
    once.recover([define(once, () => 1)])
    await here.clock.advance(10_000)
    expect(dismissed.mock.calls).toEqual([[{ key: subject, heldUntilMs: 5 }]])
    expect(calls).toBeGreaterThan(5)
    await once.close()
    expect(here.clock.pending).toBe(0)
    expect(heard[0]).toEqual(['store-failed', { during: 'recover', code: 'STORE_UNAVAILABLE' }])
  })
})

describe('a failure', () => {
  test.each<[what: string, data: unknown, kept: unknown]>([
    ['has data', { sku: 1, at: undefined }, { sku: 1 }],
    ['has none', undefined, undefined],
    ['has data without a JSON form', { sku: 5n }, undefined],
  ])('that is final is kept while its undo goes on in another process: it %s', async (_, data, kept) => {
    const here = openShop()
    let isUp = false
    const body: Body = async (op) => {
      await op.step('charge', {
        run: () => 1,
        undo: () => {
          if (!isUp) throw new Error('refunds are down')
        },
      })
      throw new FinalError('no', data === undefined ? {} : { data })
    }
    const first = define(here.process({ sweepEveryMs: false }), body)
    expect(await ended(here, first.run('1', {}))).toMatchObject({ error: { code: 'PARKED' } })
    isUp = true
    const second = define(here.process({ sweepEveryMs: false }), body)
    await second.resume('1')
    expect(await thrown(second.run('1', {}))).toMatchObject({ name: 'FinalError', message: 'no', data: kept })
    expect(heard.filter(([name]) => name === 'compensating')).toHaveLength(1)
  })

  test('of the store in the middle of an attempt leaves it due after the first pause of its back-off', async () => {
    const here = openShop()
    const store = memoryStore({ data: here.data })
    let refused = 0
    const advance: MemoryStore['advance'] = (claim, change: Change) => {
      const isBegin = change.becomes.to === 'running' && refused++ === 0
      return isBegin
        ? Promise.reject(new OnceError('OUTCOME_NOT_STORED', { message: 'no' }))
        : store.advance(claim, change)
    }
    const once = here.process({ store: { ...store, advance } as MemoryStore, sweepEveryMs: false, random: steady })
    const checkout = define(once, (op) => op.step('charge', () => 1), { backoff: { firstMs: 1_234 } })
    expect(await codeOf(checkout.run('1', {}))).toBe('OUTCOME_NOT_STORED')
    expect((await checkout.status('1'))!.dueAtMs! - here.clock.now()).toBe(1_234)
  })
})

test('the last step of a function is written with its end, unless its result is large', async () => {
  const here = openShop()
  const store = memoryStore({ data: here.data })
  const writes: string[] = []
  const advance: MemoryStore['advance'] = (claim, change) => {
    writes.push(change.becomes.to)
    return store.advance(claim, change)
  }
  const once = here.process({ store: { ...store, advance } as MemoryStore, sweepEveryMs: false })
  const sized = define(once, (op, length) => op.step('a', () => 'x'.repeat(length as number)))
  // The letter of its kind and two quotation marks are stored with it.
  await sized.run('small', 65_536 - 3)
  expect(writes).toEqual(['running', 'settled'])
  await sized.run('large', 65_536 - 2)
  expect(writes.slice(2)).toEqual(['running', 'running', 'settled'])
})

test('a function does not begin under a claim that was lost while its records were read', async () => {
  const here = openShop()
  const run = vi.fn(() => 1)
  let isFirst = true
  const body: Body = () => {
    if (!isFirst) return run()
    isFirst = false
    throw new Error('down')
  }
  await thrown(define(here.process({ sweepEveryMs: false }), body).run('1', {}))
  const store = memoryStore({ data: here.data })
  const slow = {
    ...store,
    extend: async () => 'lost' as const,
    ledger: async (subject: Parameters<MemoryStore['ledger']>[0]) => {
      await new Promise<void>((resolve) => void here.clock.schedule(resolve, 2_000))
      return store.ledger(subject)
    },
  } as MemoryStore
  const once = here.process({ store: slow, sweepEveryMs: false, leaseMs: 3_000 })
  expect(await ended(here, define(once, body).run('1', {}))).toMatchObject({ error: { code: 'CLAIM_LOST' } })
  expect(run).not.toHaveBeenCalled()
})

describe('duplicates of an operation', () => {
  test('wait for the one that runs, each for its own, and are woken by its end', async () => {
    const here = openShop()
    const gates = new Map<string, PromiseWithResolvers<string>>()
    const once = here.process({ sweepEveryMs: false, waitMs: 60_000 })
    const checkout = define(once, (op) => {
      const gate = Promise.withResolvers<string>()
      gates.set(op.key.id, gate)
      return gate.promise
    })
    const ids = ['1', '2']
    const first = ids.map((id) => checkout.run(id, {}))
    await here.clock.advance(0)
    const duplicates = ids.flatMap((id) => [checkout.run(id, {}), checkout.run(id, {})])
    const others = ids.map((id) => checkout.run(id, { other: true }))
    expect(await Promise.all(others.map(codeOf))).toEqual(['MISMATCH', 'MISMATCH'])
    await here.clock.advance(10_000)
    const beganMs = here.clock.elapsed()
    for (const id of ids) gates.get(id)!.resolve(`result of ${id}`)
    const values = (await Promise.all([...first, ...duplicates])).map(({ value, replayed }) => [value, replayed])
    expect(values).toEqual([
      ['result of 1', false],
      ['result of 2', false],
      ['result of 1', true],
      ['result of 1', true],
      ['result of 2', true],
      ['result of 2', true],
    ])
    expect(here.clock.elapsed()).toBe(beganMs)
    expect(here.clock.pending).toBe(0)
  })
})

test('a cancel whose reason cannot be read takes effect all the same', async () => {
  const here = openShop()
  const store = memoryStore({ data: here.data })
  const once = here.process({
    store: { ...store, ledger: () => Promise.reject(new Error('ECONNRESET')) } as MemoryStore,
    sweepEveryMs: false,
  })
  const undo = vi.fn()
  const checkout = define(once, async (op) => {
    await op.step('a', { run: () => 1, undo })
    await store.requestCancel(op.key, 'out of stock')
    await op.step('b', () => 2)
  })
  expect((await thrown(checkout.run('1', {}))).message).toBe(
    'shop/operations/checkout/1 was cancelled: a cancel was requested',
  )
  expect(undo).toHaveBeenCalledTimes(1)
})

test('what is recorded of an operation: each record with the next revision, and an order that stays', async () => {
  const here = openShop()
  const store = memoryStore({ data: here.data })
  const written: [name: string, revision: number, head: unknown][] = []
  const advance: MemoryStore['advance'] = (claim, change) => {
    for (const { name, revision, content } of change.records) {
      written.push([name, revision, JSON.parse(Buffer.from(content).toString().split('\n')[0]!)])
    }
    return store.advance(claim, change)
  }
  const once = here.process({ store: { ...store, advance } as MemoryStore, sweepEveryMs: false })
  let fails = true
  const checkout = define(
    once,
    async (op) => {
      await op.step('a', { run: () => (fails ? Promise.reject(new Error('down')) : 1), undo: () => {}, fingerprint: 1 })
      await op.step('b', { run: () => 2, pivot: true })
      return 'done'
    },
    { version: 3 },
  )
  await thrown(checkout.run('1', {}))
  fails = false
  await checkout.run('1', {})
  const course = { version: 3, direction: 'forward', failures: 0 }
  const a = { order: 1, fingerprint: expect.any(String) as string, undoable: true }
  expect(written).toEqual([
    ['', 1, course],
    ['a', 1, { ...a, attempt: 1, state: 'began' }],
    ['', 2, { ...course, failures: 1, lastError: 'down' }],
    ['a', 2, { ...a, attempt: 2, state: 'began' }],
    ['a', 3, { ...a, attempt: 2, state: 'done' }],
    ['b', 1, { order: 2, attempt: 2, pivot: true, state: 'began' }],
    ['b', 2, { order: 2, attempt: 2, pivot: true, state: 'done' }],
  ])
})

test('the lease of an operation is kept from its first step to its last, however long they take', async () => {
  const here = openShop()
  const once = here.process({ sweepEveryMs: false, leaseMs: 3_000, attemptMs: 600_000, waitMs: 0 })
  const body: Body = async (op) => {
    await op.step('quick', () => 1)
    await op.step('slow', () => new Promise<void>((resolve) => void here.clock.schedule(resolve, 60_000)))
    return 'done'
  }
  const running = define(once, body).run('1', {})
  await here.clock.advance(59_000)
  expect(await codeOf(define(here.process({ waitMs: 0, sweepEveryMs: false }), body).run('1', {}))).toBe('IN_FLIGHT')
  await here.clock.advance(1_000)
  expect(await running).toMatchObject({ value: 'done', attempt: 1 })
  expect(here.clock.pending).toBe(0)
})

test('an operation that has lost its claim is told as lost once, by its heartbeat and its write alike', async () => {
  const here = openShop()
  const store = memoryStore({ data: here.data })
  const advance = (): Promise<'lost'> =>
    new Promise((resolve) => void here.clock.schedule(() => resolve('lost'), 2_000))
  const lost = { ...store, extend: async () => 'lost' as const, advance } as MemoryStore
  const once = here.process({ store: lost, sweepEveryMs: false, leaseMs: 3_000, storeTimeoutMs: 60_000 })
  const failing = define(once, (op) => op.step('a', () => 1)).run('1', {})
  expect(await ended(here, failing)).toMatchObject({ error: { code: 'CLAIM_LOST' } })
  expect(heard.filter(([name]) => name === 'lost')).toEqual([['lost', { attempt: 1, durationMs: 1_000 }]])
})
