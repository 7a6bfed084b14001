import { expect, test } from 'vitest'
import { createOnce } from '../../core/once.ts'
import type { Verdict } from '../../core/store.ts'
import { memoryStore } from '../../stores/memory.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import { storyOf } from './story.ts'
import type { Story } from './story.ts'

const key = { scope: 'payments', id: '42' }
const retention = { keepMs: 10_000, tombstoneMs: 5_000 }

/** What is told of the entry, and what the store then really answers to a retry. */
async function toldAndTrue(
  end: 'none' | 'settle' | 'open',
  laterMs: number,
): Promise<{ story: Story; verdict: Verdict }> {
  const clock = manualClock()
  const store = memoryStore({ clock })
  const request = {
    fingerprint: 'f'.repeat(43),
    leaseMs: 1_000,
    retention,
    version: 0,
    onTakeover: 'run',
    onExpired: 'refuse',
  } as const
  const first = await store.claim(key, { ...request, token: 'first' })
  if (first.is !== 'granted') throw new Error(first.is)
  if (end === 'settle') await store.settle(first.claim, Buffer.from('j1'), retention)
  if (end === 'open') await store.release(first.claim, 'open')
  await clock.advance(laterMs)
  const story = storyOf((await store.show(key))!, clock.now())
  return { story, verdict: await store.claim(key, { ...request, token: 'second' }) }
}

test.each<['none' | 'settle' | 'open', number, state: RegExp, retry: RegExp, verdict: object]>([
  ['none', 0, /^running: .* until .* \(in 1 s\)/, /IN_FLIGHT/, { is: 'busy' }],
  [
    'none',
    3_000,
    /^abandoned: the lease ended .* \(2 s ago\)/,
    /take over as attempt 2/,
    { is: 'granted', how: 'taken-over' },
  ],
  ['open', 3_000, /^open: attempt 1 .* \(3 s ago\)/, /as attempt 2/, { is: 'granted', how: 'reopened' }],
  ['settle', 3_000, /^settled: .* \(3 s ago\)/, /replay the stored outcome/, { is: 'settled' }],
  ['settle', 12_000, /^tombstone: it expired .* \(2 s ago\)/, /EXPIRED/, { is: 'expired' }],
])('after %s and %s ms, what is told of a retry is what a retry gets', async (end, laterMs, state, retry, verdict) => {
  const { story, verdict: real } = await toldAndTrue(end, laterMs)
  expect(story.state).toMatch(state)
  expect(story.retry).toMatch(retry)
  expect(real).toMatchObject(verdict)
})

test('only what is in doubt comes with advice', async () => {
  expect((await toldAndTrue('none', 3_000)).story.advice).toMatch(/find out whether the effect happened/)
  expect((await toldAndTrue('settle', 0)).story.advice).toBeUndefined()
})

test('how long the effect took is told from the claim of its attempt', async () => {
  const clock = manualClock()
  const store = memoryStore({ clock })
  const once = createOnce({ store, scope: 'payments', clock })
  await once.run('42', () => clock.advance(2_000).then(() => 1), { fingerprint: 1 })
  expect(storyOf((await store.show(key))!, clock.now()).attempt).toMatch(/^1, since .* took 2 s$/)
})
