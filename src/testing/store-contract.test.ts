// docs/writing-a-store.md tells the truth: its test file is run as a reader would run it, on plain node:test.

import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { promisify } from 'node:util'
import { expect, test } from 'vitest'
import { guarantees } from './store-contract/case.ts'
import { memoryCannot } from '../../test/subjects/memory.ts'
import { reasonNotTo, storeContractCases } from './store-contract.ts'

const source = join(import.meta.dirname, '..')
const page = await readFile(join(source, '../docs/writing-a-store.md'), 'utf8')

test('the test file in docs/writing-a-store.md runs every case on node:test', async () => {
  const snippet = page
    .match(/```ts\n([^]*?)```/)![1]!
    .replace(`'onceonly/memory'`, `'${pathToFileURL(join(source, 'stores/memory.ts')).href}'`)
    .replace(`'onceonly/testing'`, `'${pathToFileURL(join(source, 'testing/index.ts')).href}'`)
  const folder = await mkdtemp(join(tmpdir(), 'onceonly-contract-'))
  try {
    await writeFile(join(folder, 'mine.test.mts'), snippet)
    const { NODE_TEST_CONTEXT: _context, NODE_OPTIONS: _options, ...env } = process.env
    const arguments_ = ['--test', '--test-reporter=tap', join(folder, 'mine.test.mts')]
    const { stdout } = await promisify(execFile)(process.execPath, arguments_, { env, maxBuffer: 2 ** 24 })
    const skipped = storeContractCases.filter((each) => reasonNotTo(each, memoryCannot) !== undefined).length
    expect(stdout).toContain(`# tests ${storeContractCases.length}\n`)
    expect(stdout).toContain(`# pass ${storeContractCases.length - skipped}\n`)
    expect(stdout).toContain(`# skipped ${skipped}\n`)
  } finally {
    await rm(folder, { recursive: true })
  }
})

test('docs/writing-a-store.md names every guarantee with its promise', () => {
  const listed = Array.from(page.matchAll(/^\| `([\w-]+)` \| (.*) \|$/gm), ([, name, promise]) => [name, promise])
  expect(Object.fromEntries(listed)).toEqual(guarantees)
})
