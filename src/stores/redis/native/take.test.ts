// Which commands a native claim is, and how their replies are read. What the commands do is told by a server (native.test.ts).

import { expect, test } from 'vitest'
import { takeChecked, takeUnchecked } from './take.ts'

const taken = ['a', 'b', 'c'].map((name) => ({ name, entry: `entry ${name}`, until: '9' }))
const check = [['INCR', 'mark'], ['MGET', 'register', 'floor'], ['TIME']]
const checked = [7, ['lineage', null], ['1', '2']]

test.each([1, 2])('%i of them are one command, which counts in the mark and looks at register and floor', (count) => {
  const { commands } = takeChecked(taken.slice(0, count), check, ['EVALSHA', 'hash'])
  const names = ['a', 'b'].slice(0, count)
  const values = names.flatMap((name) => [`entry ${name}`, '9'])
  const keys = ['mark', 'register', 'floor', ...names]
  expect(commands).toEqual([['EVALSHA', 'hash', `${count + 3}`, ...keys, ...values], ['TIME']])
})

test('each claim is told by itself, and the check is read as if it had been asked', () => {
  const { foundIn, restOf } = takeChecked(taken, check, ['EVALSHA', 'hash'])
  const raw = [
    [7, 'lineage', null, null, 'found', null],
    ['1', '2'],
  ]
  expect(taken.map((_, at) => foundIn(raw, at))).toEqual([null, 'found', null])
  expect(restOf(raw)).toEqual(checked)
})

test('without a check a claim is one command that writes nothing where something is', () => {
  const { commands, foundIn, restOf } = takeUnchecked(taken[0]!, [['TIME']])
  expect(commands).toEqual([['SET', 'a', 'entry a', 'NX', 'GET', 'PXAT', '9'], ['TIME']])
  expect([foundIn(['found', 1], 0), restOf(['found', 1])]).toEqual(['found', [1]])
})

test('when the server refuses the script, nothing is taken, and the check has failed', () => {
  const refused = new Error('OOM command not allowed')
  const { foundIn, restOf } = takeChecked(taken, check, ['EVALSHA', 'hash'])
  expect([foundIn([refused, []], 0), ...restOf([refused, []])]).toEqual([refused, refused, refused, []])
})
