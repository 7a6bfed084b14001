// docs/sessions.md is true: its programs run as they are written, the first prints what it says, and its table has every refusal.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { memoryStore } from '../../src/stores/memory.ts'
import { collisionsIn, listen, openTillServer } from '../client/till-server.ts'
import { root, take } from './blocks.ts'
import { openPrograms } from './programs.ts'

const text = readFileSync(join(root, 'docs', 'sessions.md'), 'utf8')
const programs = openPrograms()
afterAll(() => programs[Symbol.dispose]())
const blocks = take('docs/sessions.md')
const isClient = ({ code }: { readonly code: string }): boolean => code.includes('createSessionClient')
const prints = [...text.matchAll(/It prints\n\n```\n([^]*?)```/g)].map(([, printed]) => printed!.trim())

test('every program of a server runs as written', async () => {
  const serving = blocks.filter((block) => !isClient(block))
  const printed = serving.map(({ code }, at) => programs.run(`sessions-${at}`, code))
  expect(await Promise.all(printed)).toEqual(prints)
})

test('the client sells, and finishes what a process before it left', async () => {
  const server = openTillServer({ store: memoryStore() })
  await using shop = await listen(server)
  const { code } = blocks.find(isClient)!
  const env = { SHOP_URL: shop.url }
  expect(await programs.run('till', code, [], env)).toBe('0 3 0')
  // A process that dies before it has used its answers.
  const dies = code.replace('await response.settled()', 'process.exit()').replaceAll('sale:', 'second:')
  await programs.run('dies', dies, [], env)
  const said = await programs.run('till', code.replaceAll('sale:', 'third:'), [], env)
  expect(said).toMatch(/^(left over: receipt of \{"cents":\d+\}\n)+[123] 3 0$/)
  expect(collisionsIn(server)).toEqual([])
})

test('the rules are listed in their order, and no other', () => {
  const [section] = /^## The rules$[^]*?(?=^## )/m.exec(text)!
  const listed = section.match(/^\| `[A-Z_]+` \|/gm)!.map((cell) => cell.slice(3, -3))
  const rules = readFileSync(join(root, 'src/sessions/sessions/rules.ts'), 'utf8')
  const codes = /export type SessionRefusalCode =[^]*?\n\n/.exec(rules)![0].match(/(?<=')[A-Z_]+/g)!
  expect(listed).toEqual([...codes, 'IN_FLIGHT'])
})
