// docs/performance.md and docs/scaling.md are true: their programs run as written and print what the pages say.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { root, take } from './blocks.ts'
import { openPrograms } from './programs.ts'

const programs = openPrograms()
afterAll(() => programs[Symbol.dispose]())

test('docs/performance.md: the program that measures your own store prints what it says', async () => {
  const [measuring, ...others] = take('docs/performance.md')
  expect(others).toEqual([])
  expect(await programs.run('measuring', measuring!.code)).toMatch(
    /^\d+ calls per second, \d+\.\d µs of processor time each$/,
  )
})

test('docs/scaling.md: a key goes to one server every time', async () => {
  const text = readFileSync(join(root, 'docs', 'scaling.md'), 'utf8')
  const [routing, ...others] = take('docs/scaling.md')
  expect(others).toEqual([])
  const [, printed] = /It prints\n\n```\n([^]*?)```/.exec(text)!
  expect(await programs.run('routing', routing!.code)).toBe(printed!.trim())
})
