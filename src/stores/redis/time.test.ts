// The bounds of the server's time: what each of the two clocks of a process can do to them.

import { expect, test } from 'vitest'
import { serverTime } from './time.ts'

function clocks() {
  const local = { elapsedMs: 5_000, wallMs: 1_000_000 }
  const time = serverTime({ now: () => local.wallMs, elapsed: () => local.elapsedMs, schedule: () => () => {} })
  const pass = (ms: number): void => {
    local.elapsedMs += ms
    local.wallMs += ms
  }
  const ask = (serverMs: number, takesMs = 2): void => {
    const sent = time.here()
    pass(takesMs)
    time.heard(serverMs, sent)
  }
  return { local, time, pass, ask, bounds: () => time.bounds(time.here()) }
}

test('nothing is known before the server has told its time', () => {
  const { time, bounds } = clocks()
  expect(bounds()).toBeUndefined()
  expect(time.at(6_000)).toBe(Number.MAX_SAFE_INTEGER)
})

test('the server read its clock somewhere between the sending and the reply', () => {
  const { pass, ask, bounds } = clocks()
  ask(70_000, 2)
  expect(bounds()).toEqual({ earliestMs: 70_000, latestMs: 70_002 })
  pass(50)
  expect(bounds()).toEqual({ earliestMs: 70_050, latestMs: 70_052 })
})

test('a better reply is taken, a worse one only when the other is old', () => {
  const { pass, ask, bounds, time } = clocks()
  ask(70_000, 10)
  ask(70_011, 2)
  expect(bounds()).toEqual({ earliestMs: 70_011, latestMs: 70_013 })
  ask(70_014, 100)
  expect(bounds()).toEqual({ earliestMs: 70_111, latestMs: 70_113 })
  expect(time.isOld(time.here())).toBe(false)
  pass(200)
  expect(time.isOld(time.here())).toBe(true)
  ask(70_320, 20)
  expect(bounds()).toEqual({ earliestMs: 70_320, latestMs: 70_340 })
})

test('a machine that was suspended does not know the time, and says so', () => {
  const { local, ask, bounds } = clocks()
  ask(70_000)
  local.wallMs += 60_000
  expect(bounds()).toBeUndefined()
  ask(130_002)
  expect(bounds()).toEqual({ earliestMs: 130_002, latestMs: 130_004 })
})

test('a wall clock that was set back does not move the bounds back alone', () => {
  const { local, ask, bounds } = clocks()
  ask(70_000)
  local.wallMs -= 100
  expect(bounds()).toEqual({ earliestMs: 69_900, latestMs: 70_002 })
  local.wallMs -= 3_600_000
  expect(bounds()).toBeUndefined()
})

test('a server whose clock was set is believed at once', () => {
  const { ask, bounds } = clocks()
  ask(70_000, 2)
  ask(10_000, 3)
  expect(bounds()).toEqual({ earliestMs: 10_000, latestMs: 10_003 })
  ask(99_000, 4)
  expect(bounds()).toEqual({ earliestMs: 99_000, latestMs: 99_004 })
})
