import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { afterEach, describe, expect, test, vi } from 'vitest'
import { soon } from '../../test/soon.ts'
import { memoryData, memoryStore } from '../stores/memory.ts'
import type { MemoryData, MemoryStore } from '../stores/memory.ts'
import { manualClock } from '../testing/manual-clock.ts'
import type { ManualClock } from '../testing/manual-clock.ts'
import { FinalError, InDoubtError, NotBegunError, OnceError } from './errors.ts'
import { eventNames } from './events.ts'
import { key } from './key.ts'
import { createOnce } from './once.ts'
import type { Once } from './once.ts'
import type { OnceOptions } from './settings.ts'
import type { Store, Transactional } from './store.ts'

interface World {
  readonly clock: ManualClock
  readonly data: MemoryData
  /** As another process on the same store would have it. */
  process(options?: Partial<OnceOptions>): Once<MemoryStore, 'codec'>
  /** The same with the sweep that is there by default. Others leave it out, as they count timers. */
  sweeping(options?: Partial<OnceOptions>): Once<MemoryStore, 'codec'>
}

function world(): World {
  const clock = manualClock()
  const data = memoryData(clock)
  const sweeping: World['process'] = (options = {}) =>
    createOnce({ store: memoryStore({ data }), scope: 'payments', clock, ...options }) as unknown as Once<
      MemoryStore,
      'codec'
    >
  return { clock, data, sweeping, process: (options = {}) => sweeping({ sweepEveryMs: false, ...options }) }
}

const gate = <T = void>(): PromiseWithResolvers<T> => Promise.withResolvers<T>()

async function failure(work: Promise<unknown>): Promise<OnceError> {
  const error: unknown = await work.then(
    () => expect.fail('expected an error'),
    (thrown: unknown) => thrown,
  )
  expect(error).toBeInstanceOf(OnceError)
  return error as OnceError
}

describe('run', () => {
  test('an effect runs once, and a retry is told what it came to', async () => {
    const once = world().process()
    const effect = vi.fn(() => ({ charged: 5 }))
    expect(await once.run('42', effect)).toEqual({ value: { charged: 5 }, replayed: false, attempt: 1 })
    expect(await once.run('42', effect)).toEqual({ value: { charged: 5 }, replayed: true, attempt: 1 })
    expect(effect).toHaveBeenCalledTimes(1)
  })

  test('a thousand concurrent duplicates are one effect', async () => {
    const { process, clock } = world()
    const once = process({ waitMs: 1_000 })
    const effect = vi.fn(async () => 'paid')
    const results = Promise.all(Array.from({ length: 1_000 }, () => once.run('42', effect)))
    await clock.advance(1_000)
    expect((await results).map(({ value }) => value)).toEqual(Array(1_000).fill('paid'))
    expect(effect).toHaveBeenCalledTimes(1)
  })

  test('the same key with another request is a mismatch in every state, and runs nothing', async () => {
    const { process, clock } = world()
    const once = process()
    const never = vi.fn()
    const mismatch = async (): Promise<void> => {
      const error = await failure(once.run('42', never, { fingerprint: { amount: 6 } }))
      expect(error).toMatchObject({ code: 'MISMATCH', executed: 'no', retryable: false })
    }
    const running = gate()
    const first = once.run('42', () => running.promise, { fingerprint: { amount: 5 } })
    await clock.advance(0)
    await mismatch()
    running.reject(new Error('provider down'))
    await expect(first).rejects.toThrow('provider down')
    await mismatch()
    await once.run('42', () => 'ok', { fingerprint: { amount: 5 } })
    await mismatch()
    expect(never).not.toHaveBeenCalled()
    expect(await once.run('42', never, { fingerprint: { amount: 5 } })).toMatchObject({ value: 'ok', replayed: true })
  })

  test('a call without a fingerprint does not match one with', async () => {
    const once = world().process()
    await once.run('42', () => 1)
    expect((await failure(once.run('42', () => 2, { fingerprint: null }))).code).toBe('MISMATCH')
  })

  test('the effect cannot change what is recorded', async () => {
    const once = world().process()
    const order = { amount: 5 }
    const options = { fingerprint: order, keepMs: 1_000 }
    await once.run(
      '42',
      () => {
        order.amount = 500
        options.keepMs = 1
      },
      options,
    )
    expect(await once.run('42', () => {}, { fingerprint: { amount: 5 } })).toMatchObject({ replayed: true })
    expect((await once.get('42'))!.expiresAtMs - (await once.get('42'))!.leaseUntilMs).toBe(1_000)
  })

  test('another scope is another key', async () => {
    const once = world().process()
    await once.run(key('tenant-a', '42'), () => 'a')
    expect(await once.run(key('tenant-b', '42'), () => 'b')).toMatchObject({ value: 'b', replayed: false })
    expect(await once.run('42', () => 'c')).toMatchObject({ value: 'c', replayed: false })
  })

  test('a derived key is the same on every attempt, differs by name and key, and has 36 characters', async () => {
    const once = world().process()
    const seen: string[] = []
    const failing = once.run('42', (op) => {
      seen.push(op.keyFor('charge'))
      throw new Error('down')
    })
    await expect(failing).rejects.toThrow('down')
    await once.run('42', (op) => void seen.push(op.keyFor('charge'), op.keyFor('mail')))
    await once.run('43', (op) => void seen.push(op.keyFor('charge')))
    expect(seen[0]).toBe(seen[1])
    expect(new Set(seen).size).toBe(3)
    expect(seen[0]).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
  })
})

describe('outcomes', () => {
  test.each([
    ['undefined', undefined],
    ['null', null],
    ['an empty string', ''],
    ['false', false],
    ['nested JSON', { a: [1, { b: 'ü' }], c: null }],
    ['bytes', new Uint8Array([0, 255, 128])],
    ['no bytes', new Uint8Array()],
  ])('%s is replayed as it was', async (_, value) => {
    const once = world().process()
    expect((await once.run('42', () => value)).value).toEqual(value)
    expect(await once.run('42', () => 'other')).toMatchObject({ value, replayed: true })
  })

  test('the first caller is given what every replay is given', async () => {
    const once = world().process()
    const first = await once.run('42', () => ({ at: new Date(0), gone: undefined }))
    expect(first.value).toEqual({ at: '1970-01-01T00:00:00.000Z' })
    expect((await once.run('42', () => null as never)).value).toEqual(first.value)
  })

  const cyclic: { self?: unknown } = {}
  cyclic.self = cyclic
  test.each([
    ['a function', () => () => {}],
    ['a function inside', () => ({ f: () => {} })],
    ['a BigInt', () => 5n],
    ['a cycle', () => cyclic],
    ['NaN', () => Number.NaN],
    ['a Map', () => new Map()],
    ['a symbol', () => Symbol('x')],
    ['a Set inside', () => ({ s: new Set([1]) })],
    ['a Response', () => new Response('{}')],
    ['an ArrayBuffer', () => new ArrayBuffer(2)],
    ['a DataView', () => new DataView(new ArrayBuffer(2))],
    ['a typed array', () => new Float64Array(2)],
    ['bytes inside', () => ({ bytes: new Uint8Array(2) })],
    ['URLSearchParams', () => new URLSearchParams('a=1')],
    ['an Error', () => new Error('declined')],
    ['a RegExp', () => /x/],
    ['a WeakMap', () => new WeakMap()],
  ] as [string, () => unknown][])(
    '%s cannot be stored: the error says the effect did run, and it never runs again',
    async (_, effect) => {
      const once = world().process()
      const again = vi.fn()
      expect(await failure(once.run('42', effect))).toMatchObject({ code: 'OUTCOME_NOT_STORED', executed: 'yes' })
      expect(await failure(once.run('42', again))).toMatchObject({ code: 'OUTCOME_NOT_STORED', executed: 'yes' })
      expect(again).not.toHaveBeenCalled()
      expect((await once.get('42'))!.state).toBe('settled')
    },
  )

  test('an outcome that the store refuses is kept as not stored, at once, and the effect never runs again', async () => {
    const { process, data } = world()
    const store = memoryStore({ data })
    const small: Store = {
      ...store,
      async settle(claim, outcome, retention) {
        if (outcome.length <= 100) return store.settle(claim, outcome, retention)
        throw new OnceError('OUTCOME_NOT_STORED', { message: `${outcome.length} bytes are too many` })
      },
    }
    const once = process({ store: small })
    const again = vi.fn()
    const error = await failure(once.run('42', () => 'x'.repeat(200)))
    expect(error).toMatchObject({ code: 'OUTCOME_NOT_STORED', executed: 'yes' })
    expect(await failure(once.run('42', again))).toMatchObject({ code: 'OUTCOME_NOT_STORED' })
    expect(again).not.toHaveBeenCalled()
  })

  test('a codec stores what JSON cannot', async () => {
    const codec = {
      encode: (value: unknown) => Buffer.from(String(value)),
      decode: (bytes: Uint8Array) => BigInt(Buffer.from(bytes).toString()),
    }
    const once = world().process({ codec })
    expect((await once.run('42', () => 5n)).value).toBe(5n)
    expect(await once.run('42', () => 6n)).toMatchObject({ value: 5n, replayed: true })
  })

  test('a value that cannot be stored says what to return instead', async () => {
    const once = world().process()
    expect((await failure(once.run('42', () => new Response('{}')))).message).toContain('return await response.json()')
  })

  test('a codec stores the message and the data of a final failure, too: nothing is in the clear', async () => {
    const { process, data } = world()
    const turned = (bytes: Uint8Array): Uint8Array => bytes.map((byte) => byte ^ 255)
    const codec = {
      encode: (value: unknown) => turned(Buffer.from(JSON.stringify(value))),
      decode: (bytes: Uint8Array) => JSON.parse(Buffer.from(turned(bytes)).toString()) as unknown,
    }
    const once = process({ codec })
    const declined = new FinalError('card 4711 declined', { data: { pin: 1234 } })
    await expect(once.run('42', () => Promise.reject(declined))).rejects.toBe(declined)
    await expect(once.run('42', () => 1)).rejects.toMatchObject({ message: 'card 4711 declined', data: { pin: 1234 } })
    const kept = Buffer.from([...data.entries.values()][0]!.outcome!).toString('latin1')
    expect(kept).not.toMatch(/4711|1234/)
  })

  test('unreadable stored data is an error, never a second run', async () => {
    const { process, data } = world()
    const once = process()
    const again = vi.fn()
    await once.run('42', () => 1)
    const [name, entry] = [...data.entries][0]!
    for (const bytes of ['', 'j{"a":', 'x1', 'c1', 'f{}', 'j\xff']) {
      data.entries.set(name, { ...entry, outcome: Buffer.from(bytes, 'latin1') })
      expect(await failure(once.run('42', again))).toMatchObject({ code: 'OUTCOME_UNREADABLE', executed: 'yes' })
    }
    expect(again).not.toHaveBeenCalled()
  })

  test('a result that a person gave has the version of the code that gave it, not that of the attempt in doubt', async () => {
    const { process } = world()
    const lost = (): never => {
      throw new InDoubtError('lost')
    }
    await expect(process({ version: 1 }).run('42', lost)).rejects.toThrow('lost')
    const upgrade = (value: unknown, version: number): unknown => ({ upgraded: value, version })
    const current = process({ version: 2, upgrade })
    await current.resolve('42', { value: { euros: 5 } }, 'the bank confirmed it')
    expect((await current.run('42', () => null)).value).toEqual({ euros: 5 })
    expect((await process({ version: 3, upgrade }).run('42', () => null)).value).toEqual({
      upgraded: { euros: 5 },
      version: 2,
    })
  })

  test('an outcome of an older version is replayed as it was, upgraded, or refused', async () => {
    const { process } = world()
    await process({ version: 1 }).run('42', () => ({ cents: 500 }))
    expect((await process({ version: 2 }).run('42', () => null)).value).toEqual({ cents: 500 })
    const upgrade = (value: unknown, version: number): unknown => ({
      version,
      euros: (value as { cents: number }).cents / 100,
    })
    expect((await process({ version: 2, upgrade }).run('42', () => null)).value).toEqual({ version: 1, euros: 5 })
    const refuse = (): never => {
      throw new Error('too old')
    }
    expect((await failure(process({ version: 3, upgrade: refuse }).run('42', () => null))).code).toBe(
      'OUTCOME_UNREADABLE',
    )
    expect((await process({ version: 1, upgrade: refuse }).run('42', () => null)).value).toEqual({ cents: 500 })
  })
})

describe('throws', () => {
  test('a FinalError is the answer: stored, and thrown again the same', async () => {
    const once = world().process()
    const again = vi.fn()
    const declined = new FinalError('card declined', { data: { reason: 'funds' } })
    await expect(once.run('42', () => Promise.reject(declined))).rejects.toBe(declined)
    await expect(once.run('42', again)).rejects.toEqual(declined)
    await expect(once.run('42', again)).rejects.toMatchObject({ name: 'FinalError', data: { reason: 'funds' } })
    expect(again).not.toHaveBeenCalled()
  })

  test('another throw releases the key, and the retry is the next attempt', async () => {
    const once = world().process()
    await expect(once.run('42', () => Promise.reject(new Error('down')))).rejects.toThrow('down')
    expect(await once.run('42', (op) => op.attempt)).toEqual({ value: 2, replayed: false, attempt: 2 })
  })

  test('a throw before the first await is no different', async () => {
    const once = world().process()
    const effect = (): never => {
      throw new Error('sync')
    }
    await expect(once.run('42', effect)).rejects.toThrow('sync')
    expect((await once.get('42'))!.state).toBe('open')
  })

  test("onThrow 'store' makes any throw the answer", async () => {
    const once = world().process({ onThrow: 'store' })
    const again = vi.fn()
    await expect(once.run('42', () => Promise.reject(new TypeError('no')))).rejects.toThrow(TypeError)
    await expect(once.run('42', again)).rejects.toMatchObject({ name: 'FinalError', message: 'no' })
    expect(again).not.toHaveBeenCalled()
  })

  test.each([
    ['InDoubtError', { onThrow: 'release' as const }, new InDoubtError('timed out after the request was sent')],
    ["onThrow 'doubt'", { onThrow: 'doubt' as const }, new Error('socket hang up')],
  ])('%s leaves the key claimed until its lease ends, then onTakeover decides', async (_, options, error) => {
    const { process, clock } = world()
    const once = process({ ...options, leaseMs: 30_000, waitMs: 0 })
    await expect(once.run('42', () => Promise.reject(error))).rejects.toBe(error)
    expect(await failure(once.run('42', () => 1))).toMatchObject({ code: 'IN_FLIGHT' })
    await clock.advance(30_000)
    expect(await failure(once.run('42', () => 1, { onTakeover: 'refuse' }))).toMatchObject({
      code: 'IN_DOUBT',
      executed: 'unknown',
    })
    expect(await once.run('42', () => 1)).toMatchObject({ replayed: false, attempt: 2 })
  })

  test('an effect that never began leaves no trace: another request may use the key', async () => {
    const once = world().process()
    await expect(
      once.run('42', () => Promise.reject(new NotBegunError('invalid')), { fingerprint: 1 }),
    ).rejects.toThrow('invalid')
    expect(await once.get('42')).toBeUndefined()
    expect(await once.run('42', () => 'ok', { fingerprint: 2 })).toMatchObject({ value: 'ok', attempt: 1 })
  })
})

describe('lease and heartbeat', () => {
  test('a slow effect keeps its lease, and calm costs no claim', async () => {
    const { process, clock } = world()
    const once = process({ leaseMs: 3_000, waitMs: 0 })
    const slow = gate<string>()
    const first = once.run('42', () => slow.promise)
    await clock.advance(30_000)
    expect((await failure(once.run('42', () => 'second'))).code).toBe('IN_FLIGHT')
    slow.resolve('first')
    expect(await first).toMatchObject({ value: 'first', attempt: 1 })
  })

  test('a process that dies holds its key for one lease, then another takes over', async () => {
    const { data, clock, process } = world()
    await memoryStore({ data }).claim(key('payments', '42'), {
      token: 'dead',
      fingerprint: 'x',
      leaseMs: 30_000,
      retention: { keepMs: 1e6, tombstoneMs: 0 },
      version: 0,
      onTakeover: 'run',
      onExpired: 'refuse',
    })
    const [name, entry] = [...data.entries][0]!
    const once = process({ waitMs: 0 })
    // The dead process asked without a fingerprint, too.
    await once.run('other', () => 1)
    data.entries.set(name, { ...entry, fingerprint: [...data.entries.values()][1]!.fingerprint })
    expect((await failure(once.run('42', () => 1))).code).toBe('IN_FLIGHT')
    await clock.advance(30_000)
    expect(await once.run('42', () => 1)).toMatchObject({ attempt: 2, replayed: false })
  })

  test('a claim that was taken over never reports success, and its signal aborts', async () => {
    const { process, clock, data } = world()
    const zombieStore: Store = { ...memoryStore({ data }), extend: () => new Promise(() => {}) }
    const zombie = process({ store: zombieStore, leaseMs: 3_000, storeTimeoutMs: 500 })
    const slow = gate<string>()
    let signal: AbortSignal | undefined
    const first = zombie.run('42', (op) => ((signal = op.signal), slow.promise))
    const lost = failure(first)
    await clock.advance(3_000)
    expect(await process().run('42', () => 'second')).toMatchObject({ value: 'second', attempt: 2 })
    slow.resolve('first')
    expect(await lost).toMatchObject({ code: 'CLAIM_LOST', executed: 'unknown' })
    expect(signal!.aborted).toBe(true)
    expect(await process().run('42', () => 'third')).toMatchObject({ value: 'second', replayed: true })
  })

  test('an attempt that outlives its deadline stops its heartbeat, so that a hang does not wedge the key', async () => {
    const { process, clock } = world()
    const once = process({ leaseMs: 3_000, attemptMs: 9_000 })
    let signal: AbortSignal | undefined
    const hung = failure(once.run('42', (op) => ((signal = op.signal), new Promise(() => {}))))
    await clock.advance(9_000)
    expect(signal!.aborted).toBe(true)
    await clock.advance(3_000)
    expect(await hung).toMatchObject({ code: 'DEADLINE_PASSED', executed: 'unknown' })
    expect(await once.run('42', () => 'second')).toMatchObject({ attempt: 2 })
    expect(clock.pending).toBe(0)
  })

  test('an effect that ends when its signal aborts releases the key at once', async () => {
    const { process, clock } = world()
    const once = process({ leaseMs: 30_000, attemptMs: 1_000 })
    const work = failure(
      once.run(
        '42',
        (op) =>
          new Promise((_, reject) => op.signal.addEventListener('abort', () => reject(op.signal.reason as Error))),
      ),
    )
    await clock.advance(1_000)
    expect((await work).code).toBe('DEADLINE_PASSED')
    expect(await once.run('42', () => 1)).toMatchObject({ attempt: 2 })
  })
})

test('a process that stood still from asking until its lease was over does not start what another has taken', async () => {
  const { process, clock, data } = world()
  const store = memoryStore({ data })
  const reply = gate()
  const slow: Store = {
    ...store,
    async claim(...args) {
      const verdict = await store.claim(...args)
      await reply.promise
      return verdict
    },
  }
  const effect = vi.fn()
  const zombie = failure(process({ store: slow, leaseMs: 3_000, storeTimeoutMs: 60_000 }).run('42', effect))
  await clock.advance(3_000)
  expect(await process().run('42', () => 'second')).toMatchObject({ attempt: 2 })
  reply.resolve()
  expect(await zombie).toMatchObject({ code: 'CLAIM_LOST', executed: 'no' })
  expect(effect).not.toHaveBeenCalled()
})

test.each([
  new OnceError('STORE_UNAVAILABLE', { message: 'the reply was lost', executed: 'unknown' }),
  new OnceError('STORE_UNAVAILABLE', { message: 'refused for good', executed: 'unknown', retryable: false }),
  new OnceError('FENCED', { message: 'the client registered again', executed: 'no' }),
])(
  'a process that stood still and is not told whether it still holds its key has run nothing: $message',
  async (cause) => {
    const { process, clock, data } = world()
    const store = memoryStore({ data })
    const reply = gate()
    const slow: Store = {
      ...store,
      claim: async (...args) => {
        const verdict = await store.claim(...args)
        await reply.promise
        return verdict
      },
      extend: () => Promise.reject(cause),
    }
    const effect = vi.fn()
    const zombie = failure(process({ store: slow, leaseMs: 3_000, storeTimeoutMs: 60_000 }).run('42', effect))
    await clock.advance(3_000)
    reply.resolve()
    const told = await zombie
    expect(told).toMatchObject({ code: cause.code, executed: 'no', retryable: cause.retryable })
    expect(told.message).toContain(cause.message)
    expect(effect).not.toHaveBeenCalled()
  },
)

test('a heartbeat that its own settle has overtaken is no loss', async () => {
  const { process, clock, data } = world()
  const store = memoryStore({ data })
  const late = gate()
  const slow: Store = { ...store, extend: async (...args) => (await late.promise, store.extend(...args)) }
  const heard = vi.fn()
  subscribe('onceonly:lost', heard)
  const work = gate<string>()
  let signal: AbortSignal | undefined
  const settled = gate()
  const settling: Store = { ...slow, settle: async (...args) => (await settled.promise, store.settle(...args)) }
  const first = process({ store: settling, leaseMs: 3_000 }).run('42', (op) => ((signal = op.signal), work.promise))
  await clock.advance(1_000)
  work.resolve('done')
  await clock.advance(1)
  data.entries.forEach((entry, name) =>
    data.entries.set(name, { ...entry, wrote: 'settle', outcome: Buffer.from('j"done"') }),
  )
  late.resolve()
  await clock.advance(1)
  settled.resolve()
  expect(await first).toMatchObject({ value: 'done' })
  unsubscribe('onceonly:lost', heard)
  expect(heard).not.toHaveBeenCalled()
  expect(signal!.aborted).toBe(false)
})

describe('waiting', () => {
  test('two calls at once give two equal results: a duplicate waits for 5 s unless it says otherwise', async () => {
    const { process, clock } = world()
    const once = process()
    const slow = gate<string>()
    const both = [once.run('42', () => slow.promise), once.run('42', () => 'second')]
    await clock.advance(4_000)
    slow.resolve('first')
    expect((await Promise.all(both)).map(({ value }) => value)).toEqual(['first', 'first'])
    const hanging = once.run('43', () => gate().promise)
    const impatient = failure(once.run('43', () => {}))
    await clock.advance(5_000)
    expect((await impatient).code).toBe('IN_FLIGHT')
    void hanging.catch(() => {})
  })

  test('waitMs 0 answers at once, with a hint', async () => {
    const { process, clock } = world()
    const once = process({ leaseMs: 30_000, waitMs: 0 })
    const slow = gate()
    const first = once.run('42', () => slow.promise)
    await clock.advance(10_000)
    expect(await failure(once.run('42', () => {}))).toMatchObject({
      code: 'IN_FLIGHT',
      executed: 'unknown',
      retryable: true,
      retryAfterMs: 30_000,
    })
    slow.resolve()
    await first
  })

  test('a duplicate waits for the running effect and gets its outcome', async () => {
    const { process, clock } = world()
    const slow = gate<string>()
    const first = process().run('42', () => slow.promise)
    // Another process: nothing local can wake it.
    const second = process({ waitMs: 5_000 }).run('42', () => 'second')
    await clock.advance(2_000)
    slow.resolve('first')
    await clock.advance(1_000)
    expect(await second).toEqual({ value: 'first', replayed: true, attempt: 1 })
    await first
  })

  test('the end of a local effect wakes its duplicates without a poll', async () => {
    const { process, clock } = world()
    const once = process({ waitMs: 5_000 })
    const slow = gate<string>()
    const first = once.run('42', () => slow.promise)
    const second = once.run('42', () => 'second')
    await clock.advance(3_000)
    slow.resolve('first')
    await clock.advance(0)
    expect(await soon('the duplicate', second)).toMatchObject({ value: 'first', replayed: true })
    await first
  })

  test('a wait that is over ends in IN_FLIGHT', async () => {
    const { process, clock } = world()
    const slow = gate()
    const first = process().run('42', () => slow.promise)
    const second = failure(process({ waitMs: 5_000 }).run('42', () => {}))
    await clock.advance(5_000)
    expect((await second).code).toBe('IN_FLIGHT')
    slow.resolve()
    await first
  })

  test('a thousand local duplicates share one wait, not a thousand polls', async () => {
    const { process, clock, data } = world()
    const slow = gate<string>()
    const first = process().run('42', () => slow.promise)
    await clock.advance(0)
    const store = memoryStore({ data })
    const claim = vi.spyOn(store, 'claim')
    const once = process({ store, waitMs: 10_000 })
    const duplicates = Promise.all(Array.from({ length: 1_000 }, () => once.run('42', () => 'dup')))
    await clock.advance(5_000)
    const polls = claim.mock.calls.length - 1_000
    expect(polls).toBeGreaterThan(3)
    expect(polls).toBeLessThan(40)
    slow.resolve('first')
    await clock.advance(1_000)
    expect(new Set((await duplicates).map(({ value }) => value))).toEqual(new Set(['first']))
    await first
  })

  test('when the first is released, exactly one waiter takes over and the others get its outcome', async () => {
    const { process, clock } = world()
    const once = process({ waitMs: 5_000 })
    const slow = gate<string>()
    const first = expect(once.run('42', () => slow.promise)).rejects.toThrow('down')
    await clock.advance(0)
    const effect = vi.fn(() => 'again')
    const duplicates = Promise.all(Array.from({ length: 50 }, () => once.run('42', effect)))
    await clock.advance(1_000)
    slow.reject(new Error('down'))
    await clock.advance(2_000)
    expect((await soon('the duplicates', duplicates)).filter(({ replayed }) => !replayed)).toHaveLength(1)
    expect(effect).toHaveBeenCalledTimes(1)
    await first
  })
})

describe('expiry', () => {
  test('after keepMs a retry is told EXPIRED and nothing runs; after the tombstone the key is new', async () => {
    const { process, clock } = world()
    const once = process({ keepMs: 1_000, tombstoneMs: 2_000 })
    const again = vi.fn(() => 'again')
    await once.run('42', () => 'first')
    await clock.advance(999)
    expect(await once.run('42', again)).toMatchObject({ replayed: true })
    await clock.advance(1)
    expect(await failure(once.run('42', again))).toMatchObject({ code: 'EXPIRED', executed: 'unknown' })
    expect(again).not.toHaveBeenCalled()
    await clock.advance(2_000)
    expect(await once.run('42', again)).toMatchObject({ value: 'again', replayed: false, attempt: 1 })
  })

  test("onExpired 'run' runs it as new", async () => {
    const { process, clock } = world()
    const once = process({ keepMs: 1_000, onExpired: 'run' })
    await once.run('42', () => 'first')
    await clock.advance(1_000)
    expect(await once.run('42', () => 'again')).toMatchObject({ value: 'again', replayed: false })
  })

  test('a retention above 24.8 days does not overflow a timer', async () => {
    const { process, clock } = world()
    const once = process({ keepMs: 60 * 86_400_000 })
    await once.run('42', () => 1)
    await clock.advance(59 * 86_400_000)
    expect(await once.run('42', () => 2)).toMatchObject({ replayed: true })
  })

  test('sweepEveryMs with a store that forgets by itself is refused, and says why', () => {
    const { sweep: _sweep, ...store } = memoryStore()
    expect(() => createOnce({ store, scope: 'payments', sweepEveryMs: 500 })).toThrow('leave sweepEveryMs out')
  })

  test('sweepEveryMs expires entries in the background, until close', async () => {
    const { process, clock, data } = world()
    const once = process({ keepMs: 1_000, tombstoneMs: 1_000, sweepEveryMs: 500 })
    for (let index = 0; index < 20; index++) await once.run(`key ${index}`, () => index)
    await clock.advance(1_600)
    expect([...data.entries.values()].every((entry) => entry.outcome === undefined)).toBe(true)
    await clock.advance(1_600)
    expect(data.entries.size).toBe(0)
    await once.close()
    expect(clock.pending).toBe(0)
  })
})

describe('the sweep by default', () => {
  const expireAll = async ({ process, clock }: World, keys: number): Promise<void> => {
    const writer = process({ keepMs: 1_000, tombstoneMs: 1_000 })
    for (let index = 0; index < keys; index++) await writer.run(`key ${index}`, () => index)
    await clock.advance(2_000)
  }

  test('removes every expired entry within a minute, in as many steps as it takes', async () => {
    const at = world()
    const limits: number[] = []
    const store = memoryStore({ data: at.data })
    const counted = {
      ...store,
      sweep: (options: { limit: number }) => (limits.push(options.limit), store.sweep({ limit: 7 })),
    }
    await expireAll(at, 20)
    const once = at.sweeping({ store: counted })
    await at.clock.advance(60_000)
    expect(at.data.entries.size).toBe(0)
    expect(limits).toEqual([1_000, 1_000, 1_000])
    await once.close()
  })

  test('stops with close(), also between two steps, and leaves no timer', async () => {
    const at = world()
    let steps = 0
    const endless = {
      ...memoryStore({ data: at.data }),
      sweep: async () => {
        if (++steps === 3) void once.close()
        return { tombstoned: 1, forgotten: 0, more: steps < 1_000 }
      },
    }
    const once = at.sweeping({ store: endless })
    await at.clock.advance(60_000)
    expect(steps).toBe(3)
    expect(at.clock.pending).toBe(0)
    const idle = at.sweeping()
    expect(at.clock.pending).toBe(1)
    await idle.close()
    expect(at.clock.pending).toBe(0)
  })

  test('a process that finds nothing asks less and less often, and after a find every minute again', async () => {
    const at = world()
    const roundsAtMs: number[] = []
    let found = 0
    const store = {
      ...memoryStore({ data: at.data }),
      sweep: async () => (roundsAtMs.push(at.clock.elapsed()), { tombstoned: found, forgotten: 0, more: false }),
    }
    // Without chance the pause is three quarters of the full one.
    const random = {
      uuid: () => crypto.randomUUID(),
      fraction: () => 0.5,
      bytes: (count: number) => new Uint8Array(count),
    }
    const once = at.sweeping({ store, random })
    await at.clock.advance(1_000_000)
    found = 1
    await at.clock.advance(400_000)
    const pausesMs = roundsAtMs.map((atMs, index) => atMs - (roundsAtMs[index - 1] ?? 0))
    expect(pausesMs.slice(0, 5)).toEqual([45_000, 90_000, 180_000, 225_000, 225_000])
    expect(pausesMs.at(-1)).toBe(45_000)
    await once.close()
  })

  test('is off with sweepEveryMs false, on a store that has no sweep, and on one whose server does it', async () => {
    const at = world()
    const store = memoryStore({ data: at.data })
    const { sweep: _sweep, ...without } = store
    at.process({ sweepEveryMs: false })
    at.sweeping({ store: without as MemoryStore })
    at.sweeping({ store: { ...store, isSweptByServer: true } as MemoryStore })
    expect(at.clock.pending).toBe(0)
    const asked = at.process({ store: { ...store, isSweptByServer: true } as MemoryStore, sweepEveryMs: 1_000 })
    expect(at.clock.pending).toBe(1)
    await asked.close()
    expect(() => at.process({ sweepEveryMs: 0 })).toThrow(
      'expected sweepEveryMs to be a positive integer of milliseconds, or false, got 0',
    )
  })

  test('does not keep a process alive, and a store that fails does not end it', async () => {
    const at = world()
    const background: unknown[] = []
    const schedule: ManualClock['schedule'] = (run, delayMs, how) => {
      background.push(how)
      return at.clock.schedule(run, delayMs)
    }
    let rounds = 0
    const failing = {
      ...memoryStore({ data: at.data }),
      sweep: () => (rounds++, Promise.reject(new Error('ECONNREFUSED'))),
    }
    const clock = { ...at.clock, now: () => at.clock.now(), elapsed: () => at.clock.elapsed(), schedule }
    const once = at.sweeping({ store: failing, clock })
    expect(background).toEqual(['background'])
    await at.clock.advance(1_000_000)
    expect(rounds).toBeGreaterThan(3)
    await once.close()
  })
})

describe('a store that fails', () => {
  const down = (): Promise<never> => Promise.reject(new Error('ECONNREFUSED'))

  test('down before the effect: STORE_UNAVAILABLE, and the effect has not run', async () => {
    const { process, data, clock } = world()
    const effect = vi.fn()
    const once = process({ store: { ...memoryStore({ data }), claim: down } })
    expect(await failure(once.run('42', effect))).toMatchObject({
      code: 'STORE_UNAVAILABLE',
      executed: 'no',
      retryable: true,
    })
    expect(effect).not.toHaveBeenCalled()
    await clock.advance(10_000)
    await once.close()
  })

  test('a store that does not answer is given up after storeTimeoutMs', async () => {
    const { process, data, clock } = world()
    const once = process({
      store: { ...memoryStore({ data }), claim: () => new Promise(() => {}) },
      storeTimeoutMs: 700,
    })
    const error = failure(once.run('42', () => {}))
    await clock.advance(700)
    expect((await error).code).toBe('STORE_UNAVAILABLE')
  })

  test('a claim that landed although its reply was lost does not block the key', async () => {
    const { process, data, clock } = world()
    const store = memoryStore({ data })
    const deaf: Store = { ...store, claim: async (...args) => (await store.claim(...args), down()) }
    const effect = vi.fn()
    expect((await failure(process({ store: deaf }).run('42', effect, { fingerprint: 1 }))).code).toBe(
      'STORE_UNAVAILABLE',
    )
    await clock.advance(1)
    expect(await process().run('42', () => 'ok', { fingerprint: 2 })).toMatchObject({ value: 'ok', attempt: 1 })
    expect(effect).not.toHaveBeenCalled()
  })

  test('a claim that lands after its caller gave up is released when it does', async () => {
    const { process, data, clock } = world()
    const store = memoryStore({ data })
    const late = gate()
    const slow: Store = { ...store, claim: async (...args) => (await late.promise, store.claim(...args)) }
    const error = failure(process({ store: slow, storeTimeoutMs: 100, leaseMs: 60_000 }).run('42', () => {}))
    await clock.advance(20_000)
    expect((await error).code).toBe('STORE_UNAVAILABLE')
    late.resolve()
    await clock.advance(1)
    expect(await process().run('42', () => 'ok', { waitMs: 0 })).toMatchObject({ value: 'ok', attempt: 1 })
  })

  test('down after the effect: executed unknown, and the retry tells the truth', async () => {
    const { process, data, clock } = world()
    const store = memoryStore({ data })
    let up = false
    const flaky: Store = { ...store, settle: async (...args) => (up ? store.settle(...args) : down()) }
    const once = process({ store: flaky, storeTimeoutMs: 1_000, leaseMs: 30_000 })
    const effect = vi.fn(() => 'charged')
    const first = failure(once.run('42', effect))
    await clock.advance(1_000)
    expect(await first).toMatchObject({ code: 'OUTCOME_UNKNOWN', executed: 'unknown', retryable: true })
    up = true
    await clock.advance(3_000)
    expect(await once.run('42', effect)).toMatchObject({ value: 'charged', replayed: true })
    expect(effect).toHaveBeenCalledTimes(1)
    await once.close()
  })

  test.each(['STORE_UNSAFE', 'SCHEMA_MISSING'] as const)(
    'unfit after the effect (%s): never said to be not executed, and asked again',
    async (code) => {
      const { process, data, clock } = world()
      const store = memoryStore({ data })
      let fit = false
      const refused = (): never => {
        throw new OnceError(code, { message: 'the server is not fit to be used' })
      }
      const unfit: Store = { ...store, settle: async (...args) => (fit ? store.settle(...args) : refused()) }
      const once = process({ store: unfit, storeTimeoutMs: 1_000, leaseMs: 30_000 })
      const effect = vi.fn(() => 'charged')
      const first = failure(once.run('42', effect))
      await clock.advance(1_000)
      expect(await first).toMatchObject({ code: 'OUTCOME_UNKNOWN', executed: 'unknown', retryable: true })
      fit = true
      await clock.advance(3_000)
      expect(await once.run('42', effect)).toMatchObject({ value: 'charged', replayed: true })
      expect(effect).toHaveBeenCalledTimes(1)
      await once.close()
    },
  )

  test('a settle whose reply is lost is repeated and recognised', async () => {
    const { process, data, clock } = world()
    const store = memoryStore({ data })
    let replies = 0
    const lossy: Store = {
      ...store,
      settle: async (...args) => (await store.settle(...args), replies++ === 0 ? down() : store.settle(...args)),
    }
    const first = process({ store: lossy }).run('42', () => 'charged')
    await clock.advance(1_000)
    expect(await first).toMatchObject({ value: 'charged', replayed: false })
  })
})

describe('by hand', () => {
  test('get shows an entry with its outcome', async () => {
    const once = world().process()
    expect(await once.get('42')).toBeUndefined()
    await once.run('42', () => ({ paid: true }))
    expect(await once.get('42')).toMatchObject({
      state: 'settled',
      attempt: 1,
      outcome: { kind: 'value', value: { paid: true } },
    })
  })

  test('release fences the holder off, and the next request runs', async () => {
    const { process, clock } = world()
    const once = process()
    const slow = gate<string>()
    const first = failure(once.run('42', () => slow.promise))
    await clock.advance(0)
    expect(await once.release('42', 'the pod is gone')).toMatchObject({ state: 'running' })
    expect(await once.run('42', () => 'second')).toMatchObject({ attempt: 2 })
    slow.resolve('first')
    expect((await first).code).toBe('CLAIM_LOST')
    expect(await once.run('42', () => 'third')).toMatchObject({ value: 'second' })
  })

  test('forget makes the key new', async () => {
    const once = world().process()
    await once.run('42', () => 'first')
    expect(await once.forget('42', 'charged back')).toMatchObject({ state: 'settled' })
    expect(await once.run('42', () => 'second')).toMatchObject({ value: 'second', attempt: 1 })
  })

  test.each(['release', 'forget'] as const)('%s wants a reason', async (action) => {
    const once = world().process()
    expect((await failure(once[action]('42', ' '))).code).toBe('INVALID_ARGUMENT')
  })
})

describe('events', () => {
  const heard: { name: string; message: Record<string, unknown> }[] = []
  const listeners = eventNames.map((name) => {
    const listener = (message: unknown): void => void heard.push({ name, message: message as Record<string, unknown> })
    return { channel: `onceonly:${name}`, listener }
  })
  afterEach(() => listeners.forEach(({ channel, listener }) => unsubscribe(channel, listener)))

  test('the life of a key is told, with a hash and never with the key or the value', async () => {
    listeners.forEach(({ channel, listener }) => subscribe(channel, listener))
    const { process, clock } = world()
    const once = process({ keepMs: 1_000 })
    await once.run('secret-key', () => 'secret-value', { fingerprint: 'secret-body' })
    await once.run('secret-key', () => 'secret-value', { fingerprint: 'secret-body' })
    await failure(once.run('secret-key', () => 1))
    await once.run('other', () => Promise.reject(new Error('secret-error'))).catch(() => {})
    await clock.advance(1_000)
    await failure(once.run('secret-key', () => 1))
    expect(heard.map(({ name }) => name)).toEqual([
      'claimed',
      'settled',
      'replayed',
      'mismatched',
      'claimed',
      'released',
      'expired',
    ])
    expect(JSON.stringify(heard)).not.toContain('secret')
    expect(heard[0]!.message).toMatchObject({ scope: 'payments', attempt: 1, how: 'fresh', durationMs: 0 })
    expect(
      new Set(heard.filter((_, index) => ![4, 5].includes(index)).map(({ message }) => message['keyHash'])).size,
    ).toBe(1)
  })
})

test('a manual change is told when it changed something, and not otherwise', async () => {
  const heard: unknown[] = []
  const listener = (message: unknown): void => void heard.push((message as { action: string }).action)
  subscribe('onceonly:mended', listener)
  const once = world().process()
  await once.run('settled', () => 1)
  expect(await once.release('settled', 'it is settled, so there is nothing to release')).toMatchObject({
    state: 'settled',
  })
  expect(await once.resolve('settled', { value: 2 }, 'nor to resolve')).toMatchObject({ state: 'settled' })
  expect(await once.forget('absent', 'it was never there')).toBeUndefined()
  expect(heard).toEqual([])
  await once.forget('settled', 'a test')
  expect(heard).toEqual(['forget'])
  unsubscribe('onceonly:mended', listener)
})

test('a store that fails is told with its codes, never with the key', async () => {
  const heard: unknown[] = []
  const listener = (message: unknown): void => void heard.push(message)
  subscribe('onceonly:store-failed', listener)
  const { process, data } = world()
  const refused = Object.assign(new Error('cannot claim payments/secret-key'), { code: 'ECONNREFUSED' })
  const down = (): Promise<never> => Promise.reject(refused)
  const once = process({ store: { ...memoryStore({ data }), claim: down, release: down }, leaseMs: 1 })
  await failure(once.run('secret-key', () => {}))
  await once.close()
  unsubscribe('onceonly:store-failed', listener)
  expect(heard[0]).toMatchObject({ during: 'claim', code: 'STORE_UNAVAILABLE', cause: 'ECONNREFUSED' })
  expect(JSON.stringify(heard)).not.toContain('secret')
})

describe('bad input', () => {
  const once = world().process()
  const never = (): never => expect.fail('the effect ran')
  // The types have no such methods on this store: a JavaScript caller is told so.
  const unsupported = once as unknown as Once<Store & Transactional<unknown>>
  test.each<[string, () => Promise<unknown>, RegExp]>([
    ['an empty id', () => once.run('', never), /1 to 255 bytes/],
    ['an id of 256 bytes', () => once.run('ü'.repeat(128), never), /got 256/],
    ['a control character', () => once.run('a\nb', never), /control characters/],
    ['a lone surrogate', () => once.run('\ud800', never), /lone surrogate/],
    ['a number as id', () => once.run(42 as never, never), /scope and id/],
    ['no effect', () => once.run('42', undefined as never), /function/],
    ['a misspelt option', () => once.run('42', never, { lease: 5 } as never), /did you mean "leaseMs"/],
    [
      'a duration as text',
      () => once.run('42', never, { leaseMs: '30s' as never }),
      /expected leaseMs to be a positive integer of milliseconds, got "30s"/,
    ],
    ['a wrong choice', () => once.run('42', never, { onThrow: 'relese' as never }), /did you mean "release"/],
    ['options that are none', () => once.run('42', never, null as never), /object of options/],
    ['a fingerprint without a JSON form', () => once.run('42', never, { fingerprint: () => {} }), /no JSON form/],
    ['a fingerprint that contains itself', () => once.run('42', never, { fingerprint: loop() }), /contains itself/],
    ['transaction on a store without', () => unsupported.transaction('42', never), /no transactions/],
    ['within on a store without', () => unsupported.within({}).run('42', never), /no transactions/],
  ])('%s is refused before anything is written', async (_, call, message) => {
    const error = await failure(call())
    expect(error.message).toMatch(message)
    expect(error.executed).toBe('no')
    expect(await (once.store as ReturnType<typeof memoryStore>).list({ limit: 10 })).toEqual([])
  })

  test.each<[string, unknown, RegExp]>([
    ['no options', undefined, /object of options/],
    ['no store', { scope: 'x' }, /store to be an object with the methods/],
    ['no scope', { store: memoryStore() }, /scope/],
    ['an unknown option', { store: memoryStore(), scope: 'x', retries: 3 }, /unknown option "retries"/],
    ['a lease of 0', { store: memoryStore(), scope: 'x', leaseMs: 0 }, /positive integer/],
  ])('createOnce with %s is refused', (_, options, message) => {
    expect(() => createOnce(options as OnceOptions)).toThrow(message)
  })
})

function loop(): unknown {
  const value: { self?: unknown } = {}
  value.self = value
  return value
}

describe('by hand: true results and longer windows', () => {
  const inDoubt = async () => {
    const here = world()
    const once = here.process({ onTakeover: 'refuse' })
    await once.run('42', () => Promise.reject(new InDoubtError('no answer'))).catch(() => {})
    await here.clock.advance(30_000)
    expect((await failure(once.run('42', () => 'second'))).code).toBe('IN_DOUBT')
    return { ...here, once }
  }

  test('a key in doubt is given its true value, and every retry returns it', async () => {
    const { once } = await inDoubt()
    expect(await once.resolve('42', { value: { receipt: 'r1' } }, 'the bank says so')).toMatchObject({
      state: 'abandoned',
    })
    const second = vi.fn()
    expect(await once.run('42', second)).toMatchObject({ value: { receipt: 'r1' }, replayed: true })
    expect(second).not.toHaveBeenCalled()
  })

  test('a key in doubt is given its true failure, and every retry throws it', async () => {
    const { once } = await inDoubt()
    await once.resolve('42', { failure: new FinalError('declined', { data: 5 }) }, 'the bank says so')
    await expect(once.run('42', () => 1)).rejects.toMatchObject({ name: 'FinalError', message: 'declined', data: 5 })
  })

  test('a result that is kept longer is replayed after its first window', async () => {
    const { process, clock } = world()
    const once = process({ keepMs: 1_000 })
    await once.run('42', () => 'first')
    await once.keep('42', 60_000, 'a person replays it tomorrow')
    await clock.advance(59_000)
    expect(await once.run('42', () => 'second')).toMatchObject({ value: 'first', replayed: true })
  })

  test.each([
    ['no outcome', (once: Once<MemoryStore, 'codec'>) => once.resolve('42', {} as never, 'x')],
    ['a value that cannot be stored', (once: Once<MemoryStore, 'codec'>) => once.resolve('42', { value: 5n }, 'x')],
    ['no reason', (once: Once<MemoryStore, 'codec'>) => once.resolve('42', { value: 1 }, ' ')],
    ['no time', (once: Once<MemoryStore, 'codec'>) => once.keep('42', 0, 'x')],
  ])('%s is refused, and nothing is changed', async (_, call) => {
    const { once } = await inDoubt()
    expect(await failure(call(once))).toMatchObject({ code: 'INVALID_ARGUMENT' })
    expect(await once.get('42')).toMatchObject({ state: 'abandoned' })
  })
})

test('close waits for what is still being written, and nothing that has ended is kept for it', async () => {
  const { process, data, clock } = world()
  const store = memoryStore({ data })
  const deaf: Store = { ...store, claim: () => Promise.reject(new Error('ECONNRESET')) }
  const once = process({ store: deaf })
  for (let call = 0; call < 5; call++) await failure(once.run(`${call}`, () => 1))
  await clock.advance(60_000)
  const waited = vi.spyOn(Promise, 'all')
  await once.close()
  expect(waited.mock.calls.map(([all]) => [...(all as Iterable<unknown>)].length)).toEqual([0])
  waited.mockRestore()
})

test('what createOnce was given is there to be read, and a default of each setting', () => {
  const { process, data } = world()
  const store = memoryStore({ data })
  const once = process({ store, leaseMs: 1_234 })
  expect(once.store).toBe(store)
  expect(once).toMatchObject({ scope: 'payments', settings: { leaseMs: 1_234, keepMs: 86_400_000 } })
})

describe('a store that cannot show or change single entries', () => {
  const { show: _show, ...blind } = memoryStore()
  const { mend: _mend, ...fixed } = memoryStore()

  test.each(['get', 'release', 'forget', 'resolve', 'keep'] as const)('refuses %s, and says so', async (method) => {
    for (const store of [blind, fixed]) {
      const once = createOnce({ store, scope: 'payments', sweepEveryMs: false }) as unknown as Once<MemoryStore>
      const calls = {
        get: () => once.get('42'),
        release: () => once.release('42', 'why'),
        forget: () => once.forget('42', 'why'),
        resolve: () => once.resolve('42', { value: 1 }, 'why'),
        keep: () => once.keep('42', 5, 'why'),
      }
      const error = await failure(calls[method]())
      expect(error.message).toContain(`${method}: the memory store cannot show or mend single entries`)
    }
  })

  test('lists nothing in doubt, and reconciles nothing', async () => {
    const { list: _list, ...unlisted } = memoryStore()
    const once = createOnce({ store: unlisted, scope: 'payments', sweepEveryMs: false }) as unknown as Once<MemoryStore>
    for await (const doubt of once.inDoubt()) expect.fail(`${doubt.key.id} is in doubt`)
    const fixedOnce = createOnce({ store: fixed, scope: 'payments' }) as unknown as Once<MemoryStore>
    const error = await failure(fixedOnce.reconcileKeys(async () => undefined, { reason: 'why' }))
    expect(error.message).toContain('reconcileKeys: the memory store cannot show or mend single entries')
    await fixedOnce.close()
  })
})

describe('by hand: what is written', () => {
  test('a true result is kept for as long as createOnce keeps one, and no outcome is shown before there is one', async () => {
    const { process, clock } = world()
    const once = process({ keepMs: 5_000, tombstoneMs: 7_000, leaseMs: 1_000 })
    await once.run('42', () => Promise.reject(new InDoubtError('no answer')), { keepMs: 9_000_000 }).catch(() => {})
    await clock.advance(1_000)
    expect(await once.get('42')).toMatchObject({ state: 'abandoned' })
    expect(await once.get('42')).not.toHaveProperty('outcome')
    await once.resolve('42', { failure: new TypeError('declined') }, 'the bank says so')
    const nowMs = clock.now()
    expect(await once.get('42')).toMatchObject({
      state: 'settled',
      leaseUntilMs: nowMs,
      expiresAtMs: nowMs + 5_000,
      forgottenAtMs: nowMs + 12_000,
      outcome: { kind: 'failure', error: { name: 'FinalError', message: 'declined' } },
    })
  })

  test.each<[message: string, call: (once: Once<MemoryStore, 'codec'>) => Promise<unknown>]>([
    ['release: expected a reason, for the audit trail, got ""', (once) => once.release('42', '')],
    ['forget: expected a reason, for the audit trail, got 5', (once) => once.forget('42', 5 as never)],
    ['resolve: expected a reason', (once) => once.resolve('42', { value: 1 }, undefined as never)],
    ['keep: expected a reason', (once) => once.keep('42', 5, ' ')],
    ['keep: expected forMs to be a positive integer of milliseconds, got 0.5', (once) => once.keep('42', 0.5, 'why')],
    ['resolve: expected { value } or { failure }', (once) => once.resolve('42', null as never, 'why')],
    ['resolve: expected { value } or { failure }', (once) => once.resolve('42', 'value' as never, 'why')],
    ['resolve: the value cannot be stored', (once) => once.resolve('42', { value: 5n }, 'why')],
    ['expected id to be 1 to 255 bytes', (once) => once.get('')],
  ])('what is wrong is refused by its name: %s', async (message, call) => {
    expect((await failure(call(world().process()))).message).toContain(message)
  })

  test('each change is told, with what it was', async () => {
    const heard: unknown[] = []
    const listener = (event: unknown): void => void heard.push((event as { action: string }).action)
    subscribe('onceonly:mended', listener)
    const { process, clock } = world()
    const once = process({ leaseMs: 1_000 })
    for (const id of ['release', 'resolve', 'keep', 'forget']) {
      await once.run(id, () => Promise.reject(new InDoubtError('no answer'))).catch(() => {})
    }
    await clock.advance(1_000)
    await once.release('release', 'why')
    await once.resolve('resolve', { value: 1 }, 'why')
    await once.keep('keep', 5, 'why')
    await once.forget('forget', 'why')
    unsubscribe('onceonly:mended', listener)
    expect(heard).toEqual(['release', 'resolve', 'keep', 'forget'])
    expect((await once.store.audit(key('payments', 'keep'))).map(({ reason }) => reason)).toEqual(['why'])
  })
})
