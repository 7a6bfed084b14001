import { expect, test, vi } from 'vitest'
import { manualClock } from '../testing/manual-clock.ts'
import {
  flatUuid,
  follow,
  formatUuid,
  Limit,
  plainClock,
  plainRandom,
  restingOn,
  sleep,
  span,
  systemClock,
  systemRandom,
} from './clock.ts'

test('a timer beyond 24.8 days does not fire at once', () => {
  vi.useFakeTimers()
  try {
    const run = vi.fn()
    systemClock.schedule(run, 60 * 86_400_000)
    vi.advanceTimersByTime(60 * 86_400_000 - 1)
    expect(run).not.toHaveBeenCalled()
    vi.advanceTimersByTime(1)
    expect(run).toHaveBeenCalledTimes(1)
  } finally {
    vi.useRealTimers()
  }
})

test('a cancelled timer does not fire, also after its first 24.8 days', () => {
  vi.useFakeTimers()
  try {
    const run = vi.fn()
    const cancel = systemClock.schedule(run, 60 * 86_400_000)
    vi.advanceTimersByTime(30 * 86_400_000)
    cancel()
    vi.advanceTimersByTime(60 * 86_400_000)
    expect(run).not.toHaveBeenCalled()
  } finally {
    vi.useRealTimers()
  }
})

test('a sleep ends when its signal aborts', async () => {
  const controller = new AbortController()
  const slept = sleep(systemClock, 86_400_000, { signal: controller.signal })
  controller.abort()
  await slept
  await sleep(systemClock, 86_400_000, { signal: AbortSignal.abort() })
})

test('a token is a random UUID of version 4, and never the same', () => {
  const seen = new Set(Array.from({ length: 10_000 }, () => systemRandom.uuid()))
  expect(seen.size).toBe(10_000)
  const digits = Array.from({ length: 36 }, () => new Set<string>())
  for (const uuid of seen) {
    expect(uuid).toMatch(/^[\da-f]{8}-[\da-f]{4}-4[\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}$/)
    for (const [index, digit] of [...uuid].entries()) digits[index]!.add(digit)
  }
  // Every digit but those of version and variant takes every value.
  expect(digits.map(({ size }) => size)).toEqual(
    Array.from({ length: 36 }, (_, index) => ([8, 13, 14, 18, 23].includes(index) ? 1 : index === 19 ? 4 : 16)),
  )
})

test('a sleep that has ended leaves neither a timer nor a listener, however it ended', async () => {
  const clock = manualClock()
  const controller = new AbortController()
  const removed = vi.spyOn(controller.signal, 'removeEventListener')
  const slept = vi.fn()
  void sleep(clock, 1_000, { signal: controller.signal }).then(slept)
  await clock.advance(999)
  expect(slept).not.toHaveBeenCalled()
  await clock.advance(1)
  expect(slept).toHaveBeenCalledTimes(1)
  expect(removed).toHaveBeenCalledTimes(1)
  const stopped = sleep(clock, 1_000, { signal: controller.signal })
  controller.abort()
  await stopped
  await sleep(clock, 1_000, { signal: controller.signal })
  expect(clock.pending).toBe(0)
})

test('only a timer of the background lets the process end, also one that could share its timer', () => {
  const made = vi.spyOn(globalThis, 'setTimeout')
  try {
    const cancels = [
      systemClock.schedule(() => {}, 999),
      systemClock.schedule(() => {}, 999, 'background'),
      systemClock.schedule(() => {}, 2_008, 'background'),
      systemClock.schedule(() => {}, 2_008),
    ]
    expect(made.mock.results.map(({ value }) => (value as NodeJS.Timeout).hasRef())).toEqual([true, false, false, true])
    for (const cancel of cancels) cancel()
    expect(made.mock.calls.map(([, delayMs]) => delayMs)).toEqual([999, 999, 2_008, 2_008])
    systemClock.schedule(() => {}, -5)()
    expect(made.mock.calls.at(-1)![1]).toBe(0)
  } finally {
    made.mockRestore()
  }
})

test('the clock of browsers is the system clock, with timers that can be cancelled', () => {
  vi.useFakeTimers()
  try {
    vi.setSystemTime(1_234_567)
    expect([plainClock.now(), systemClock.now()]).toEqual([1_234_567, 1_234_567])
    const beganMs = [plainClock.elapsed(), systemClock.elapsed()]
    const [run, cancelled] = [vi.fn(), vi.fn()]
    plainClock.schedule(run, 1_000)
    plainClock.schedule(cancelled, 1_000)()
    vi.advanceTimersByTime(999)
    expect(run).not.toHaveBeenCalled()
    vi.advanceTimersByTime(1)
    expect(run).toHaveBeenCalledTimes(1)
    expect(cancelled).not.toHaveBeenCalled()
    expect([plainClock.elapsed(), systemClock.elapsed()]).toEqual(beganMs.map((each) => each + 1_000))
  } finally {
    vi.useRealTimers()
  }
})

test('random bytes are as many as asked for, no two alike, also when they do not fit into what was drawn before', () => {
  for (const random of [systemRandom, plainRandom]) {
    const drawn = [1, 16, 4_000, 200, 4_096, 5_000].map((count) => random.bytes(count))
    expect(drawn.map(({ length }) => length)).toEqual([1, 16, 4_000, 200, 4_096, 5_000])
    for (const bytes of drawn.slice(1)) expect(new Set(bytes).size).toBeGreaterThan(8)
    const fractions = Array.from({ length: 1_000 }, () => random.fraction())
    expect(fractions.every((each) => each >= 0 && each < 1)).toBe(true)
    expect(Math.max(...fractions) - Math.min(...fractions)).toBeGreaterThan(0.9)
  }
  // 256 times 16 bytes are one whole draw: the next one is new, and no byte of a draw is given twice.
  const tokens = Array.from({ length: 1_000 }, () => Buffer.from(systemRandom.bytes(16)).toString('hex'))
  expect(new Set(tokens).size).toBe(1_000)
  expect(new Set(tokens.flatMap((token) => [token.slice(0, 16), token.slice(16)])).size).toBe(2_000)
})

test('both ways to write a UUID write the same', () => {
  for (const version of [4, 7, 8] as const) {
    const bytes = systemRandom.bytes(16)
    const text = formatUuid(bytes.slice(), version)
    expect(flatUuid(bytes.slice(), version)).toBe(text)
    expect(text).toMatch(new RegExp(`^[\\da-f]{8}-[\\da-f]{4}-${version}[\\da-f]{3}-[89ab][\\da-f]{3}-[\\da-f]{12}$`))
  }
  const counted = Uint8Array.from({ length: 16 }, (_, index) => index)
  expect(flatUuid(counted, 8)).toBe('00010203-0405-8607-8809-0a0b0c0d0e0f')
})

test('a rest ends when its time has passed, when it is woken for an earlier moment, or when its worker stops', async () => {
  const clock = manualClock()
  const stopping = new AbortController()
  const resting = restingOn(clock, stopping.signal)
  const endedAtMs: number[] = []
  const rest = (delayMs: number): void => void resting.rest(delayMs).then(() => endedAtMs.push(clock.elapsed()))
  resting.wakeAt(5)
  rest(1_000)
  await clock.advance(100)
  resting.wakeAt(1_500)
  resting.wakeAt(1_000)
  await clock.advance(899)
  expect(endedAtMs).toEqual([])
  await clock.advance(1)
  expect(endedAtMs).toEqual([1_000])
  rest(1_000)
  await clock.advance(100)
  resting.wakeAt(1_400)
  resting.wakeAt(1_700)
  await clock.advance(500)
  expect(endedAtMs).toEqual([1_000, 1_400])
  // For a moment that has passed: at once.
  rest(1_000)
  await clock.advance(0)
  resting.wakeAt(1_000)
  await clock.advance(0)
  expect(endedAtMs).toEqual([1_000, 1_400, 1_600])
  stopping.abort()
  rest(1_000)
  await clock.advance(0)
  expect(endedAtMs).toEqual([1_000, 1_400, 1_600, 1_600])
  expect(clock.pending).toBe(0)
})

test('a signal follows another one with its reason, until it follows no more', () => {
  const [first, second] = [new AbortController(), new AbortController()]
  const followed = follow(first.signal)
  expect(followed.controller.signal.aborted).toBe(false)
  first.abort('the end')
  expect(followed.controller.signal.reason).toBe('the end')
  expect(follow(first.signal).controller.signal.reason).toBe('the end')
  const left = follow(second.signal)
  left.unfollow()
  second.abort('the end')
  expect(left.controller.signal.aborted).toBe(false)
})

test.each<[ms: number, text: string]>([
  [0, '0 ms'],
  [0.4, '0 ms'],
  [0.6, '1 ms'],
  [999, '999 ms'],
  [1_000, '1 s'],
  [1_500, '1 s'],
  [60_000, '1 min'],
  [61_000, '1 min 1 s'],
  [3_600_000, '1 h'],
  [3_605_000, '1 h 5 s'],
  [86_400_000, '1 d'],
  [2 * 86_400_000 + 3 * 3_600_000 + 59_000, '2 d 3 h'],
  [-61_000, '1 min 1 s'],
])('%d ms are read as %s', (ms, text) => {
  expect(span(ms)).toBe(text)
})

class Counted extends Limit {
  readonly passed = vi.fn()
}

test('a limit passes once, at its time, or not when it was cancelled: on any clock', async () => {
  const clock = manualClock()
  const [limit, cancelled] = [new Counted(), new Counted()]
  limit.set(clock, 2_000)
  cancelled.set(clock, 2_000)
  cancelled.cancel()
  cancelled.cancel()
  await clock.advance(1_999)
  expect(limit.passed).not.toHaveBeenCalled()
  await clock.advance(2_000)
  limit.cancel()
  expect(limit.passed).toHaveBeenCalledTimes(1)
  expect(cancelled.passed).not.toHaveBeenCalled()
  new Counted().cancel()
})

test('on the clock of the system, a long limit shares its timer and a short one has its own', () => {
  vi.useFakeTimers()
  try {
    const before = vi.getTimerCount()
    const [first, second, short, cancelled] = [new Counted(), new Counted(), new Counted(), new Counted()]
    first.set(systemClock, 2_007)
    vi.advanceTimersByTime(100)
    second.set(systemClock, 2_007, systemClock.elapsed())
    expect(vi.getTimerCount() - before).toBe(1)
    short.set(systemClock, 10)
    cancelled.set(systemClock, 10)
    cancelled.cancel()
    expect(vi.getTimerCount() - before).toBe(2)
    vi.advanceTimersByTime(1_900)
    expect([short, cancelled, first].map(({ passed }) => passed.mock.calls.length)).toEqual([1, 0, 0])
    vi.advanceTimersByTime(50)
    expect([first, second].map(({ passed }) => passed.mock.calls.length)).toEqual([1, 0])
    vi.advanceTimersByTime(100)
    expect([first, second].map(({ passed }) => passed.mock.calls.length)).toEqual([1, 1])
  } finally {
    vi.useRealTimers()
  }
})
