// Which commands a native claim is, and how their replies are read. What the commands do is told by a server (native.test.ts).

import { expect, test } from 'vitest'
import { takeChecked, takeEach, takeScript } from './take.ts'

const taken = ['a', 'b', 'c'].map((name) => ({ name, entry: `entry ${name}`, until: '9' }))
const check = [['INCR', 'mark'], ['MGET', 'register', 'floor'], ['TIME']]
const checked = [7, ['lineage', null], ['1', '2']]

test('a lone claim is one command, and its check follows', () => {
  const { commands, foundIn, restOf } = takeChecked(taken.slice(0, 1), check)
  expect(commands).toEqual([['SET', 'a', 'entry a', 'NX', 'GET', 'PXAT', '9'], ...check])
  expect(foundIn([null, ...checked], 0)).toBe(null)
  expect(restOf([null, ...checked])).toEqual(checked)
})

test('several claims are one command, which counts in the mark and looks at register and floor', () => {
  const { commands } = takeChecked(taken.slice(0, 2), check)
  const values = ['entry a', '9', 'entry b', '9']
  expect(commands).toEqual([['EVAL', takeScript, '5', 'mark', 'register', 'floor', 'a', 'b', ...values], ['TIME']])
})

test('each claim is told by itself, and the check is read as if it had been asked', () => {
  const { foundIn, restOf } = takeChecked(taken, check)
  const raw = [
    [7, 'lineage', null, null, 'found', null],
    ['1', '2'],
  ]
  expect(taken.map((_, at) => foundIn(raw, at))).toEqual([null, 'found', null])
  expect(restOf(raw)).toEqual(checked)
})

test('without a check each claim is one command', () => {
  const { commands, foundIn, restOf } = takeEach(taken.slice(0, 2), [['TIME']])
  expect(commands.map(([name]) => name)).toEqual(['SET', 'SET', 'TIME'])
  expect([foundIn(['found', null, 1], 0), restOf(['found', null, 1])]).toEqual(['found', [1]])
})

test('when the server refuses the script, nothing is taken, and the check has failed', () => {
  const refused = new Error('OOM command not allowed')
  const { foundIn, restOf } = takeChecked(taken, check)
  expect([foundIn([refused, []], 0), ...restOf([refused, []])]).toEqual([refused, refused, refused, []])
})
