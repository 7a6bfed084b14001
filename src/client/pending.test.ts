// The contract of key stores, on memory and on files, and on stores with a mistake, which must fail it.

import { mkdtempSync, readdirSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { brokenKeys } from '../../test/client/broken-keys.ts'
import { keyStoreCases, record } from '../../test/client/key-store-contract.ts'
import { memoryKeys } from './client.ts'
import { fileKeys } from './node.ts'

const root = mkdtempSync(join(tmpdir(), 'onceonly-keys-'))
afterAll(() => rmSync(root, { recursive: true, force: true }))
let folders = 0
const newFolder = (): string => join(root, String(folders++), 'not', 'there', 'yet')

for (const { name, run } of keyStoreCases) {
  test(`memory: ${name}`, () => {
    const keys = memoryKeys()
    return run({ one: keys, other: keys })
  })

  test(`file: ${name}`, () => {
    const folder = newFolder()
    return run({ one: fileKeys(folder), other: fileKeys(folder) })
  })
}

describe('a store with a mistake fails the contract', () => {
  test.each(brokenKeys)('$mistake', async ({ fails, open }) => {
    const failed: string[] = []
    for (const { name, run } of keyStoreCases) await run(open()).catch(() => failed.push(name))
    expect(failed).toContain(fails)
  })
})

describe('files', () => {
  test('what a dead process left behind is no record, and is cleared away in time', async () => {
    const folder = newFolder()
    const keys = fileKeys(folder)
    expect(await keys.list()).toEqual([])
    await keys.open(record('pay', 'k1'))
    const [name] = readdirSync(folder)
    const [fresh, old] = [join(folder, `${name}.new.tmp`), join(folder, `${name}.old.tmp`)]
    for (const path of [fresh, old]) writeFileSync(path, '{"oper')
    utimesSync(old, 1, 1)
    writeFileSync(join(folder, `${'0'.repeat(32)}.${'1'.repeat(32)}.answer.json`), '{}')
    expect(await keys.list()).toHaveLength(1)
    expect(readdirSync(folder).toSorted()).toEqual([name, `${name}.new.tmp`])
  })

  test('a record that cannot be read is an error, and no absent record', async () => {
    const folder = newFolder()
    const keys = fileKeys(folder)
    await keys.open(record('pay', 'k1'))
    writeFileSync(join(folder, readdirSync(folder)[0]!), '')
    for (const work of [() => keys.get('pay'), () => keys.open(record('pay', 'k2')), () => keys.list()])
      await expect(work()).rejects.toMatchObject({ code: 'OUTCOME_UNREADABLE', executed: 'unknown' })
  })

  test('a folder that cannot be written is an error that names it', async () => {
    writeFileSync(join(root, 'file'), '')
    const keys = fileKeys(join(root, 'file'))
    await expect(keys.open(record('pay', 'k1'))).rejects.toMatchObject({
      code: 'STORE_UNAVAILABLE',
      message: expect.stringContaining(join(root, 'file')) as string,
    })
  })
})
