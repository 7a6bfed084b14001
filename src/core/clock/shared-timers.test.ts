import { spawnSync } from 'node:child_process'
import { expect, test, vi } from 'vitest'
import { isShared, notListed, scheduleShared, sharedList } from './shared-timers.ts'

// Each test has a delay of its own: a list that another test left behind would have a real timer.

function inFakeTime(work: () => void): void {
  vi.useFakeTimers()
  try {
    work()
  } finally {
    vi.useRealTimers()
  }
}

test('limits of one length end in the order in which they were set, each at its own time', () => {
  inFakeTime(() => {
    const ended: string[] = []
    scheduleShared(() => ended.push('first'), 2_001)
    vi.advanceTimersByTime(1_000)
    scheduleShared(() => ended.push('second'), 2_001)
    vi.advanceTimersByTime(999)
    expect(ended).toEqual([])
    vi.advanceTimersByTime(3)
    expect(ended).toEqual(['first'])
    vi.advanceTimersByTime(995)
    expect(ended).toEqual(['first'])
    vi.advanceTimersByTime(10)
    expect(ended).toEqual(['first', 'second'])
  })
})

test('a cancelled limit does not end, whether it is the first, the last or between two others', () => {
  inFakeTime(() => {
    const ended: number[] = []
    const cancels = [0, 1, 2, 3, 4, 5].map((each) => scheduleShared(() => ended.push(each), 2_002))
    // Twice: the second time must not bring back its old neighbour.
    for (const each of [0, 2, 3, 2, 5]) cancels[each]!()
    vi.advanceTimersByTime(2_010)
    expect(ended).toEqual([1, 4])
  })
})

test('a cancelled limit knows nothing of its neighbours', () => {
  inFakeTime(() => {
    const list = sharedList(2_006)
    const limits = [0, 1, 2].map(() => ({ passed: () => {}, ...notListed }))
    for (const each of limits) list.add(each)
    for (const each of [limits[1]!, limits[0]!, limits[2]!]) {
      list.remove(each)
      expect([each.before, each.after]).toEqual([undefined, undefined])
    }
    vi.advanceTimersByTime(2_010)
  })
})

test('a limit that is set while others end has its whole length', () => {
  inFakeTime(() => {
    const again = vi.fn()
    scheduleShared(() => scheduleShared(again, 2_003), 2_003)
    vi.advanceTimersByTime(2_003)
    vi.advanceTimersByTime(1_990)
    expect(again).not.toHaveBeenCalled()
    vi.advanceTimersByTime(20)
    expect(again).toHaveBeenCalledTimes(1)
  })
})

test('a limit whose function throws does not keep the others from ending', () => {
  inFakeTime(() => {
    const other = vi.fn()
    scheduleShared(() => {
      throw new Error('thrown by a limit')
    }, 2_004)
    scheduleShared(other, 2_004)
    expect(() => vi.advanceTimersByTime(2_010)).toThrow('thrown by a limit')
    vi.advanceTimersByTime(10)
    expect(other).toHaveBeenCalledTimes(1)
  })
})

test('after a thousand cancelled limits one timer is left, and none once their length has passed', () => {
  inFakeTime(() => {
    const before = vi.getTimerCount()
    for (let count = 0; count < 1_000; count++) scheduleShared(() => {}, 2_005)()
    expect(vi.getTimerCount() - before).toBe(1)
    vi.advanceTimersByTime(2_010)
    expect(vi.getTimerCount() - before).toBe(0)
  })
})

test('pauses, fractions and what setTimeout cannot take are not shared', () => {
  expect([999, 1_000.5, 2 ** 31, Infinity, Number.NaN].filter(isShared)).toEqual([])
  expect([1_000, 5_000, 2 ** 31 - 1].filter(isShared)).toEqual([1_000, 5_000, 2 ** 31 - 1])
})

test('a limit that is set keeps the process alive, a cancelled one does not', () => {
  const program = `
    import { scheduleShared } from ${JSON.stringify(new URL('./shared-timers.ts', import.meta.url).href)}
    scheduleShared(() => {}, 60_000)()
    scheduleShared(() => process.stdout.write('ended'), 1_000)
    setTimeout(() => process.exit(Number(process.stdout.write(', and kept alive'))), 2_000).unref()
  `
  expect(spawnSync(process.execPath, ['--input-type=module', '-e', program], { encoding: 'utf8' }).stdout).toBe('ended')
})
