import { expect, test } from 'vitest'
import { sleep } from '../../../src/core/clock.ts'
import { createWorld } from './world.ts'

test('time passes by events, in their order', async () => {
  const world = createWorld({ seed: 1 })
  const seen: string[] = []
  world.after(20, () => seen.push(`second at ${world.now()}`))
  world.after(10, () => seen.push(`first at ${world.now()}`))
  world.after(20, () => seen.push(`third at ${world.now()}`))
  expect(await world.run()).toBe(true)
  expect(seen).toEqual(['first at 10', 'second at 20', 'third at 20'])
})

test('what an event sets off in promises is done before the next event, however long the chain', async () => {
  for (const drain of ['quick', 'thorough'] as const) {
    const world = createWorld({ seed: 1, drain })
    let steps = 0
    world.after(10, () => {
      void (async () => {
        for (let step = 0; step < 50; step++) steps = await Promise.resolve(step + 1)
      })()
    })
    let seen = 0
    world.after(10, () => (seen = steps))
    await world.run()
    expect(seen).toBe(50)
  }
})

test('what a process began before it crashed never goes on, though the process starts again', async () => {
  const world = createWorld({ seed: 1 })
  const process = world.createProcess('one')
  const seen: string[] = []
  const life = process.start()
  void sleep(life.clock, 30).then(() => seen.push('a timer of the dead'))
  life.arrive(40, () => seen.push('an answer to the dead'))
  life.whenOver(() => seen.push('over'))
  world.after(10, () => process.crash())
  world.after(20, () => {
    const next = process.start()
    void sleep(next.clock, 30).then(() => seen.push('a timer of the living'))
    // The dead may still hold their clock.
    life.clock.schedule(() => seen.push('a new timer of the dead'), 5)
  })
  await world.run()
  expect(seen).toEqual(['over', 'a timer of the living'])
  expect(life.over).toBe(true)
})

test('a process that stands still runs what became due when it goes on', async () => {
  const world = createWorld({ seed: 1 })
  const process = world.createProcess('one')
  const { clock, arrive } = process.start()
  const seen: [string, number, number][] = []
  const note = (what: string) => (): void => void seen.push([what, world.now(), clock.elapsed()])
  clock.schedule(note('timer'), 30)
  arrive(40, note('answer'))
  world.after(10, () => process.pause(90, 'stop'))
  await world.run()
  expect(seen).toEqual([
    ['timer', 100, 100],
    ['answer', 100, 100],
  ])
})

test('a process that is suspended has not aged: its timers are late by the whole time, what reaches it is not', async () => {
  const world = createWorld({ seed: 1 })
  const process = world.createProcess('one')
  const { clock, arrive } = process.start()
  const seen: [string, number, number][] = []
  const note = (what: string) => (): void => void seen.push([what, world.now(), clock.elapsed()])
  clock.schedule(note('timer'), 30)
  arrive(40, note('answer'))
  world.after(10, () => process.pause(90, 'suspend'))
  await world.run()
  expect(seen).toEqual([
    ['answer', 100, 10],
    ['timer', 120, 30],
  ])
})

test('overlapping pauses never turn a monotonic clock back', async () => {
  const world = createWorld({ seed: 1 })
  const process = world.createProcess('one')
  const { clock } = process.start()
  let before = clock.elapsed()
  const look = (): void => {
    expect(clock.elapsed()).toBeGreaterThanOrEqual(before)
    before = clock.elapsed()
    if (world.now() < 500) clock.schedule(look, 7)
  }
  look()
  world.after(10, () => process.pause(100, 'suspend'))
  world.after(50, () => process.pause(100, 'suspend'))
  world.after(160, () => process.pause(50, 'stop'))
  await world.run()
  expect(before).toBeGreaterThan(300)
})

test('a wall clock that jumps moves no timer', async () => {
  const world = createWorld({ seed: 1 })
  const process = world.createProcess('one', { skewMs: 3_600_000 })
  const { clock } = process.start()
  let firedAt = 0
  clock.schedule(() => (firedAt = world.now()), 50)
  world.after(10, () => (process.skewMs -= 7_200_000))
  await world.run()
  expect(firedAt).toBe(50)
  expect(clock.now()).toBe(50 - 3_600_000)
})

test('the trace of a world is one number, the same every time', async () => {
  const trace = async (delayMs: number): Promise<number> => {
    const world = createWorld({ seed: 1 })
    world.after(delayMs, () => {})
    await world.run()
    return world.traceHash()
  }
  expect(await trace(5)).toBe(await trace(5))
  expect(await trace(5)).not.toBe(await trace(6))
})

test('what never ends is an error, not a run without an end', async () => {
  const world = createWorld({ seed: 1 })
  const again = (): void => world.after(1, again)
  again()
  await expect(world.run()).rejects.toThrow('it did not end within 100000 events')
})
