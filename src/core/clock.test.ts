import { expect, test, vi } from 'vitest'
import { sleep, systemClock } from './clock.ts'

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
