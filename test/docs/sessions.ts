// docs/sessions.md is true: its program runs as it is written and prints what it says, and its table has every refusal.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { root, take } from './blocks.ts'
import { openPrograms } from './programs.ts'

const text = readFileSync(join(root, 'docs', 'sessions.md'), 'utf8')
const programs = openPrograms()
afterAll(() => programs[Symbol.dispose]())
const blocks = take('docs/sessions.md')
const prints = [...text.matchAll(/It prints\n\n```\n([^]*?)```/g)].map(([, printed]) => printed!.trim())

test('every program runs as written', async () => {
  const printed = blocks.map(({ code }, at) => programs.run(`sessions-${at}`, code))
  expect(await Promise.all(printed)).toEqual(prints)
})

test('the rules are listed in their order, and no other', () => {
  const [section] = /^## The rules$[^]*?(?=^## )/m.exec(text)!
  const listed = section.match(/^\| `[A-Z_]+` \|/gm)!.map((cell) => cell.slice(3, -3))
  const rules = readFileSync(join(root, 'src/sessions/sessions/rules.ts'), 'utf8')
  const codes = /export type SessionRefusalCode =[^]*?\n\n/.exec(rules)![0].match(/(?<=')[A-Z_]+/g)!
  expect(listed).toEqual([...codes, 'IN_FLIGHT'])
})
