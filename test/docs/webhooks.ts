// docs/webhooks.md is true: its programs run as they are written and print what it says.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { root, take } from './blocks.ts'
import { openPrograms } from './programs.ts'

const text = readFileSync(join(root, 'docs', 'webhooks.md'), 'utf8')

const programs = text
  .split(/^### /m)
  .slice(1)
  .filter((section) => section.includes('It prints\n'))
  .map((section) => ({
    heading: section.split('\n', 1)[0]!,
    code: /```ts\n([^]*?)```/.exec(section)![1]!,
    prints: /It prints\n\n```\n([^]*?)```/.exec(section)![1]!,
  }))

const running = openPrograms()
afterAll(() => running[Symbol.dispose]())
take('docs/webhooks.md', (code) => programs.some((program) => program.code === code))

test.each(programs)('$heading', async ({ heading, code, prints }) => {
  expect(await running.run(heading.replaceAll(/\W+/g, '-'), code)).toBe(prints.trim())
})
