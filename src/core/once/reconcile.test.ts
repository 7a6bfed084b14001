import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { describe, expect, test } from 'vitest'
import { idempotency, storedResponse } from '../../http/fetch.ts'
import { memoryStore } from '../../stores/memory.ts'
import type { MemoryStore } from '../../stores/memory.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import type { ManualClock } from '../../testing/manual-clock.ts'
import type { Doubt } from '../doubt.ts'
import { FinalError, InDoubtError } from '../errors.ts'
import type { Key } from '../key.ts'
import { createOnce } from '../once.ts'
import type { Once } from '../once.ts'

interface World {
  readonly once: Once<MemoryStore>
  readonly store: MemoryStore
  readonly clock: ManualClock
}

function world(): World {
  const clock = manualClock()
  const store = memoryStore({ clock })
  return { once: createOnce({ store, clock, scope: 'shop', sweepEveryMs: false }), store, clock }
}

const lost = (): Promise<never> => Promise.reject(new InDoubtError('no answer'))

/** Keys of `once.run` whose attempts never reported. */
async function leaveInDoubt({ once, clock }: World, ...ids: (string | Key)[]): Promise<void> {
  for (const id of ids) await once.run(id, lost).catch(() => undefined)
  await clock.advance(30_000)
}

async function doubtsOf(once: Once<MemoryStore>): Promise<Doubt[]> {
  const found: Doubt[] = []
  for await (const doubt of once.inDoubt()) found.push(doubt)
  return found
}

const because = { reason: 'asked the bank' }

describe('what is in doubt', () => {
  test('keys of HTTP are in it with their tenant, those of others are not', async () => {
    const here = world()
    const app = idempotency(here.once, { tenant: (request) => request.headers.get('x-account') })(async (
      _request,
      { idempotency: held },
    ) => {
      held?.inDoubt()
      return new Response('', { status: 502 })
    })
    for (const account of ['acme', 'a/b c']) {
      const headers = { 'Idempotency-Key': 'order-1', 'X-Account': account }
      await app(new Request('http://shop.example/orders', { method: 'POST', headers, body: '{}' }))
    }
    await leaveInDoubt(here, 'plain', { scope: 'shop/', id: 'shared' }, { scope: 'shop-other', id: 'x' })
    await leaveInDoubt(
      here,
      { scope: 'shop.x/y', id: 'x' },
      { scope: 'shopping/acme', id: 'x' },
      { scope: 'a', id: 'x' },
    )
    expect((await doubtsOf(here.once)).map(({ key, tenant }) => [key.scope, key.id, tenant])).toEqual([
      ['shop', 'plain', undefined],
      ['shop/', 'shared', ''],
      ['shop/a%2Fb%20c', 'order-1', 'a/b c'],
      ['shop/acme', 'order-1', 'acme'],
    ])
  })

  test('a tenant that is called operations hides nothing, and steps come once', async () => {
    const here = world()
    const mail = here.once.operation('mail', {}, (op) => op.step('send', { run: lost, inDoubt: 'park' }))
    await mail.run('m', 1).catch(() => undefined)
    await leaveInDoubt(here, { scope: 'shop/operations', id: 'k' }, { scope: 'shop/operations/POST', id: 'k' })
    expect((await doubtsOf(here.once)).map(({ key, step }) => [key.scope, step])).toEqual([
      ['shop/operations/mail', 'send'],
      ['shop/operations', undefined],
      ['shop/operations/POST', undefined],
    ])
  })

  test('an operation whose process died is told by its step only, and no other key is asked for records', async () => {
    const here = world()
    const mail = here.once.operation('mail', { attemptMs: 1_000, leaseMs: 1_000 }, (op) =>
      op.step('send', () => new Promise<string>(() => {})),
    )
    const died = mail.run('m', 1).catch(() => undefined)
    await here.clock.advance(10_000)
    await died
    await leaveInDoubt(here, 'plain', { scope: 'shop/acme', id: 'k' }, { scope: 'other/shop/operations/', id: 'k' })
    const asked: string[] = []
    const ledger = here.store.ledger.bind(here.store)
    here.store.ledger = (key) => {
      asked.push(key.scope)
      return ledger(key)
    }
    expect(await here.once.get({ scope: 'shop/operations/mail', id: 'm' })).toMatchObject({ state: 'abandoned' })
    expect(await doubtsOf(here.once)).toEqual([
      {
        key: { scope: 'shop/operations/mail', id: 'm' },
        operation: 'mail',
        step: 'send',
        attempt: 1,
        sinceAtMs: expect.any(Number) as number,
        parked: false,
      },
      {
        key: { scope: 'shop', id: 'plain' },
        attempt: 1,
        sinceAtMs: expect.any(Number) as number,
        parked: false,
      },
      {
        key: { scope: 'shop/acme', id: 'k' },
        tenant: 'acme',
        attempt: 1,
        sinceAtMs: expect.any(Number) as number,
        parked: false,
      },
    ])
    expect(asked).toEqual(['shop/operations/mail', 'shop/operations/mail'])
  })

  test.each(['shopping', 't'])('the walk ends with the last tenant, before %s', async (scope) => {
    const here = world()
    await leaveInDoubt(here, { scope: 'shop/acme', id: 'k' })
    await leaveInDoubt(here, ...Array.from({ length: 300 }, (_, at) => ({ scope, id: `k${at}` })))
    const list = here.store.list.bind(here.store)
    let pages = 0
    here.store.list = (filter) => {
      pages++
      return list(filter)
    }
    expect(await doubtsOf(here.once)).toHaveLength(1)
    expect(pages).toBe(2)
  })

  test('more than a page of them are listed, each once', async () => {
    const here = world()
    const ids = Array.from({ length: 250 }, (_, at) => ({ scope: `shop/${String(at % 5)}`, id: `k${at}` }))
    await leaveInDoubt(here, ...ids)
    expect(new Set((await doubtsOf(here.once)).map(({ key }) => key.id)).size).toBe(250)
    expect(await doubtsOf(here.once)).toHaveLength(250)
  })
})

describe('reconciling keys', () => {
  test('each gets what was decided, audited with the reason, and a retry is told so', async () => {
    const here = world()
    const { once, store } = here
    await leaveInDoubt(here, 'charged', 'declined', 'absent', 'later', 'unknown', { scope: 'shop/acme', id: 'order-1' })
    const mended: string[] = []
    const hear = (event: unknown): void => void mended.push((event as { action: string }).action)
    subscribe('onceonly:mended', hear)
    const report = await once.reconcileKeys(async ({ key, tenant }) => {
      if (tenant === 'acme') return { value: storedResponse({ status: 201, body: 'receipt' }) }
      if (key.id === 'charged') return { value: { receipt: 'r1' } }
      if (key.id === 'declined') return { failure: new FinalError('declined') }
      if (key.id === 'later') return { keepMs: 90 * 86_400_000 }
      return key.id === 'absent' ? 'release' : undefined
    }, because)
    unsubscribe('onceonly:mended', hear)
    expect(mended.toSorted()).toEqual(['keep', 'release', 'resolve', 'resolve', 'resolve'])
    expect(report).toEqual({ resolved: 3, released: 1, kept: 1, left: 1, passed: 0, failed: [], more: false })
    expect(await once.run('charged', () => ({ receipt: '' }))).toMatchObject({
      replayed: true,
      value: { receipt: 'r1' },
    })
    await expect(once.run('declined', () => 1)).rejects.toThrow('declined')
    expect(await once.run('absent', () => 'ran')).toMatchObject({ replayed: false, value: 'ran', attempt: 3 })
    expect(await once.get({ scope: 'shop/acme', id: 'order-1' })).toMatchObject({ state: 'settled' })
    for (const id of ['charged', 'declined', 'absent', 'later']) {
      expect(await store.audit({ scope: 'shop', id })).toMatchObject([{ reason: 'asked the bank' }])
    }
    expect(await store.audit({ scope: 'shop', id: 'unknown' })).toEqual([])
    expect((await doubtsOf(once)).map(({ key }) => key.id)).toEqual(['later', 'unknown'])
    expect((await once.get('later'))!.expiresAtMs - here.clock.now()).toBeGreaterThan(89 * 86_400_000)
  })

  test('what was reconciled is kept for as long as its entry says', async () => {
    const here = world()
    await here.once.run('k', lost, { keepMs: 123_000, tombstoneMs: 456_000 }).catch(() => undefined)
    await here.clock.advance(30_000)
    await here.once.reconcileKeys(async () => ({ value: 1 }), because)
    const entry = (await here.once.get('k'))!
    expect([entry.expiresAtMs - entry.leaseUntilMs, entry.forgottenAtMs - entry.expiresAtMs]).toEqual([
      123_000, 456_000,
    ])
  })

  test('a key that a retry took over while the function decided is passed over, and the retry is not overruled', async () => {
    const here = world()
    const { once } = here
    await leaveInDoubt(here, 'k')
    let end = (): void => {}
    const report = await once.reconcileKeys(async () => {
      const retry = once.run('k', () => new Promise<string>((resolve) => (end = () => resolve('the retry'))))
      void retry.catch(() => undefined)
      await here.clock.advance(0)
      return 'release'
    }, because)
    expect(report).toMatchObject({ released: 0, passed: 1 })
    expect(await once.get('k')).toMatchObject({ state: 'running', attempt: 2 })
    end()
    await here.clock.advance(0)
    expect(await once.get('k')).toMatchObject({ state: 'settled', attempt: 2 })
  })

  test('a key that a retry takes over after it was looked at once more is passed over, too', async () => {
    const here = world()
    const { once, store } = here
    await leaveInDoubt(here, 'k')
    const show = store.show.bind(store)
    let rival: unknown
    store.show = async (key) => {
      const entry = await show(key)
      rival ??= await store.claim(key, {
        token: 'rival',
        fingerprint: entry!.fingerprint,
        leaseMs: 30_000,
        retention: { keepMs: 1_000, tombstoneMs: 1_000 },
        version: 0,
        onTakeover: 'run',
        onExpired: 'refuse',
      })
      return entry
    }
    expect(await once.reconcileKeys(async () => ({ value: 'wrong' }), because)).toMatchObject({
      resolved: 0,
      passed: 1,
    })
    expect(rival).toMatchObject({ is: 'granted' })
    expect(await show({ scope: 'shop', id: 'k' })).toMatchObject({ state: 'running', attempt: 2 })
    expect(await store.audit({ scope: 'shop', id: 'k' })).toEqual([])
  })

  test('a key that was released meanwhile is given back as open', async () => {
    const here = world()
    const { once, store } = here
    await leaveInDoubt(here, 'k')
    const show = store.show.bind(store)
    store.show = async (key) => {
      const entry = await show(key)
      await store.mend(key, 'release', 'another person')
      return entry
    }
    expect(await once.reconcileKeys(async () => ({ value: 'wrong' }), because)).toMatchObject({
      resolved: 0,
      passed: 1,
    })
    expect(await show({ scope: 'shop', id: 'k' })).toMatchObject({ state: 'open' })
  })

  test('a function that throws, and a decision that cannot be carried out, leave their key in doubt and stop no other', async () => {
    const here = world()
    await leaveInDoubt(here, 'a', 'b', 'c', 'd')
    const report = await here.once.reconcileKeys(async ({ key }) => {
      if (key.id === 'a') throw new Error('the bank is down')
      if (key.id === 'b') return 'realease' as never
      return key.id === 'c' ? { keepMs: -1 } : 'release'
    }, because)
    expect(report).toMatchObject({ released: 1, passed: 0 })
    expect(report.failed.map(({ doubt, error }) => [doubt.key.id, (error as Error).message])).toEqual([
      ['a', 'the bank is down'],
      ['b', `reconcileKeys: expected { value }, { failure }, { keepMs }, 'release' or undefined, got "realease"`],
      ['c', 'reconcileKeys: expected keepMs to be a positive integer of milliseconds, got -1'],
    ])
    expect((await doubtsOf(here.once)).map(({ key }) => key.id)).toEqual(['a', 'b', 'c'])
  })

  test('no more than the limit are asked about, no more than so many at once, and it says that there are more', async () => {
    const here = world()
    await leaveInDoubt(here, ...Array.from({ length: 10 }, (_, at) => `k${at}`))
    let underWay = 0
    let most = 0
    const decide = async (): Promise<undefined> => {
      most = Math.max(most, ++underWay)
      await Promise.resolve()
      underWay--
    }
    expect(await here.once.reconcileKeys(decide, { ...because, limit: 7, concurrency: 3 })).toMatchObject({
      left: 7,
      more: true,
    })
    expect(most).toBe(3)
    expect(await here.once.reconcileKeys(decide, { ...because, limit: 10 })).toMatchObject({ left: 10, more: false })
  })

  test('eight are asked about at once, and a thousand at the most, unless it is said otherwise', async () => {
    const here = world()
    await leaveInDoubt(here, ...Array.from({ length: 1_001 }, (_, at) => `k${at}`))
    let [underWay, most] = [0, 0]
    const report = await here.once.reconcileKeys(async () => {
      most = Math.max(most, ++underWay)
      await Promise.resolve()
      underWay--
      return undefined
    }, because)
    expect(report).toEqual({ resolved: 0, released: 0, kept: 0, left: 1_000, passed: 0, failed: [], more: true })
    expect(most).toBe(8)
  })

  test('a process that dies after it took the key leaves it in doubt again half a minute later, as it was', async () => {
    const here = world()
    const { store, clock } = here
    const once = createOnce({ store, clock, scope: 'shop', sweepEveryMs: false, version: 7 })
    await once.run('k', lost, { fingerprint: 'f', keepMs: 5_000_000, tombstoneMs: 6_000_000 }).catch(() => undefined)
    await clock.advance(30_000)
    const before = (await store.show({ scope: 'shop', id: 'k' }))!
    store.mend = () => Promise.reject(new Error('the process died'))
    const report = await once.reconcileKeys(async () => 'release', because)
    expect(report.failed).toMatchObject([{ doubt: { attempt: 1 }, error: { code: 'STORE_UNAVAILABLE' } }])
    expect(await store.show(before.key)).toMatchObject({
      state: 'running',
      attempt: 2,
      version: 7,
      fingerprint: before.fingerprint,
      leaseUntilMs: clock.now() + 30_000,
      expiresAtMs: clock.now() + 30_000 + 5_000_000,
      forgottenAtMs: clock.now() + 30_000 + 11_000_000,
    })
  })

  test('what is changed is told, and what is left or passed over is not', async () => {
    const here = world()
    await leaveInDoubt(here, 'resolve', 'release', 'keep', 'left')
    const heard = new Set<string>()
    const listener = (event: unknown): void => void heard.add((event as { action: string }).action)
    subscribe('onceonly:mended', listener)
    await here.once.reconcileKeys(
      async ({ key: { id } }) =>
        id === 'resolve' ? { value: 1 } : id === 'release' ? 'release' : id === 'keep' ? { keepMs: 5 } : undefined,
      because,
    )
    unsubscribe('onceonly:mended', listener)
    expect(heard).toEqual(new Set(['resolve', 'release', 'keep']))
    // Nothing was taken over for a key that is only kept.
    expect(await here.once.get('keep')).toMatchObject({ state: 'abandoned', attempt: 1 })
  })

  test('without a reason, or with an unknown option, nothing is asked', async () => {
    const { once } = world()
    for (const reason of [undefined, '', ' ', 'a\0b', '\ud800']) {
      await expect(once.reconcileKeys(async () => undefined, { reason: reason! })).rejects.toThrow(
        'expected reason to be a reason, for the audit trail',
      )
    }
    await expect(once.reconcileKeys(async () => undefined, { ...because, limt: 1 } as never)).rejects.toThrow(
      'did you mean "limit"',
    )
  })
})
