import { describe, expect, test } from 'vitest'
import { faultyFetch } from './faulty-fetch.ts'
import type { FaultyFetchOptions } from './faulty-fetch.ts'
import { manualClock } from './manual-clock.ts'

/** A service that counts what really arrived. */
function service(): { arrived: string[]; fetch: (request: Request) => Promise<Response> } {
  const arrived: string[] = []
  return {
    arrived,
    async fetch(request) {
      arrived.push(await request.text())
      return new Response(`answer ${arrived.length}`, { status: 201 })
    },
  }
}

const post = (body: string): RequestInit => ({ method: 'POST', body })

async function told(call: Promise<Response>): Promise<string> {
  try {
    const response = await call
    return `${response.status} ${await response.text()}`
  } catch (error) {
    return (error as Error).message
  }
}

describe('each fault does what it says', () => {
  test('a dropped request never arrives', async () => {
    const { arrived, fetch } = service()
    const faulty = faultyFetch(fetch, { seed: 1, drop: 1 })
    await expect(faulty('/orders', post('a'))).rejects.toMatchObject({
      message: 'fetch failed',
      cause: { code: 'ECONNRESET' },
    })
    expect(arrived).toEqual([])
    expect(faulty.faults).toEqual([{ call: 1, fault: 'drop', request: 'POST /orders' }])
  })

  test('a lost reply comes after the work was done', async () => {
    const { arrived, fetch } = service()
    await expect(faultyFetch(fetch, { seed: 1, loseReply: 1 })('/a', post('a'))).rejects.toThrow('fetch failed')
    expect(arrived).toEqual(['a'])
  })

  test('a reset breaks the answer off in its body, and an answer without one as a whole', async () => {
    const { fetch } = service()
    const response = await faultyFetch(fetch, { seed: 1, reset: 1 })('/a', post('a'))
    expect(response.status).toBe(201)
    await expect(response.text()).rejects.toThrow()
    const empty = faultyFetch(() => new Response(null, { status: 204 }), { seed: 1, reset: 1 })
    await expect(empty('/a')).rejects.toThrow('fetch failed')
  })

  test('a duplicate arrives twice, at once or later, and the caller hears of the first', async () => {
    for (let seed = 1; seed <= 20; seed++) {
      const { arrived, fetch } = service()
      const faulty = faultyFetch(fetch, { seed, duplicate: 1 })
      expect(await told(faulty('/a', post('a'))), `seed ${seed}`).toBe('201 answer 1')
      await faulty.idle()
      expect(arrived, `seed ${seed}`).toEqual(['a', 'a'])
      await faulty('/a')
      await faulty.idle()
      expect(arrived, `seed ${seed}, without a body`).toEqual(['a', 'a', '', ''])
    }
  })

  test('a delay takes at most delayMs before and after, by the clock that was given, and can be aborted', async () => {
    const { arrived, fetch } = service()
    const clock = manualClock()
    const faulty = faultyFetch(fetch, { seed: 2, delay: 1, delayMs: 1_000, clock })
    const answer = told(faulty('/a', post('a')))
    await clock.advance(2_000)
    expect(await answer).toBe('201 answer 1')
    const controllers = Array.from({ length: 20 }, () => new AbortController())
    const waiting = controllers.map(({ signal }) => told(faulty('/a', { ...post('b'), signal })))
    for (const controller of controllers) controller.abort(new Error('no longer wanted'))
    const answers = await Promise.all(waiting)
    expect(answers).toContain('no longer wanted')
    expect(arrived.length).toBeLessThan(21)
  })
})

test('the same seed gives the same faults, also when the calls overlap; another seed gives others', async () => {
  const options = { drop: 0.2, loseReply: 0.2, reset: 0.1, duplicate: 0.2, delay: 0.2, delayMs: 1 }
  const run = async (seed: number, how: 'at once' | 'one by one'): Promise<unknown> => {
    const faulty = faultyFetch(service().fetch, { seed, ...options })
    const calls: Promise<string>[] = []
    for (let call = 0; call < 100; call++) {
      const answer = told(faulty('/a', post(String(call))))
      if (how === 'one by one') await answer
      calls.push(answer)
    }
    await Promise.all(calls)
    await faulty.idle()
    return faulty.faults
  }
  const first = (await run(7, 'one by one')) as { fault: string }[]
  expect(await run(7, 'at once')).toEqual(first)
  expect(await run(8, 'at once')).not.toEqual(first)
  expect(new Set(first.map(({ fault }) => fault)).size).toBe(5)
})

test('a healed network has no faults', async () => {
  const faulty = faultyFetch(service().fetch, { seed: 1, drop: 1 })
  faulty.heal()
  expect(await told(faulty('http://shop.example/a', post('a')))).toBe('201 answer 1')
})

test.each<[Partial<FaultyFetchOptions> | object, RegExp]>([
  [{}, /expected seed to be a whole number/],
  [{ seed: 1, drop: 2 }, /expected drop to be a number from 0 to 1/],
  [{ seed: 1, drop: 0.7, loseReply: 0.7 }, /1 together at most/],
  [{ seed: 1, losereply: 0.7 }, /did you mean "loseReply"/],
])('options are checked at once: %j', (options, message) => {
  expect(() => faultyFetch(() => new Response(), options as FaultyFetchOptions)).toThrow(message)
})
