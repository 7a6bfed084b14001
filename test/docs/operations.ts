// docs/operations.md is true: its programs run as they are written and print what it says, and its tables list every option.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { root } from './blocks.ts'
import { testPrinting } from './programs.ts'

const text = readFileSync(join(root, 'docs', 'operations.md'), 'utf8')

testPrinting('docs/operations.md')

const read = (path: string): string => readFileSync(join(root, path), 'utf8')
const rowsOf = (head: string): string[] =>
  new RegExp(`^\\| ${head} \\|.*\\n\\|[-|]+\\n((?:\\|.*\\n)+)`, 'm')
    .exec(text)![1]!
    .split('\n')
    .flatMap((row) => row.split('|')[1]?.match(/(?<=`)[a-zA-Z]+(?=`)/g) ?? [])

test('every option of a step and of an operation, and every state, is listed, and no other', () => {
  const step = /export interface Step<T, [^{]*{[^]*?\n}/.exec(read('src/core/operations/step.ts'))![0]
  const members = Array.from(step.matchAll(/^ {2}(?:readonly )?(\w+)\??[:(]/gm), ([, name]) => name!)
  expect(rowsOf('Option of a step').toSorted()).toEqual(members.filter((name) => name !== 'run').toSorted())
  const rules = /const optionRules[^]*?\n}/.exec(read('src/core/operations/operation.ts'))![0]
  const options = Array.from(rules.matchAll(/^ {2}(\w+):/gm), ([, name]) => name!)
  expect(rowsOf('Option of an operation').toSorted()).toEqual(options.toSorted())
  const states = /export type OperationState = (.*)/.exec(read('src/core/operations/status.ts'))![1]!
  expect(rowsOf('State').toSorted()).toEqual(states.match(/(?<=')\w+(?=')/g)!.toSorted())
})
