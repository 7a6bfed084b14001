// How the project looks, as a test: what it forbids cannot creep in. The length of functions is oxlint's to check.

import { existsSync, globSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { describe, expect, test } from 'vitest'
import { errorCodes } from '../src/core/errors.ts'

const root = join(import.meta.dirname, '..')
const read = (path: string): string => readFileSync(join(root, path), 'utf8')
const files = (pattern: string): string[] =>
  globSync(pattern, { cwd: root, exclude: (name) => name === 'node_modules' || name === 'dist' }).toSorted()

const everyFile = files('{src,test,examples,scripts,bench}/**/*.ts')
const sources = files('src/**/*.ts').filter((path) => !path.endsWith('.test.ts'))
const manifest = JSON.parse(read('package.json')) as { exports: Record<string, { default: string } | string> }

/** Folders of src and the siblings each may import besides core and itself. */
const arrows: Readonly<Record<string, readonly string[]>> = {
  core: [],
  clients: [],
  stores: ['clients'],
  http: ['sessions'],
  messages: ['clients'],
  sessions: ['clients'],
  webhooks: ['messages'],
  client: [],
  writes: ['clients'],
  telemetry: [],
  gateway: ['*'],
  cli: ['*'],
  testing: ['*'],
}

/** Without doc comments: their examples import the package, and print. */
const codeIn = (path: string): string => read(path).replaceAll(/^ *\/\*\*[^]*?\*\/$/gm, '')

function importsOf(path: string): string[] {
  const found = codeIn(path).matchAll(/(?:^(?:import|export)\s(?:[^'";]*?\sfrom\s+)?|\bimport\()['"]([^'"]+)['"]/gm)
  return Array.from(found, (match) => match[1]!)
}

const folderOf = (path: string): string => (dirname(path) === 'src' ? 'src' : path.split('/')[1]!)

describe('import arrows', () => {
  test.each(sources)('%s imports only what its folder may', (path) => {
    const folder = folderOf(path)
    if (folder === 'src') return
    expect(Object.keys(arrows), `src/${folder} is not a folder of the design`).toContain(folder)
    const allowed = arrows[folder]!
    for (const specifier of importsOf(path).filter((each) => each.startsWith('.'))) {
      const target = folderOf(relative(root, join(root, dirname(path), specifier)))
      const fine = target === folder || target === 'core' || allowed.includes('*') || allowed.includes(target)
      expect(fine, `${path} imports ${specifier}, and src/${folder} may not import src/${target}`).toBe(true)
    }
  })

  test.each(sources.filter((path) => ['core', 'clients', 'stores'].includes(folderOf(path))))(
    '%s has no dependency',
    (path) => {
      const outside = importsOf(path).filter((each) => !each.startsWith('.') && !each.startsWith('node:'))
      expect(outside).toEqual([])
    },
  )
})

describe('what has one home', () => {
  const homes: readonly [pattern: RegExp, what: string, home: (path: string) => boolean][] = [
    [/\bDate\.now\(|\bnew Date\(\)/, 'the wall clock', (path) => path === 'src/core/clock.ts'],
    [/\bperformance\.now\(/, 'the monotonic clock', (path) => path === 'src/core/clock.ts'],
    [/\bMath\.random\(|\brandomUUID\(|\bgetRandomValues\(/, 'randomness', (path) => path === 'src/core/clock.ts'],
    // The time-out of a socket is the system's, and no timer of ours.
    [/(?<!socket\.)\bset(Timeout|Interval)\(/, 'timers', (path) => path === 'src/core/clock.ts'],
    [/\bconsole\./, 'the console', (path) => folderOf(path) === 'cli'],
    [/\bprocess\.(env|exit|argv)\b/, 'the process', (path) => folderOf(path) === 'cli'],
  ]
  test.each(sources)('%s uses clocks, randomness, timers and the console only where they live', (path) => {
    const text = codeIn(path)
    for (const [pattern, what, home] of homes) {
      expect(pattern.test(text) && !home(path), `${path} uses ${what}`).toBe(false)
    }
  })
})

describe('files', () => {
  test.each(sources)('%s opens with what it is', (path) => {
    expect(read(path).replace(/^#!.*\n/, '')).toMatch(/^\/\/ \S/)
  })

  test('no folder or file is a corner where things are dumped', () => {
    expect(everyFile.filter((path) => /(^|\/)(utils?|helpers?|common|misc|types)(\/|\.ts$)/.test(path))).toEqual([])
  })

  test('no test is switched off or run alone', () => {
    const off = /\b(test|it|describe)\.(only|todo)\b|\b(xit|xtest|fit)\(/
    expect(everyFile.filter((path) => path !== 'test/tidy.test.ts' && off.test(read(path)))).toEqual([])
  })

  test('no enum, no any, no ignored type error', () => {
    const banned = /^\s*(export )?(const )?enum \w|\bas any\b|: any\b|@ts-(ignore|nocheck|expect-error)/m
    expect(everyFile.filter((path) => path !== 'test/tidy.test.ts' && banned.test(read(path)))).toEqual([])
  })

  test('nothing names a machine, and the project stands alone', () => {
    const tracked = [...everyFile, ...files('*.{md,json,yaml,ts}'), ...files('docs/*.md'), '.ci/run']
    const machine = /['"`\s(=](\/home|\/root|\/work|\/farm)\/|\.\.\/shared\b|registry\.npmjs|deb\.debian\.org/
    const bad = tracked.filter(
      (path) => path !== 'test/tidy.test.ts' && path !== 'package-lock.json' && machine.test(read(path)),
    )
    expect(bad).toEqual([])
  })
})

describe('what belongs together', () => {
  const subpaths = Object.entries(manifest.exports).flatMap(([name, target]) =>
    typeof target === 'string'
      ? []
      : [{ name, source: target.default.replace('./dist/', 'src/').replace(/\.js$/, '.ts') }],
  )

  test.each(subpaths)('$name points at a source that exists', ({ source }) => {
    expect(existsSync(join(root, source))).toBe(true)
  })

  test.each(subpaths)('$name has an example', ({ name }) => {
    const specifier = name === '.' ? 'onceonly' : `onceonly/${name.slice(2)}`
    const users = [...files('examples/**/*.ts'), ...files('docs/*.md'), 'README.md'].filter((path) =>
      read(path).includes(`'${specifier}'`),
    )
    expect(users, `no example imports '${specifier}'`).not.toEqual([])
  })

  test.each(subpaths.filter(({ source }) => source.startsWith('src/stores/')))(
    '$name keeps the store contract',
    ({ source }) => {
      expect(read(source.replace(/\.ts$/, '/contract.test.ts'))).toContain('storeContract(')
    },
  )

  test('every error code has its entry and its cure in docs/errors.md, and no other has one', () => {
    const documented = Array.from(read('docs/errors.md').matchAll(/^## `([A-Z_]+)`$/gm), (match) => match[1])
    expect(new Set(documented)).toEqual(new Set(Object.keys(errorCodes)))
  })

  test('every invariant of ARCHITECTURE.md names a test that exists', () => {
    const named = Array.from(
      read('ARCHITECTURE.md').matchAll(/^\| I\d+ \|.*\| `([^`]+)` — "([^"]+)" \|$/gm),
      ([, file, name]) => ({ file: file!, name: name! }),
    )
    expect(named.length).toBeGreaterThanOrEqual(10)
    for (const { file, name } of named) expect(read(file), `${file} has no test "${name}"`).toContain(name)
  })
})
