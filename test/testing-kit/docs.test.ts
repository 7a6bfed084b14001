// docs/testing.md is true: its programs run as they are written, and print what it says they print.

import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { expect, test } from 'vitest'
import * as testing from '../../src/testing/index.ts'

const root = join(import.meta.dirname, '../..')
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
    programs: Array.from(section.matchAll(/```js\n([^]*?)```/g), ([, code]) => code!),
    prints: /It prints\n\n```\n([^]*?)```/.exec(section)?.[1],
  }))

/** Where the package's subpaths are before it is built. */
function sourceOf(subpath: string): string {
  const name = subpath.slice('onceonly/'.length)
  const folder = { '': '', memory: 'stores/', sqlite: 'stores/', fetch: 'http/' }[name]
  const path = name === '' ? 'index' : name === 'testing' ? 'testing/index' : `${folder}${name}`
  return pathToFileURL(join(root, `src/${path}.ts`)).href
}

test.each(sections)('$heading', ({ programs, prints }) => {
  mkdirSync(join(root, 'node_modules'), { recursive: true })
  const folder = mkdtempSync(join(root, 'node_modules', '.onceonly-docs-'))
  try {
    writeFileSync(join(folder, 'package.json'), '{"type":"module"}')
    const names = programs.map((code, at) => /^\/\/ (\S+\.js)$/m.exec(code)?.[1] ?? `program-${at}.js`)
    for (const [at, code] of programs.entries()) {
      const linked = code.replace(/'(onceonly(?:\/[a-z]+)?)'/g, (_, subpath: string) => `'${sourceOf(subpath)}'`)
      writeFileSync(join(folder, names[at]!), linked)
    }
    const env = { ...process.env, NODE_OPTIONS: '', NODE_NO_WARNINGS: '1' }
    const { status, stdout, stderr } = spawnSync(process.execPath, [join(folder, names.at(-1)!)], {
      encoding: 'utf8',
      env,
    })
    expect(status, stderr).toBe(0)
    if (prints !== undefined) expect(stdout).toBe(prints)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})

test('everything that is exported for users is told about', () => {
  // What proves the proof is for us.
  const ours = ['brokenStores', 'guarantees', 'runContractCase', 'storeContractCases']
  for (const name of Object.keys(testing).filter((each) => !ours.includes(each))) expect(text).toContain(`${name}`)
})
