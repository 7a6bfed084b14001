// docs/operations.md is true: its programs run as they are written and print what it says, and its tables list every option.

import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { spawnSync } from 'node:child_process'
import { expect, test } from 'vitest'
import { onSources } from './examples.ts'

const root = join(import.meta.dirname, '..', '..')
const text = readFileSync(join(root, 'docs', 'operations.md'), 'utf8')

const programs = text
  .split(/^### /m)
  .slice(1)
  .map((section) => ({
    heading: section.split('\n', 1)[0]!,
    code: /```ts\n([^]*?)```/.exec(section)![1]!,
    prints: /It prints\n\n```\n([^]*?)```/.exec(section)![1]!,
  }))

test.each(programs)('$heading', ({ code, prints }) => {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-docs-'))
  try {
    symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'))
    writeFileSync(join(folder, 'program.mts'), onSources(code))
    const env = { ...process.env, NODE_OPTIONS: '', NODE_NO_WARNINGS: '1' }
    const ran = spawnSync(process.execPath, ['program.mts'], { cwd: folder, encoding: 'utf8', env })
    expect(ran.stderr).toBe('')
    expect(ran.stdout).toBe(prints)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})

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
