// Which commands a native settle is, and how their replies are read. What the commands do is told by a server (native.test.ts).

import { expect, test } from 'vitest'
import { swapCommands, swapScripts } from './swap.ts'

const swaps = ['a', 'b', 'c'].map((name) => ({ name, expected: `old ${name}`, entry: `new ${name}`, until: '9' }))
const check = [['INCR', 'mark'], ['TIME']]

test('with IFEQ a lone swap is one command, and the check follows', () => {
  const { commands } = swapCommands(swaps.slice(0, 1), check, 'ifeq')
  expect(commands).toEqual([['SET', 'a', 'new a', 'IFEQ', 'old a', 'PXAT', '9'], ['INCR', 'mark'], ['TIME']])
})

test('several are one command, which counts in the mark', () => {
  for (const way of ['ifeq', 'script'] as const) {
    const { commands } = swapCommands(swaps.slice(0, 2), check, way)
    const values = ['old a', 'new a', '9', 'old b', 'new b', '9']
    expect(commands).toEqual([['EVAL', swapScripts[way], '3', 'mark', 'a', 'b', ...values], ['TIME']])
  }
})

test('and so is a lone one without IFEQ', () => {
  const { commands } = swapCommands(swaps.slice(0, 1), check, 'script')
  expect(commands).toEqual([['EVAL', swapScripts.script, '2', 'mark', 'a', 'old a', 'new a', '9'], ['TIME']])
})

test('each swap is told by itself, and the count is the first of the check', () => {
  const { isDone, checkOf } = swapCommands(swaps, check, 'ifeq')
  const raw = [
    [7, 1, 0, 1],
    ['1', '2'],
  ]
  expect(swaps.map((_, at) => isDone(raw, at))).toEqual([true, false, true])
  expect(checkOf(raw)).toEqual([7, ['1', '2']])
})

test.each([
  ['OK', true],
  [Buffer.from('OK'), true],
  [null, false],
])('IFEQ that is answered by %j', (reply, isIt) => {
  const { isDone, checkOf } = swapCommands(swaps.slice(0, 1), check, 'ifeq')
  expect([isDone([reply, 7], 0), checkOf([reply, 7])]).toEqual([isIt, [7]])
})

test.each(['ifeq', 'script'] as const)('%s: of what the server refuses nothing was done', (way) => {
  const refused = new Error('OOM command not allowed')
  const { commands, isDone, checkOf } = swapCommands(swaps.slice(0, 1), check, way)
  const raw = commands.map(() => refused)
  expect([isDone(raw, 0), checkOf(raw)[0]]).toEqual([false, refused])
})
