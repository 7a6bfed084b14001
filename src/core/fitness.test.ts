import { expect, test, vi } from 'vitest'
import { check, checkedOnce, judge, judgeUnswept } from './fitness.ts'

const question = { name: 'redis-eviction', lookedAt: 'maxmemory-policy', why: 'an evicted key runs its effect again' }

test('a look that fails is unknown, with its error and a cure, and never ok', async () => {
  expect(await check(question, () => ({ verdict: 'ok', found: 'noeviction' }))).toEqual({
    ...question,
    verdict: 'ok',
    found: 'noeviction',
  })
  expect(await check(question, () => Promise.reject(new Error('NOPERM')))).toEqual({
    ...question,
    verdict: 'unknown',
    found: 'the check failed: NOPERM',
    mend: expect.stringContaining('Grant this user'),
  })
  const thrown = (): never => {
    throw 'no text' // oxlint-disable-line no-throw-literal
  }
  expect(await check(question, thrown)).toMatchObject({ verdict: 'unknown', found: 'the check failed: no text' })
})

test('a check that succeeded is not made again, and one that failed is', async () => {
  const look = vi.fn(async (session: string) => {
    if (look.mock.calls.length === 1) throw new Error('down')
    return `seen by ${session}`
  })
  const checked = checkedOnce(look)
  await expect(checked('a')).rejects.toThrow('down')
  expect(await Promise.all([checked('b'), checked('c')])).toEqual(['seen by b', 'seen by b'])
  expect(await checked('d')).toBe('seen by b')
  expect(look).toHaveBeenCalledTimes(2)
})

test('what is in order names no cure', () => {
  expect(judge('ok', 'found', 'mend it')).toEqual({ verdict: 'ok', found: 'found' })
  expect(judge('violated', 'found', 'mend it')).toEqual({ verdict: 'violated', found: 'found', mend: 'mend it' })
})

test('entries that wait for a sweep are a warning when the oldest has waited for more than a day', () => {
  const dayMs = 86_400_000
  expect(judgeUnswept(0, 10 * dayMs)).toEqual({ verdict: 'ok', found: 'none' })
  expect(judgeUnswept(5, dayMs)).toEqual({ verdict: 'ok', found: '5, the oldest for 1 d' })
  expect(judgeUnswept(5, dayMs + 1)).toMatchObject({
    verdict: 'warning',
    mend: expect.stringContaining('onceonly sweep'),
  })
  expect(judgeUnswept(99_999, 2 * dayMs).found).toBe('99999, the oldest for 2 d')
  expect(judgeUnswept(100_000, 2 * dayMs).found).toBe('100000 or more, the oldest for 2 d')
})
