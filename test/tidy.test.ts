// How the project looks, as a test: what it forbids cannot creep in. The length of functions is oxlint's to check.

import { basename, dirname, join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { errorCodes } from '../src/core/errors.ts'
import { storeContractCases } from '../src/testing/store-contract.ts'
import {
  codeIn,
  commentsOf,
  everyFile,
  exists,
  exportedFunctions,
  files,
  importedFiles,
  importsOf,
  isTidy,
  programs,
  reachedFrom,
  read,
  roomOf,
  sources,
  subpaths,
  withoutText,
} from './tidy/project.ts'

/** Folders of src and the siblings each may import besides core and itself. `*` is every room but cli. */
const arrows: Readonly<Record<string, readonly string[]>> = {
  core: [],
  clients: [],
  stores: ['clients'],
  http: [],
  messages: ['clients'],
  sessions: ['clients'],
  webhooks: ['clients', 'messages', 'http'],
  client: ['clients'],
  writes: ['clients'],
  telemetry: [],
  gateway: ['*'],
  testing: ['*'],
  cli: ['*', 'cli'],
}

/** Files that run by their name: the demo starts them as processes. */
const startedScripts = ['src/cli/demo/service.ts', 'src/cli/demo/messages/relay.ts', 'src/cli/demo/messages/mailer.ts']

/** Files of the user's project that the documents name. */
const usersFiles = ['app/orders/route.ts']

/** Tests whose matter is the inside. A door would have to show it to everybody, and the doors of stores are public. */
const mayLookInside = [
  // Throws foreign bytes at each parser by itself.
  'test/fuzz/',
  // A Redis of our own runs the store's scripts, and knows where each value stands in an entry.
  'test/simulation/world/redis',
  // Puts rows, clocks and scripts of a server into states that no call of the store leaves behind.
  'test/subjects/',
  // Gives the parts of the gateway the clock and the store of the conformance world.
  'test/gateway/conformance-app.ts',
]

/** Where a skip may stand. Each of these prints the reason in the title of the test. */
const skipHomes = ['test/servers/needs.ts', 'src/testing/store-contract.ts', 'test/writes/contract/subject.ts']

describe('import arrows', () => {
  test.each(sources)('%s imports only what its folder may', (path) => {
    const room = roomOf(path)
    if (room === 'src') return
    expect(Object.keys(arrows), `src/${room} is not a folder of the design`).toContain(room)
    const allowed = arrows[room]!
    for (const target of importedFiles(path)) {
      const to = roomOf(target)
      const fine = to === room || to === 'core' || allowed.includes(to) || (allowed.includes('*') && to !== 'cli')
      expect(fine, `${path} imports ${target}, and src/${room} may not import src/${to}`).toBe(true)
    }
  })

  test('no two rooms import each other', () => {
    const pairs = new Set<string>()
    for (const path of sources)
      for (const target of importedFiles(path)) pairs.add(`${roomOf(path)} -> ${roomOf(target)}`)
    const both = [...pairs].filter((pair) => {
      const [from, to] = pair.split(' -> ')
      return from! < to! && pairs.has(`${to} -> ${from}`)
    })
    expect(both).toEqual([])
  })

  // x.ts is the door, x/ is the inside. The rooms themselves (src/core, src/stores, …) are no inside: their files are doors.
  test('a file behind a door is imported only by its door and from inside', () => {
    const behind = everyFile.flatMap((path) =>
      importedFiles(path)
        .filter((target) => target.startsWith('src/') && target.split('/').length > 3)
        .filter((target) => !path.startsWith(`${dirname(target)}/`) && !isDoorOf(path, dirname(target)))
        .filter(() => !mayLookInside.some((room) => path.startsWith(room)))
        .map((target) => `${path} -> ${target}`),
    )
    expect(behind, 'import the door (x.ts), not a file behind it (x/y.ts)').toEqual([])
  })

  test.each(sources.filter((path) => ['core', 'clients', 'stores'].includes(roomOf(path))))(
    '%s has no dependency',
    (path) => {
      const outside = importsOf(path).filter((each) => !each.startsWith('.') && !each.startsWith('node:'))
      expect(outside).toEqual([])
    },
  )
})

describe('what has one home', () => {
  const isClock = (path: string): boolean => /^src\/core\/clock(\.ts|\/)/.test(path)
  const homes: readonly [pattern: RegExp, what: string, home: (path: string) => boolean][] = [
    [/\bDate\.now\(|\bnew Date\(\)/, 'the wall clock', isClock],
    [/\bperformance\.now\(/, 'the monotonic clock', isClock],
    [/\bMath\.random\(|\brandomUUID\(|\bgetRandomValues\(/, 'randomness', isClock],
    // The time-out of a socket is the system's, and no timer of ours.
    [/(?<!socket\.)\bset(Timeout|Interval)\(/, 'timers', isClock],
    [
      /\bfirstMs: \d|\bconst (\w+(Tries|Rounds|Pause|Retry|RetryAfter)|tries|rounds|pause|retry|retryAfter)(Max|Ms)? = \d/,
      'a pause between tries or a count of them',
      (path) => path === 'src/core/backoff.ts' || roomOf(path) === 'testing',
    ],
    [/\bconsole\./, 'the console', (path) => roomOf(path) === 'cli'],
    [/\bprocess\.(env|exit|argv)\b/, 'the process', (path) => roomOf(path) === 'cli'],
  ]
  test.each(sources)('%s uses clocks, randomness, timers, pauses and the console only where they live', (path) => {
    const text = codeIn(path)
    for (const [pattern, what, home] of homes) {
      expect(pattern.test(text) && !home(path), `${path} uses ${what}`).toBe(false)
    }
  })

  test('no exported type name is declared twice', () => {
    const homesOf = new Map<string, string[]>()
    for (const path of sources)
      for (const [, name] of read(path).matchAll(/^export (?:declare )?(?:abstract )?(?:interface|type|class) (\w+)/gm))
        homesOf.set(name!, [...(homesOf.get(name!) ?? []), path])
    const twice = Array.from(homesOf).filter(([, where]) => new Set(where).size > 1)
    expect(twice, 'a name says whose it is: PostgresContext, not Ground').toEqual([])
  })
})

describe('files', () => {
  test.each(sources)('%s opens with what it is', (path) => {
    expect(read(path).replace(/^#!.*\n/, '')).toMatch(/^\/\/ \S/)
  })

  test('no folder or file is a corner where things are dumped', () => {
    expect(everyFile.filter((path) => /(^|\/)(utils?|helpers?|common|misc|types)(\/|\.ts$)/.test(path))).toEqual([])
  })

  test('no x-y.ts lies beside an x.ts: that is x/y.ts', () => {
    const every = new Set(everyFile)
    const beside = everyFile.filter((path) => {
      const name = basename(path).replace(/\.(test\.)?ts$/, '')
      // No part of redis.ts: it is the name of a store.
      if (name === 'redis-postgres') return false
      const words = name.split('-')
      const shorter = words.slice(1).map((_, index) => words.slice(0, index + 1).join('-'))
      return shorter.some((door) => every.has(join(dirname(path), `${door}.ts`)))
    })
    expect(beside, 'move it behind its door: x-y.ts becomes x/y.ts').toEqual([])
  })

  test('no folder of src has more than 20 source files', () => {
    const counts = Map.groupBy(sources, (path) => dirname(path))
    expect([...counts].filter(([, inside]) => inside.length > 20).map(([folder]) => folder)).toEqual([])
  })

  test('every source file is reached from an export, the program, or a script that is started by its name', () => {
    const reached = reachedFrom([...subpaths.map(({ source }) => source), ...programs, ...startedScripts])
    expect(
      sources.filter((path) => !reached.has(path)),
      'nobody who installs the package can reach it: move it to test/, or remove it',
    ).toEqual([])
  })

  test.each(files('src/**/*.{sql,lua}.ts'))('%s holds the text of server code and no decisions of its own', (path) => {
    const code = withoutText(read(path))
    const decisions = code.match(/\b(async|await|if|for|while|switch|throw|try|new|class|let)\b|from 'node:[^']+'/g)
    expect(decisions ?? [], 'a *.sql.ts or *.lua.ts file holds texts').toEqual([])
  })

  test('no test is switched off or run alone, and a skip goes through a helper that prints its reason', () => {
    const off = /\b(test|it|describe)\.(only|todo)\b|\b(xit|xtest|fit)\(/
    const found = everyFile.filter((path) => !isTidy(path) && off.test(read(path)))
    expect(found).toEqual([])
    const skips = /\.(skip|skipIf|runIf)\b\s*[(<`]/
    const skipping = everyFile.filter((path) => !isTidy(path) && !skipHomes.includes(path) && skips.test(read(path)))
    expect(skipping, `use needs or needsTool of ${skipHomes[0]}`).toEqual([])
  })

  test('no enum, no any, no ignored type error', () => {
    const banned = /^\s*(export )?(const )?enum \w|\bas any\b|: any\b|@ts-(ignore|nocheck|expect-error)/m
    expect(everyFile.filter((path) => !isTidy(path) && banned.test(read(path)))).toEqual([])
  })

  test('nothing names a machine, and the project stands alone', () => {
    const tracked = [...everyFile, ...files('*.{md,json,yaml,ts}'), ...files('docs/*.md'), '.ci/run']
    const machine = /['"`\s(=](\/home|\/root|\/work|\/farm)\/|\.\.\/shared\b|registry\.npmjs|deb\.debian\.org/
    const bad = tracked.filter((path) => !isTidy(path) && path !== 'package-lock.json' && machine.test(read(path)))
    expect(bad).toEqual([])
  })
})

describe('what belongs together', () => {
  test.each(subpaths)('$name points at a source that exists', ({ source }) => {
    expect(exists(source)).toBe(true)
  })

  test.each(subpaths)('$name has an example', ({ name }) => {
    const specifier = name === '.' ? 'onceonly' : `onceonly/${name.slice(2)}`
    const users = [...files('examples/**/*.ts'), ...files('docs/*.md'), 'README.md'].filter((path) =>
      read(path).includes(`'${specifier}'`),
    )
    expect(users, `no example imports '${specifier}'`).not.toEqual([])
  })

  test('every exported function of a subpath has a doc comment with an example', () => {
    const silent = subpaths.flatMap(({ name, source }) =>
      exportedFunctions(source)
        .filter(({ comment }) => !comment.includes('@example'))
        .map((each) => `${name} ${each.name}`),
    )
    expect(silent, 'one or two sentences and an @example that compiles, before the function').toEqual([])
  })

  // What stores share is no store.
  const shared = ['src/stores/sql-answers.ts', 'src/stores/failures.ts']
  test.each(sources.filter((path) => /^src\/stores\/[^/]+\.ts$/.test(path) && !shared.includes(path)))(
    '%s keeps the store contract',
    (path) => {
      expect(subpaths.map(({ source }) => source)).toContain(path)
      expect(read(path.replace(/\.ts$/, '/contract.test.ts'))).toContain('storeContract(')
    },
  )

  test('every error code has its entry and its cure in docs/errors.md, and no other has one', () => {
    const documented = Array.from(read('docs/errors.md').matchAll(/^## `([A-Z_]+)`$/gm), (match) => match[1])
    expect(new Set(documented)).toEqual(new Set(Object.keys(errorCodes)))
  })

  test('every problem that can be sent is on the page that docs/errors.md names for it', () => {
    const sent = sources.flatMap((path) => Array.from(read(path).matchAll(/code: '((\w+)-[a-z-]+)'/g)))
    const pages = { idempotency: 'http', gateway: 'gateway', webhook: 'webhooks' }
    expect(new Set(sent.map(([, , room]) => room))).toEqual(new Set(Object.keys(pages)))
    for (const [room, page] of Object.entries(pages)) {
      expect(read('docs/errors.md')).toMatch(new RegExp(`^\\| \`${room}-…\` \\|.*\\[${page}\\.md\\]`, 'm'))
      const documented = new Set(read(`docs/${page}.md`).match(new RegExp(`(?<=\`)${room}-[a-z-]+(?=\`)`, 'g')))
      const missing = sent.filter(([, code, of]) => of === room && !documented.has(code!)).map(([, code]) => code)
      expect(missing, `not in docs/${page}.md`).toEqual([])
    }
  })

  test('every invariant of ARCHITECTURE.md names a test that exists', () => {
    const contractNames = storeContractCases.map((each) => each.name)
    const rows = Array.from(read('ARCHITECTURE.md').matchAll(/^\| I\w+ \|.*$/gm), ([row]) => row)
    expect(rows.length).toBeGreaterThanOrEqual(11)
    for (const row of rows) {
      const [, file, name] = /\| `([^`]+)` — "([^"]+)" \|$/.exec(row) ?? []
      expect(file && name, `no test is named in ${row}`).toBeTruthy()
      const names = file!.startsWith('src/testing/store-contract/') ? contractNames : read(file!)
      expect(names, `${file} has no test "${name}"`).toContain(name)
    }
  })

  test('documents and comments name only files that exist', () => {
    const isPath = /^(?:\.ci\/run|(?:[\w.*{},-]+\/)+[\w.*{},-]+\.(?:ts|js|md|json|pml|yaml|py)|[A-Z]{4,}\.md)$/
    const named = [
      ...[...files('*.md'), ...files('docs/*.md')].map((path) => ({ path, text: read(path) })),
      ...everyFile.filter((path) => !isTidy(path)).map((path) => ({ path, text: commentsOf(path) })),
    ].flatMap(({ path, text }) =>
      Array.from(text.matchAll(/`([^`\s]+)`|(?<![\w./-])((?:[\w-]+\/)*[\w.-]+\.(?:ts|md)|DESIGN)(?![\w-])/g))
        .map(([, quoted, plain]) => (quoted ?? plain)!)
        .filter((name) => name === 'DESIGN' || isPath.test(name))
        .filter((name) => !isThere(name) && !usersFiles.includes(name))
        .map((name) => `${path}: ${name}`),
    )
    expect(named, 'no such file').toEqual([])
  })
})

test('what tidy takes for server text is the text of template literals, and no more', () => {
  const source = ['const a = `if ${b({ c: `for ${d}` })} while` // if', 'if (x) e(`\\`new`) /* try */'].join('\n')
  expect(withoutText(source)).toBe('const a = b({ c: d }) if (x) e() ')
})

/** A path is named in full, or by its end: postgres/statements.ts. */
function isThere(name: string): boolean {
  if (name.includes('*') || name.includes('{')) return files(name).length > 0 || files(`src/**/${name}`).length > 0
  return exists(name) || everyFile.some((path) => path.endsWith(`/${name}`)) || exists(`docs/${name}`)
}

/** The test beside a door belongs to the door. */
function isDoorOf(path: string, folder: string): boolean {
  return path === `${folder}.ts` || path === `${folder}.test.ts`
}
