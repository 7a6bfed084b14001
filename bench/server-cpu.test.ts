// Which processes are the servers of a bench, and what they spent.

import { expect, test } from 'vitest'
import { below, parseStat, spentMs } from './server-cpu.ts'

test('a process is read although its name has spaces and parentheses', () => {
  expect(parseStat('42 (postgres: io (1) x) S 7 42 42 0 -1')).toEqual({ pid: 42, parent: 7 })
})

test('what the bench has started counts down to the last fork, and the bench itself does not', () => {
  const all = [
    { pid: 2, parent: 1 },
    { pid: 3, parent: 2 },
    { pid: 4, parent: 3 },
    { pid: 9, parent: 8 },
  ]
  expect(below(2, all)).toEqual([3, 4])
})

test('a thread that began within the round counts from nothing', () => {
  const before = new Map([['3/3', 5e6]])
  const after = new Map([
    ['3/3', 7e6],
    ['4/4', 1e6],
  ])
  expect(spentMs(before, after)).toBe(3)
  expect(spentMs(undefined, after)).toBeNaN()
})
