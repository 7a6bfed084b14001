// Which commands a native settle is, and how their replies are read. What the commands do is told by a server (native.test.ts).

import { expect, test } from 'vitest'
import { swapCommands } from './swap.ts'

const swaps = ['a', 'b', 'c'].map((name) => ({ name, expected: `old ${name}`, entry: `new ${name}`, until: '9' }))
const check = [['INCR', 'mark'], ['TIME']]

test.each([1, 2])('%i of them are one command, which counts in the mark', (count) => {
  const { commands } = swapCommands(swaps.slice(0, count), check, ['EVALSHA', 'hash'])
  const names = ['a', 'b'].slice(0, count)
  const values = names.flatMap((name) => [`old ${name}`, `new ${name}`, '9'])
  expect(commands).toEqual([['EVALSHA', 'hash', `${count + 1}`, 'mark', ...names, ...values], ['TIME']])
})

test('each swap is told by itself, and the count is the first of the check', () => {
  const { isDone, checkOf } = swapCommands(swaps, check, ['EVALSHA', 'hash'])
  const raw = [
    [7, 1, 0, 1],
    ['1', '2'],
  ]
  expect(swaps.map((_, at) => isDone(raw, at))).toEqual([true, false, true])
  expect(checkOf(raw)).toEqual([7, ['1', '2']])
})

test('of what the server refuses nothing was done', () => {
  const refused = new Error('OOM command not allowed')
  const { commands, isDone, checkOf } = swapCommands(swaps.slice(0, 1), check, ['EVALSHA', 'hash'])
  const raw = commands.map(() => refused)
  expect([isDone(raw, 0), checkOf(raw)[0]]).toEqual([false, refused])
})
