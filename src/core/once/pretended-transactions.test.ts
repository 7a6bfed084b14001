// What a transaction asks of its store, in which order and when, and what it tells. The store is the memory store with transactions
// that only write down what they are asked: what a database makes of that is the matter of transaction.test.ts and of the contract.

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { memoryData, memoryStore } from '../../stores/memory.ts'
import type { MemoryStore } from '../../stores/memory.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import type { Random } from '../clock.ts'
import { FinalError, OnceError } from '../errors.ts'
import { createOnce } from '../once.ts'
import type { Once } from '../once.ts'
import type { OnceOptions } from '../settings.ts'
import type { Began, Claim, InTransaction, SyncTransactional, Transactional, Verdict } from '../store.ts'
import { hasTransactions } from './transaction.ts'

interface Tx {
  readonly name: string
}
type Granted = NonNullable<Began<Tx>['granted']>
type TransactionalStore = MemoryStore & Transactional<Tx> & SyncTransactional<Tx>

/** Always the longest pause, so that times can be told in advance. */
const steady: Random = {
  uuid: () => crypto.randomUUID(),
  fraction: () => 1,
  bytes: (count) => crypto.getRandomValues(new Uint8Array(count)),
}

interface Changes {
  granted?(granted: Granted, log: string[]): Granted
  within?(joined: InTransaction, log: string[]): InTransaction
  begin?(begin: TransactionalStore['begin']): TransactionalStore['begin']
}

function world(changes: Changes = {}) {
  const clock = manualClock()
  const data = memoryData(clock)
  const memory = memoryStore({ data })
  const log: string[] = []
  const tx: Tx = { name: 'tx' }
  const grantedOf = ({ claim }: Verdict & { is: 'granted' }): Granted => ({
    tx,
    commit: async (outcome, retention) => (log.push('commit'), memory.settle(claim, outcome, retention)),
    undoEffect: async () => void log.push('undoEffect'),
    rollback: async () => void (log.push('rollback'), await memory.release(claim, 'forget')),
    abandon: async () => void (log.push('abandon'), await memory.release(claim, 'forget')),
  })
  const joined: InTransaction = {
    claim: memory.claim,
    settle: async (...args) => (log.push('settle'), memory.settle(...args)),
    undoEffect: async () => void log.push('undoEffect'),
    undoClaim: async (claim: Claim) => void (log.push('undoClaim'), await memory.release(claim, 'forget')),
  }
  const begin: TransactionalStore['begin'] = async (key, request) => {
    const verdict = await memory.claim(key, request)
    if (verdict.is !== 'granted') return { verdict }
    const granted = grantedOf(verdict)
    return { verdict, granted: changes.granted?.(granted, log) ?? granted }
  }
  const store: TransactionalStore = {
    ...memory,
    begin: changes.begin?.(begin) ?? begin,
    within: () => changes.within?.(joined, log) ?? joined,
    withinSync: () => expect.fail('not used here'),
    isConflict: (error) => error instanceof OnceError && error.code === 'TRANSACTION_CONFLICT',
  }
  const process = (options: Partial<OnceOptions<TransactionalStore>> = {}): Once<TransactionalStore> =>
    createOnce({ store, scope: 'shop', clock, random: steady, sweepEveryMs: false, waitMs: 0, ...options })
  return { clock, data, memory, log, tx, store, process }
}

const thrown = (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => expect.fail('expected an error'),
    (error: unknown) => error,
  )
const conflict = (): OnceError => new OnceError('TRANSACTION_CONFLICT', { message: 'deadlock' })
const hung = (): Promise<never> => new Promise<never>(() => {})

const heard: (readonly [name: string, event: Record<string, unknown>])[] = []
const listeners = ['claimed', 'settled', 'released', 'store-failed'].map((name) => ({
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

describe('a transaction', () => {
  test('tells its claim and its end with the time since it was asked for', async () => {
    const at = world({
      begin: (begin) => async (key, request) => {
        await new Promise<void>((resolve) => void at.clock.schedule(resolve, 30))
        return begin(key, request)
      },
    })
    await at.clock.advance(500)
    const paid = at.process().transaction('1', async (tx, op) => {
      await new Promise<void>((resolve) => void at.clock.schedule(resolve, 50))
      return [tx.name, op.attempt, op.key.id]
    })
    await at.clock.advance(1_000)
    expect(await paid).toEqual({ value: ['tx', 1, '1'], replayed: false, attempt: 1 })
    const failing = thrown(at.process().transaction('2', () => Promise.reject(new Error('down'))))
    await at.clock.advance(1_000)
    await failing
    const declined = thrown(at.process().transaction('3', () => Promise.reject(new FinalError('declined'))))
    await at.clock.advance(1_000)
    await declined
    expect(at.log).toEqual(['commit', 'rollback', 'undoEffect', 'commit'])
    expect(heard).toEqual([
      ['claimed', { attempt: 1, how: 'fresh', durationMs: 30 }],
      ['settled', { attempt: 1, kind: 'value', durationMs: 80 }],
      ['claimed', { attempt: 1, how: 'fresh', durationMs: 30 }],
      ['released', { attempt: 1, how: 'forget', durationMs: 30 }],
      ['claimed', { attempt: 1, how: 'fresh', durationMs: 30 }],
      ['settled', { attempt: 1, kind: 'failure', durationMs: 30 }],
    ])
  })

  test('whose failure cannot be stored is rolled back and told as released', async () => {
    const at = world()
    const failing = at.process().transaction('1', () => Promise.reject(new FinalError('no', { data: 5n })))
    expect(await thrown(failing)).toMatchObject({ code: 'OUTCOME_NOT_STORED', executed: 'no' })
    expect(at.log).toEqual(['rollback'])
    expect(heard.slice(1)).toEqual([['released', { attempt: 1, how: 'forget', durationMs: 0 }]])
  })

  test("stores any throw as the answer with onThrow 'store', and its callers get the error itself", async () => {
    const at = world()
    const down = new TypeError('down')
    expect(await thrown(at.process({ onThrow: 'store' }).transaction('1', () => Promise.reject(down)))).toBe(down)
    expect(await thrown(at.process().transaction('1', () => 1))).toMatchObject({ name: 'FinalError', message: 'down' })
  })

  test('that loses against others is tried five times, with growing pauses, and then told with the last reason', async () => {
    const triedAtMs: number[] = []
    const at = world({
      granted: (granted) => ({
        ...granted,
        commit: async () => {
          triedAtMs.push(at.clock.elapsed())
          await granted.rollback()
          throw conflict()
        },
      }),
    })
    const hopeless = thrown(at.process().transaction('1', () => 1))
    await at.clock.advance(10_000)
    expect(await hopeless).toMatchObject({
      code: 'TRANSACTION_CONFLICT',
      message: expect.stringContaining('shop/1 was rolled back 5 times'),
      cause: { message: 'deadlock' },
    })
    expect(triedAtMs).toEqual([0, 10, 40, 130, 400])
    expect(at.clock.pending).toBe(0)
  })

  test('that the store refused, or another call was granted, is answered as every call is', async () => {
    const at = world()
    await at.process().transaction('1', () => 'first', { fingerprint: 1 })
    expect(await thrown(at.process().transaction('1', () => 2, { fingerprint: 2 }))).toMatchObject({ code: 'MISMATCH' })
    expect(await at.process().transaction('1', () => 2, { fingerprint: 1 })).toMatchObject({ value: 'first' })
    const silent = world({
      begin:
        (begin) =>
        async (...args) => ({ verdict: (await begin(...args)).verdict }),
    })
    expect(await thrown(silent.process().transaction('1', () => 2))).toMatchObject({
      message: 'Bug! The memory store granted a transaction without giving it.',
    })
  })

  test.each<[what: string, error: () => Error, code: string]>([
    ['an error of ours', () => new OnceError('OUTCOME_UNKNOWN', { message: 'as it is' }), 'OUTCOME_UNKNOWN'],
    ['a refusal of ours', () => new OnceError('STORE_UNSAFE', { message: 'as it is' }), 'STORE_UNSAFE'],
  ])('whose commit fails with %s fails with that', async (_, error, code) => {
    const at = world({ granted: (granted) => ({ ...granted, commit: () => Promise.reject(error()) }) })
    expect(await thrown(at.process().transaction('1', () => 1))).toMatchObject({ code, message: 'as it is' })
  })

  test('whose commit is not answered in time is unknown, with the reason', async () => {
    const at = world({ granted: (granted) => ({ ...granted, commit: hung }) })
    const unknown = thrown(at.process({ storeTimeoutMs: 700 }).transaction('1', () => 1))
    await at.clock.advance(700)
    expect(await unknown).toMatchObject({
      code: 'OUTCOME_UNKNOWN',
      message: expect.stringContaining('The transaction for shop/1 was sent to be committed'),
      cause: { message: 'no answer within 700 ms' },
    })
  })

  test('whose entry was released by a person meanwhile is lost, and was rolled back', async () => {
    const at = world({ granted: (granted) => ({ ...granted, commit: async () => 'lost' }) })
    expect(await thrown(at.process().transaction('1', () => 1))).toMatchObject({
      code: 'CLAIM_LOST',
      executed: 'no',
      message: expect.stringContaining('shop/1'),
    })
    expect(heard.map(([name]) => name)).toEqual(['claimed'])
  })

  test.each<[what: string, error: () => Error, expected: object]>([
    ['by the database', () => new Error('ECONNRESET'), { code: 'STORE_UNAVAILABLE', cause: { message: 'ECONNRESET' } }],
    ['by the store', () => new OnceError('STORE_UNSAFE', { message: 'as it is' }), { code: 'STORE_UNSAFE' }],
  ])(
    'whose failure cannot be separated from its writes is rolled back as a whole: refused %s',
    async (_, error, is) => {
      const at = world({ granted: (granted) => ({ ...granted, undoEffect: () => Promise.reject(error()) }) })
      expect(await thrown(at.process().transaction('1', () => Promise.reject(new FinalError('no'))))).toMatchObject(is)
      expect(at.log).toEqual(['abandon'])
      expect(at.data.entries.size).toBe(0)
    },
  )

  test('whose failure conflicts while it is separated from its writes runs again', async () => {
    let tries = 0
    const at = world({
      granted: (granted) => ({
        ...granted,
        undoEffect: () => (++tries === 1 ? Promise.reject(conflict()) : granted.undoEffect()),
      }),
    })
    const effect = vi.fn(() => Promise.reject(new FinalError('no')))
    const declined = thrown(at.process().transaction('1', effect))
    await at.clock.advance(100)
    expect(await declined).toMatchObject({ name: 'FinalError' })
    expect(effect).toHaveBeenCalledTimes(2)
  })

  test('that does not roll back is cut off, and one that cannot be cut off either hangs no caller', async () => {
    const at = world({
      granted: (granted, log) => ({
        ...granted,
        rollback: () => (log.push('rollback'), hung()),
        abandon: () => (log.push('abandon'), hung()),
      }),
    })
    const failing = thrown(
      at.process({ storeTimeoutMs: 100 }).transaction('1', () => Promise.reject(new Error('down'))),
    )
    await at.clock.advance(100)
    expect(at.log).toEqual(['rollback', 'abandon'])
    await at.clock.advance(100)
    expect(await failing).toMatchObject({ message: 'down' })
    expect(at.clock.pending).toBe(0)
  })

  test('whose effect hangs past its deadline is cut off at once, under the code that still runs', async () => {
    const at = world()
    const late = thrown(at.process({ attemptMs: 1_000, leaseMs: 500 }).transaction('1', hung))
    await at.clock.advance(1_499)
    expect(at.log).toEqual([])
    await at.clock.advance(1)
    expect(await late).toMatchObject({
      code: 'DEADLINE_PASSED',
      executed: 'no',
      message: expect.stringContaining('shop/1 did not end within its attemptMs of 1000'),
    })
    expect(at.log).toEqual(['abandon'])
    expect(heard.at(-1)).toEqual(['released', { attempt: 1, how: 'forget', durationMs: 1_500 }])
  })

  test('that began too late is rolled back when it did, and one whose reply was lost is left to its connection', async () => {
    const reply = Promise.withResolvers<void>()
    const at = world({
      begin:
        (begin) =>
        async (...args) => (await reply.promise, begin(...args)),
    })
    const once = at.process({ storeTimeoutMs: 100 })
    const late = thrown(once.transaction('1', () => 1))
    await at.clock.advance(100)
    expect(await late).toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'no' })
    expect(at.log).toEqual([])
    reply.resolve()
    await at.clock.advance(0)
    await once.close()
    expect(at.log).toEqual(['rollback'])
    expect(at.data.entries.size).toBe(0)
  })

  test('that ended wakes the duplicates of its key, however it ended', async () => {
    const at = world()
    const once = at.process({ waitMs: 60_000 })
    const gate = Promise.withResolvers<string>()
    const first = once.transaction('1', () => gate.promise)
    await at.clock.advance(0)
    const duplicate = once.transaction('1', () => 'never')
    await at.clock.advance(10_000)
    const beganMs = at.clock.elapsed()
    gate.resolve('first')
    await first
    expect(await duplicate).toMatchObject({ value: 'first', replayed: true })
    expect(at.clock.elapsed()).toBe(beganMs)
  })

  test('is refused by a store that has none, and it says so beforehand', async () => {
    const { memory, store } = world()
    expect([hasTransactions(memory), hasTransactions(store)]).toEqual([false, true])
    const once = createOnce({
      store: memory,
      scope: 'shop',
      sweepEveryMs: false,
    }) as unknown as Once<TransactionalStore>
    expect(await thrown(once.transaction('1', () => 1))).toMatchObject({
      code: 'UNSUPPORTED',
      message: expect.stringContaining('transaction: the memory store has no transactions'),
    })
    expect(() => once.within({ name: 'tx' }).runSync('1', () => 1)).toThrow(
      'runSync: the memory store has no synchronous transactions',
    )
    const { within: _within, ...half } = store
    const joining = createOnce({ store: half, scope: 'shop', sweepEveryMs: false }) as unknown as typeof once
    expect(await thrown(joining.within({ name: 'tx' }).run('1', () => 1))).toMatchObject({ code: 'UNSUPPORTED' })
  })
})

describe('within a transaction', () => {
  test('the record is settled in it, a failure after what led to it is undone, and a throw undoes the claim', async () => {
    const { process, log, tx, data } = world()
    const inside = process().within(tx)
    expect(await inside.run('1', (op) => op.attempt)).toEqual({ value: 1, replayed: false, attempt: 1 })
    expect(await inside.run('1', () => 2)).toEqual({ value: 1, replayed: true, attempt: 1 })
    await thrown(inside.run('2', () => Promise.reject(new FinalError('declined'))))
    await thrown(inside.run('3', () => Promise.reject(new Error('down'))))
    await thrown(inside.run('4', () => 5n as unknown as string))
    expect(log).toEqual(['settle', 'undoEffect', 'settle', 'undoClaim', 'undoClaim'])
    expect([...data.entries.values()].map(({ key }) => key.id)).toEqual(['1', '2'])
  })

  test('an undo that fails is not told: the transaction is broken, and rolls back as a whole', async () => {
    const at = world({ within: (joined) => ({ ...joined, undoClaim: () => Promise.reject(new Error('aborted')) }) })
    const failing = at
      .process()
      .within(at.tx)
      .run('1', () => Promise.reject(new Error('down')))
    expect(await thrown(failing)).toMatchObject({ message: 'down' })
  })

  test('what is too large for the store is undone with its claim, and any other error is the error', async () => {
    const error = { of: new OnceError('OUTCOME_NOT_STORED', { message: 'too large.' }) as Error }
    const at = world({ within: (joined) => ({ ...joined, settle: () => Promise.reject(error.of) }) })
    const inside = at.process().within(at.tx)
    expect(await thrown(inside.run('1', () => 1))).toMatchObject({
      code: 'OUTCOME_NOT_STORED',
      executed: 'no',
      message: expect.stringContaining(
        'shop/1 cannot be stored: too large. The effect and its claim were rolled back.',
      ),
    })
    expect(at.log).toEqual(['undoClaim'])
    for (const other of [new Error('deadlock'), new OnceError('STORE_UNSAFE', { message: 'unsafe' })]) {
      error.of = other
      expect(await thrown(inside.run('2', () => 1))).toBe(other)
      await at.clock.advance(60_000)
    }
    expect(at.log).toEqual(['undoClaim'])
  })

  test('an entry that a person released meanwhile is lost', async () => {
    const at = world({ within: (joined) => ({ ...joined, settle: async () => 'lost' }) })
    expect(
      await thrown(
        at
          .process()
          .within(at.tx)
          .run('1', () => 1),
      ),
    ).toMatchObject({ code: 'CLAIM_LOST', executed: 'no' })
  })

  test('a busy key is told at once, though the call would wait', async () => {
    const { process, tx, clock } = world()
    const once = process({ waitMs: 60_000 })
    void once.run('1', hung).catch(() => {})
    await clock.advance(0)
    expect(await thrown(once.within(tx).run('1', () => 1))).toMatchObject({ code: 'IN_FLIGHT' })
  })

  test('an effect that hangs past its deadline is undone with its claim', async () => {
    const { process, tx, clock, log } = world()
    const late = thrown(process({ attemptMs: 1_000, leaseMs: 500 }).within(tx).run('1', hung))
    await clock.advance(1_500)
    expect(await late).toMatchObject({ code: 'DEADLINE_PASSED', executed: 'no' })
    expect(log).toEqual(['undoClaim'])
  })

  test('its own key is busy with no time to wait for, and other keys are not', async () => {
    const { process } = world()
    const once = process()
    let own: unknown
    const other = await once.transaction('1', async (tx) => {
      own = await thrown(once.within(tx).run('1', () => 'never'))
      return (await once.within(tx).run('2', () => 'ran')).value
    })
    expect(own).toMatchObject({ code: 'IN_FLIGHT', retryAfterMs: 0 })
    expect(other.value).toBe('ran')
  })

  test('a transaction that is no object is joined, too', async () => {
    const { process } = world()
    const inside = process().within('tx' as never)
    const gate = Promise.withResolvers<string>()
    const first = inside.run('1', () => gate.promise)
    expect((await inside.run('2', () => 'beside')).value).toBe('beside')
    gate.resolve('first')
    expect((await first).value).toBe('first')
  })

  test('wrong arguments are refused before anything is claimed', async () => {
    const { process, tx, data } = world()
    const inside = process().within(tx)
    expect(await thrown(inside.run('', () => 1))).toMatchObject({ code: 'INVALID_ARGUMENT' })
    expect(await thrown(inside.run('1', 5 as never))).toMatchObject({
      message: expect.stringContaining('within.run: '),
    })
    expect(() => inside.runSync('1', 5 as never)).toThrow('within.runSync: ')
    expect(await thrown(process().transaction('1', 5 as never))).toMatchObject({
      message: expect.stringContaining('transaction: expected the effect to be a function, got number'),
    })
    expect(data.entries.size).toBe(0)
  })
})
