import { expect, test } from 'vitest'
import { createOnce } from '../../core/once.ts'
import { InDoubtError } from '../../core/errors.ts'
import { memoryStore } from '../../stores/memory.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import type { FitnessCheck } from '../../core/fitness.ts'
import { entryChecks, judgeHorizon, operationChecks, samplesOf } from './entries.ts'
import type { Expectations } from './entries.ts'

const hour = 3_600_000
const expected: Expectations = {
  leaseMs: 30_000,
  keepMs: undefined,
  tombstoneMs: undefined,
  retryHorizonMs: undefined,
  webhookHorizonMs: undefined,
}

async function checked(
  fill: (once: ReturnType<typeof createOnce>, clock: ReturnType<typeof manualClock>) => Promise<unknown>,
  expectations: Partial<Expectations> = {},
): Promise<(name: string) => FitnessCheck> {
  const clock = manualClock()
  const store = memoryStore({ clock })
  await fill(createOnce({ store, scope: 'payments', clock }), clock)
  const checks = await entryChecks(
    await samplesOf(store, 1_000, 'asked-for'),
    { ...expected, ...expectations },
    clock.now(),
  )
  return (name) => checks.find((each) => each.name === name)!
}

const settle = (once: ReturnType<typeof createOnce>): Promise<unknown> =>
  once.run('1', async () => 1, { fingerprint: 1 })

test('a store with nothing wrong has nothing to tell', async () => {
  const of = await checked(settle, { retryHorizonMs: 6 * hour, webhookHorizonMs: 12 * hour })
  for (const name of ['in-doubt', 'stuck', 'failing', 'lease', 'client-horizon', 'webhook-horizon']) {
    expect(of(name), name).toMatchObject({ verdict: 'ok' })
  }
})

test('an effect that never reported is in doubt, by name', async () => {
  const of = await checked(async (once, clock) => {
    await once.run('7', () => Promise.reject(new InDoubtError('lost')), { fingerprint: 1 }).catch(() => undefined)
    await clock.advance(60_000)
  })
  expect(of('in-doubt')).toMatchObject({ verdict: 'warning', found: '1: payments / 7' })
})

test('an attempt that runs for more than twenty leases is stuck', async () => {
  const of = await checked(async (once, clock) => {
    const options = { fingerprint: 1, leaseMs: 48 * hour }
    await once.run('7', () => Promise.reject(new InDoubtError('hangs')), options).catch(() => undefined)
    await clock.advance(hour)
  })
  expect(of('stuck')).toMatchObject({ verdict: 'warning', found: '1: payments / 7' })
  expect(of('in-doubt')).toMatchObject({ verdict: 'ok' })
})

test('a key that fails again and again is told', async () => {
  const of = await checked(async (once) => {
    for (let tries = 0; tries < 5; tries++) {
      await once.run('7', () => Promise.reject(new Error('no')), { fingerprint: 1 }).catch(() => undefined)
    }
  })
  expect(of('failing')).toMatchObject({ verdict: 'warning', found: '1: payments / 7' })
})

test('an effect that is slower than the lease is told, one that is retried late is not taken for slow', async () => {
  const slow = await checked((once, clock) =>
    once.run('1', () => clock.advance(40_000).then(() => 1), { fingerprint: 1 }),
  )
  expect(slow('lease')).toMatchObject({ verdict: 'warning', found: expect.stringContaining('took 40 s') as string })
  const retried = await checked(async (once, clock) => {
    await once.run('1', () => Promise.reject(new Error('no')), { fingerprint: 1 }).catch(() => undefined)
    await clock.advance(hour)
    await settle(once)
  })
  expect(retried('lease')).toMatchObject({ verdict: 'ok' })
})

test.each<[keepMs: number, tombstoneMs: number, horizonMs: number, verdict: string]>([
  [24 * hour, 0, 12 * hour, 'ok'],
  [24 * hour, 0, 12 * hour + 1, 'warning'],
  [1 * hour, 24 * hour, 6 * hour, 'warning'],
  [1 * hour, 4 * hour, 6 * hour, 'violated'],
])('kept %s ms and %s ms, retried for %s ms: %s', (keepMs, tombstoneMs, horizonMs, verdict) => {
  expect(judgeHorizon({ keepMs, tombstoneMs }, horizonMs, '')).toMatchObject({ verdict })
})

test('the shortest window that is in use is the one that is judged; what is given goes before it', async () => {
  const fill = async (once: ReturnType<typeof createOnce>): Promise<void> => {
    await settle(once)
    await once.run('2', async () => 1, { fingerprint: 1, keepMs: hour, tombstoneMs: 0 })
  }
  expect((await checked(fill, { retryHorizonMs: 6 * hour }))('client-horizon')).toMatchObject({ verdict: 'violated' })
  const given = { retryHorizonMs: 6 * hour, keepMs: 24 * hour, tombstoneMs: 0 }
  expect((await checked(fill, given))('client-horizon')).toMatchObject({ verdict: 'ok' })
  expect((await checked(fill))('client-horizon')).toMatchObject({ verdict: 'unknown' })
})

test('a sample is as large as asked for, says so, and holds no outcomes', async () => {
  const store = memoryStore()
  const once = createOnce({ store, scope: 's' })
  for (let number = 0; number < 450; number++) await once.run(`${number}`, async () => 'secret', { fingerprint: 1 })
  const part = (await samplesOf(store, 401, 'asked-for')).first
  expect([part.entries.length, part.complete]).toEqual([401, false])
  const whole = (await samplesOf(store, 1_000, 'asked-for')).first
  expect([whole.entries.length, whole.complete]).toEqual([450, true])
  expect(new Set(whole.entries.map(({ key }) => key.id)).size).toBe(450)
  expect(whole.entries.some((entry) => 'outcome' in entry)).toBe(false)
})

test('what is rare is found beyond the sample where it can be asked for; elsewhere it is not said to be none', async () => {
  const clock = manualClock()
  const store = memoryStore({ clock })
  const once = createOnce({ store, scope: 's', clock })
  for (let number = 100; number < 150; number++) await once.run(`${number}`, async () => 1, { fingerprint: 1 })
  await once.run('999', () => Promise.reject(new InDoubtError('lost')), { fingerprint: 1 }).catch(() => undefined)
  await clock.advance(60_000)
  const doubt = async (rare: 'asked-for' | 'in-the-sample', size: number): Promise<FitnessCheck> =>
    (await entryChecks(await samplesOf(store, size, rare), expected, clock.now()))[0]!
  expect(await doubt('asked-for', 10)).toMatchObject({ verdict: 'warning', found: '1: s / 999' })
  expect(await doubt('in-the-sample', 10)).toMatchObject({
    found: 'none among the first 10 entries (--sample looks at more)',
  })
  expect(await doubt('in-the-sample', 100)).toMatchObject({ verdict: 'warning', found: '1: s / 999' })
})

test('operations that are parked or in doubt are told by name, and only those', async () => {
  const clock = manualClock()
  const store = memoryStore({ clock })
  const once = createOnce({ store, scope: 'shop', clock })
  const checkout = once.operation('checkout', { version: 1 }, (op) =>
    op.step('charge', { run: () => Promise.reject(new InDoubtError('secret')), inDoubt: 'park' }),
  )
  const waiting = once.operation('mail', { version: 1 }, () => Promise.reject(new Error('no')))
  await checkout.run('7', 1).catch(() => undefined)
  await clock.advance(700_000)
  await checkout.run('7', 1).catch(() => undefined)
  await waiting.run('8', 1).catch(() => undefined)
  const checks = await operationChecks(store, await samplesOf(store, 1_000, 'asked-for'))
  expect(checks).toMatchObject([
    { name: 'operations-parked', verdict: 'warning', found: '1: shop/operations/checkout / 7' },
    { name: 'operations-in-doubt', verdict: 'warning', found: '1: shop/operations/checkout / 7' },
  ])
  const broken = { ...store, ledger: () => Promise.reject(new Error('no such table')) }
  expect(await operationChecks(broken, await samplesOf(store, 1_000, 'asked-for'))).toMatchObject([
    { verdict: 'unknown' },
    { verdict: 'unknown' },
  ])
  expect(await operationChecks({}, await samplesOf(store, 1_000, 'asked-for'))).toEqual([])
})
