// docs/messaging.md is true: its programs run as they are written and print what it says. Those of a broker are run by its own file
// of test/docs/messaging.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { root } from './blocks.ts'
import { testPrinting } from './programs.ts'

const text = readFileSync(join(root, 'docs', 'messaging.md'), 'utf8')

testPrinting('docs/messaging.md')

test('every answer and every code of an inbox is listed, and no other', () => {
  const rowsOf = (head: string): string[] =>
    new RegExp(`^\\| \`${head}\` \\|.*\\n\\|[-|]+\\n((?:\\|.*\\n)+)`, 'm')
      .exec(text)![1]!
      .match(/^\| `[\w-]+`/gm)!
      .map((cell) => cell.slice(3, -1))
  const ground = readFileSync(join(root, 'src/messages/inbox/ground.ts'), 'utf8')
  const handled = /export type Handled =[^]*?\n\n/.exec(ground)![0]
  expect(rowsOf('is').toSorted()).toEqual(handled.match(/(?<=is: ')[\w-]+/g)!.toSorted())
  const parked = readFileSync(join(root, 'src/messages/inbox/parked.ts'), 'utf8')
  const codes = /export type ParkedCode =[^]*?\n\n/.exec(parked)![0].match(/(?<=\| ')\w+/g)!
  expect(rowsOf('code').toSorted()).toEqual(
    [...codes.filter((code) => code !== 'ATTEMPTS'), 'PARKED', 'STALE'].toSorted(),
  )
})
