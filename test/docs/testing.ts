// docs/testing.md is true: its programs run as they are written, and print what it says they print.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import * as testing from '../../src/testing/index.ts'
import { root, take } from './blocks.ts'
import { openPrograms } from './programs.ts'

const text = readFileSync(join(root, 'docs/testing.md'), 'utf8')

interface Section {
  readonly heading: string
  /** The last one is run; those before it are files that it needs. */
  readonly programs: readonly string[]
  readonly prints: string | undefined
}

const sections: readonly Section[] = text
  .split(/^### /m)
  .slice(1)
  .map((section) => ({
    heading: section.split('\n', 1)[0]!,
    programs: Array.from(section.matchAll(/```ts\n([^]*?)```/g), ([, code]) => code!),
    prints: /It prints\n\n```\n([^]*?)```/.exec(section)?.[1],
  }))

take('docs/testing.md')

test.each(sections)('$heading', async ({ programs, prints }) => {
  using running = openPrograms()
  const names = programs.map((code, at) => /^\/\/ (\S+)\.ts$/m.exec(code)?.[1] ?? `program-${at}`)
  for (const [at, code] of programs.entries()) running.write(names[at]!, code)
  const said = await running.run(names.at(-1)!, programs.at(-1)!)
  if (prints !== undefined) expect(said).toBe(prints.trim())
})

test('everything that is exported for users is told about', () => {
  // What proves the proof is for us.
  const ours = ['brokenStores', 'guarantees', 'runContractCase', 'storeContractCases']
  for (const name of Object.keys(testing).filter((each) => !ours.includes(each))) expect(text).toContain(`${name}`)
})
