import { beforeEach, expect, test, vi } from 'vitest'
import { InDoubtError } from '../../core/errors.ts'
import { createOnce } from '../../core/once.ts'
import type { Entry, Verdict } from '../../core/store.ts'
import { memoryStore } from '../../stores/memory.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import { nextCommands, storyOf } from './story.ts'
import type { Story } from './story.ts'

// vitest may have been started by npx itself.
beforeEach(() => {
  vi.stubEnv('npm_command', 'test')
})

const key = { scope: 'payments', id: '42' }
const retention = { keepMs: 10_000, tombstoneMs: 5_000 }

interface Seen {
  story: Story
  entry: Entry
  verdict: Verdict
}

/** What is told of the entry, and what the store then really returns to a retry. */
async function toldAndTrue(end: 'none' | 'settle' | 'open', laterMs: number): Promise<Seen> {
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
  const entry = (await store.show(key))!
  const story = storyOf(entry, clock.now())
  return { story, entry, verdict: await store.claim(key, { ...request, token: 'second' }) }
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
  expect((await toldAndTrue('none', 3_000)).story.advice).toMatch(/find out whether the effect took place/)
  expect((await toldAndTrue('settle', 0)).story.advice).toBeUndefined()
})

test('the commands to type next name the key and the store, quoted for a shell', async () => {
  const entry = (await toldAndTrue('none', 3_000)).entry
  const commands = nextCommands({ ...entry, key: { scope: "it's", id: 'a b' } }, "--store 'sqlite:a b.db'")
  expect(commands.map(({ command }) => command)).toEqual([
    `onceonly keys resolve 'it'\\''s' 'a b' --value 'JSON' --reason 'TEXT' --store 'sqlite:a b.db'`,
    `onceonly keys release 'it'\\''s' 'a b' --reason 'TEXT' --store 'sqlite:a b.db'`,
    `onceonly keys keep 'it'\\''s' 'a b' --for 7d --reason 'TEXT' --store 'sqlite:a b.db'`,
  ])
  const [first] = nextCommands({ ...entry, key: { scope: 'gateway:shop/acme', id: '42' } }, '')
  expect(first!.command).toBe("onceonly keys resolve gateway:shop/acme 42 --response-file FILE --reason 'TEXT'")
})

test('a running key whose process is gone can be resolved or released, and a takeover is not promised', async () => {
  const { entry, story } = await toldAndTrue('none', 0)
  expect(nextCommands(entry, '')).toEqual([
    {
      when: 'if its process is gone and the effect took place',
      command: `onceonly keys resolve payments 42 --value 'JSON' --reason 'TEXT'`,
    },
    {
      when: 'if its process is gone and the effect did not take place',
      command: `onceonly keys release payments 42 --reason 'TEXT'`,
    },
  ])
  expect(story.next).toMatch(
    /the next retry takes over, or, where the service says onTakeover: 'refuse', gets IN_DOUBT$/,
  )
})

test('an outcome that a person gave is said to be that, and no duration is told', async () => {
  const clock = manualClock()
  const store = memoryStore({ clock })
  const once = createOnce({ store, scope: 'payments', clock, leaseMs: 1_000 })
  await once.run('42', () => Promise.reject(new InDoubtError('lost'))).catch(() => undefined)
  await clock.advance(5_000)
  await once.resolve('42', { value: { receipt: 'r1' } }, 'ticket 7')
  await clock.advance(3_000)
  const { attempt } = storyOf((await store.show(key))!, clock.now())
  expect(attempt).toMatch(/^1, its outcome was given manually \S+Z \(3 s ago\)$/)
})

test('how long the effect took is told from the claim of its attempt', async () => {
  const clock = manualClock()
  const store = memoryStore({ clock })
  const once = createOnce({ store, scope: 'payments', clock })
  await once.run('42', () => clock.advance(2_000).then(() => 1), { fingerprint: 1 })
  expect(storyOf((await store.show(key))!, clock.now()).attempt).toMatch(/^1, since .* took 2 s$/)
})
