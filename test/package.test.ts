// The package as a user has it: built, packed, imported by its subpaths, its program run, its examples and README as written.

import { execFile, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { startDynamodb } from './servers/dynamodb.ts'
import { startKafka } from './servers/kafka.ts'
import { needs, needsTool } from './servers/needs.ts'
import { startPostgres } from './servers/postgres.ts'
import type { RunningPostgres } from './servers/postgres.ts'

const root = join(import.meta.dirname, '..')
const run = promisify(execFile)
const readme = readFileSync(join(root, 'README.md'), 'utf8')
let folder: string

/** The system's own Node, where it is older than what the package needs. The repository brings a newer one in node_modules/.bin. */
function findOldNode(): string | undefined {
  return ['/usr/bin/node', '/usr/local/bin/node', '/opt/homebrew/bin/node'].find((path) => {
    const asked = spawnSync(path, ['--version'], { encoding: 'utf8' })
    return asked.status === 0 && Number(/^v(\d+)/.exec(asked.stdout)?.[1]) < 22
  })
}
const oldNodePath = findOldNode()
const oldNode = needsTool(
  'node-before-22',
  oldNodePath === undefined
    ? {
        reason: 'no Node older than 22 is installed on this system',
        cure: 'install Node 20 as /usr/bin/node',
        optional: 'a newer system is no fault',
      }
    : undefined,
)

beforeAll(async () => {
  await run(process.execPath, [join(root, 'scripts', 'build.ts')])
  // A user's folder: the package and the drivers are in node_modules, and nothing else is near.
  folder = mkdtempSync(join(tmpdir(), 'onceonly-package-'))
  mkdirSync(join(folder, 'node_modules'))
  writeFileSync(join(folder, 'package.json'), '{"type":"module"}')
  for (const name of ['pg', 'better-sqlite3', 'express'])
    symlinkSync(join(root, 'node_modules', name), join(folder, 'node_modules', name))
  symlinkSync(root, join(folder, 'node_modules', 'onceonly'))
})

afterAll(() => rmSync(folder, { recursive: true, force: true }))

async function node(args: readonly string[], env: Record<string, string> = {}): Promise<string> {
  const { stdout } = await run(process.execPath, args, { cwd: folder, env: { ...process.env, ...env } })
  return stdout.trim()
}

async function snippet(name: string, text: string, env: Record<string, string> = {}): Promise<string> {
  const file = join(folder, `${name}.ts`)
  writeFileSync(file, text)
  return node([file], env)
}

const blocksOf = (text: string): string[] => Array.from(text.matchAll(/```ts\n([\s\S]*?)```/g), (match) => match[1]!)
/** The code blocks of the README, in order. */
const blocks = blocksOf(readme)
const storeBlocks = blocksOf(readFileSync(join(root, 'docs', 'stores.md'), 'utf8'))

async function packedPaths(): Promise<readonly string[]> {
  const { stdout } = await run('npm', ['pack', '--dry-run', '--json', '--ignore-scripts'], { cwd: root })
  const packed = JSON.parse(stdout) as [{ files: { path: string }[] }] | Record<string, { files: { path: string }[] }>
  return Object.values(packed)[0]!.files.map(({ path }) => path)
}

describe('the package', () => {
  test('ships what it needs and nothing else', async () => {
    const paths = await packedPaths()
    expect(paths).toContain('dist/index.js')
    expect(paths).toContain('dist/index.d.ts')
    expect(paths).toContain('README.md')
    expect(paths).toContain('LICENSE')
    expect(paths.filter((path) => !/^(dist|docs)\/|^[A-Z]+(\.md)?$|^package\.json$/.test(path))).toEqual([])
    expect(paths.filter((path) => /\.test\./.test(path))).toEqual([])
  })

  test('no source map points at a file that is not shipped', () => {
    const built = readdirSync(join(root, 'dist'), { recursive: true, encoding: 'utf8' })
    const maps = built.filter((path) => path.endsWith('.map'))
    const scripts = built.filter((path) => path.endsWith('.js'))
    expect(scripts.length).toBeGreaterThan(100)
    for (const path of maps) {
      const { sources } = JSON.parse(readFileSync(join(root, 'dist', path), 'utf8')) as { sources: string[] }
      expect(
        sources.filter((source) => !existsSync(join(root, 'dist', path, '..', source)) || /\/src\//.test(source)),
      ).toEqual([])
    }
    for (const path of scripts) {
      const [, map] = /\/\/# sourceMappingURL=(\S+)/.exec(readFileSync(join(root, 'dist', path), 'utf8')) ?? []
      if (map !== undefined) expect(built).toContain(join(path, '..', map))
    }
  })

  test('every relative link in a page that is shipped leads to a file that is shipped', async () => {
    const paths = await packedPaths()
    const dead = paths
      .filter((path) => path.endsWith('.md'))
      .flatMap((path) =>
        Array.from(readFileSync(join(root, path), 'utf8').matchAll(/\]\((?!https?:|#)([^)#\s]+)/g), ([, target]) =>
          join(path, '..', target!),
        )
          .filter((target) => !paths.includes(target))
          .map((target) => `${path} -> ${target}`),
      )
    expect(dead).toEqual([])
  })

  oldNode.test(
    'on an older Node, library and program name both versions before anything is claimed or listens',
    async () => {
      const refused = async (args: readonly string[]): Promise<string> => {
        const ended = await run(oldNodePath!, args, { cwd: folder }).then(
          ({ stdout }) => stdout,
          (error: { stderr: string }) => error.stderr,
        )
        return ended.replaceAll(/\s+/g, ' ')
      }
      const words = 'onceonly needs Node 22.13 or later, and this is Node '
      const code = (store: string): string => `import { createOnce } from 'onceonly'
      import { memoryStore } from 'onceonly/memory'
      import { sqliteStore } from 'onceonly/sqlite'
      try { const store = ${store}
        await createOnce({ store, scope: 's' }).run('k', () => 1)
      } catch (error) { console.log(error.code, error.message) }`
      for (const store of ['memoryStore()', "sqliteStore({ path: 'old-node.db' })"]) {
        writeFileSync(join(folder, 'old-node.mjs'), code(store))
        expect(await refused(['old-node.mjs'])).toContain(`UNSUPPORTED ${words}`)
      }
      expect(readdirSync(folder)).not.toContain('old-node.db')
      const program = join(root, 'dist', 'cli', 'main.js')
      expect(await refused([program, 'gateway', '--upstream', 'http://127.0.0.1:1', '--tenant', 'shared'])).toContain(
        `UNSUPPORTED: ${words}`,
      )
      expect(await refused([program, 'demo'])).toContain(words)
    },
  )

  test('the packed file can be installed in an empty project, as the README says', async () => {
    const project = mkdtempSync(join(tmpdir(), 'onceonly-installed-'))
    try {
      const { stdout } = await run('npm', ['pack', '--ignore-scripts', '--pack-destination', project], { cwd: root })
      const file = stdout.trim().split('\n').at(-1)!
      expect(readme).toContain(`npm install ../onceonly/${file}`)
      writeFileSync(join(project, 'package.json'), '{"type":"module","private":true}')
      await run('npm', ['install', '--prefer-offline', '--no-audit', '--no-fund', join(project, file)], {
        cwd: project,
      })
      const code = `import { createOnce } from 'onceonly'; import { memoryStore } from 'onceonly/memory'
        const once = createOnce({ store: memoryStore(), scope: 's' })
        for (const _ of [1, 2]) console.log((await once.run('k', () => 1)).replayed)
        await once.close()`
      writeFileSync(join(project, 'main.js'), code)
      const shown = await run(process.execPath, ['main.js'], { cwd: project })
      expect(shown.stdout).toBe('false\ntrue\n')
      const help = await run(join(project, 'node_modules/.bin/onceonly'), ['--help'], { cwd: project })
      expect(help.stdout).toContain('Usage: onceonly <command>')
    } finally {
      rmSync(project, { recursive: true })
    }
  })

  test('every subpath can be imported, and none starts anything', async () => {
    const { exports } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
      exports: Record<string, unknown>
    }
    const names = Object.keys(exports).filter((name) => name !== './package.json')
    const code = names
      .map((name) => `console.log(Object.keys(await import('onceonly${name.slice(1)}')).length > 0)`)
      .join('\n')
    expect((await snippet('subpaths', code)).split('\n')).toEqual(names.map(() => 'true'))
  })
})

const demoFolders = (): string[] => readdirSync(folder).filter((name) => name.startsWith('onceonly-demo-'))

/** The line as printed; curl itself need not be there. */
function likeCurl(line: string): Promise<Response> {
  const [, url] = /^ *curl -i (\S+)/.exec(line)!
  const headers = Array.from(line.matchAll(/-H '([^:]+): ([^']+)'/g), ([, name, value]) => [name!, value!])
  const [, body] = /-d '([^']+)'/.exec(line)!
  return fetch(url!, { method: 'POST', headers: headers as [string, string][], body: body! })
}

describe('the program', () => {
  const program = join(root, 'dist', 'cli', 'main.js')

  test('npm start: the two curl lines that it prints charge once, and Ctrl-C leaves nothing behind', async () => {
    const demo = spawn(process.execPath, [program, 'demo'], {
      cwd: folder,
      stdio: ['ignore', 'pipe', 'inherit'],
      env: { ...process.env, TMPDIR: folder },
    })
    const ended = once(demo, 'exit')
    let shown = ''
    for await (const chunk of demo.stdout.setEncoding('utf8')) {
      shown += chunk
      if (shown.includes('Ctrl-C')) break
    }
    expect(demoFolders()).toHaveLength(1)
    const lines = shown.match(/^ *curl .*$/gm)!
    expect(lines).toHaveLength(2)
    const [first, second] = [await likeCurl(lines[0]!), await likeCurl(lines[1]!)]
    expect([first.status, first.headers.get('idempotent-replayed')]).toEqual([201, null])
    expect([second.status, second.headers.get('idempotent-replayed')]).toEqual([201, 'true'])
    expect(await second.text()).toBe(await first.text())
    const [page, dashboard] = shown.match(/http:\/\/127\.0\.0\.1:\d+/g)!
    for (const url of [page!, dashboard!]) expect(await (await fetch(url)).text()).toContain('<title>onceonly')
    expect(await (await fetch(`${page}/api/ledger?order=order-1`)).json()).toHaveLength(1)
    demo.kill('SIGINT')
    expect(await ended).toEqual([0, null])
    expect(demoFolders()).toEqual([])
    await expect(fetch(page!)).rejects.toThrow()
  })

  test('--help helps, and a wrong call is exit code 2', async () => {
    expect(await node([program, '--help'])).toContain('Usage: onceonly <command>')
    expect(await node([program, 'demo', '--help'])).toContain('Usage: onceonly demo')
    await expect(node([program])).rejects.toMatchObject({ code: 2 })
    await expect(node([program, 'dance'])).rejects.toMatchObject({
      code: 2,
      stderr: expect.stringContaining('unknown command "dance"'),
    })
    await expect(node([program, 'demo', '--dance'])).rejects.toMatchObject({ code: 2 })
  })
})

describe('examples', () => {
  const example = (name: string): string => join(root, 'examples', name)

  test('quickstart: two asks, one charge', async () => {
    const shown = await node([example('quickstart.ts'), join(folder, 'quickstart.db')])
    expect(JSON.parse(shown)).toEqual({ charges: 1, replayed: [false, true], same: true })
  })

  test('killed-process: killed between effect and record, run again: one effect', async () => {
    const path = join(folder, 'killed.db')
    await expect(node([example('killed-process.ts'), path, 'kill'])).rejects.toMatchObject({ signal: 'SIGKILL' })
    expect(JSON.parse(await node([example('killed-process.ts'), path]))).toEqual({ charges: 1, replayed: false })
    expect(JSON.parse(await node([example('killed-process.ts'), path]))).toEqual({ charges: 1, replayed: true })
  })

  test('own-store: the contract runs under node:test', async () => {
    const shown = await node(['--test', '--test-reporter=tap', example('own-store.ts')])
    expect(shown).toMatch(/^# fail 0$/m)
    expect(Number(/^# pass (\d+)$/m.exec(shown)![1])).toBeGreaterThan(40)
  })

  test('webhooks: orders are told of, an endpoint that fails at first is tried again, and no id changes', async () => {
    const shown = await node([example('webhooks/sender.ts')])
    expect(JSON.parse(shown)).toEqual({ orders: 5, attempts: 10, events: 5, state: 'delivered' })
  })

  test('the README begins with code that prints what it says: the second call is a replay', async () => {
    const said = Array.from(blocks[0]!.matchAll(/^console\.log\(.*\) \/\/ (\{.*?\})(?::.*)?$/gm), ([, value]) => value)
    expect(said).toHaveLength(2)
    expect((await snippet('readme-first', blocks[0]!)).split('\n')).toEqual(said)
  })
})

test('docs/stores.md: SQLite runs as written', async () => {
  const block = storeBlocks.find((text) => text.includes("'better-sqlite3'"))!
  const tail = `console.log(pay().replayed, (await once.run('order-1', () => 'ran')).value)\nawait once.close()`
  expect(await snippet('stores-sqlite', `${block}\n${tail}`)).toBe('true ran')
})

test("the README's Express app replays as written", async () => {
  const block = blocks.find((text) => text.includes("'onceonly/express'"))!
  const tail = `const server = app.listen(0, '127.0.0.1', async () => {
    const url = 'http://127.0.0.1:' + (server.address() as { port: number }).port + '/orders'
    const headers = { authorization: 'Bearer secret-of-acme', 'content-type': 'application/json', 'idempotency-key': 'k-1' }
    const ask = (cents: number) => fetch(url, { method: 'POST', headers, body: JSON.stringify({ cents }) })
    const [first, second, other] = [await ask(500), await ask(500), await ask(501)]
    console.log((await first.text()) === (await second.text()), second.headers.get('idempotent-replayed'), other.status)
    server.close()
  })`
  expect(await snippet('readme-express', `${block}\n${tail}`)).toBe('true true 422')
})

needs('dynamodb').describe('examples on DynamoDB', () => {
  test('dynamodb-transaction: twenty-one asks, one transfer, and a refused one moves nothing', async () => {
    await using server = await startDynamodb()
    const shown = await node([join(root, 'examples', 'dynamodb-transaction.ts')], {
      DYNAMODB_URL: server.url,
      AWS_ACCESS_KEY_ID: 'onceonly',
      AWS_SECRET_ACCESS_KEY: 'onceonly',
    })
    expect(JSON.parse(shown)).toEqual({ asked: 21, cents: [400, 600], refused: 'COMMIT_REFUSED' })
  })
})

needs('postgres').describe('examples on PostgreSQL', () => {
  let server: RunningPostgres
  beforeAll(async () => void (server = await startPostgres()))
  afterAll(() => server.stop())

  test('postgres-transaction: twenty-two asks, one order, and a declined one leaves no row', async () => {
    const shown = await node([join(root, 'examples', 'postgres-transaction.ts')], {
      DATABASE_URL: await server.createDatabase(),
    })
    expect(JSON.parse(shown)).toEqual({ orders: 1, asked: 22, declined: true })
  })

  test('docs/stores.md: PostgreSQL runs as written', async () => {
    const block = storeBlocks.find((text) => text.includes("'onceonly/postgres'"))!
    const tail = `console.log((await once.run('order-1', () => 'ran')).value)\nawait pool.end()`
    const url = await server.createDatabase()
    expect(await snippet('stores-postgres', `${block}\n${tail}`, { DATABASE_URL: url })).toBe('ran')
  })

  test("the README's transaction runs as written", async () => {
    const block = blocks.find((text) => text.includes('postgresStore'))!
    const setUp = `await pool.query('create table orders (id text, cents integer)')\n`
    const text = block.replace('await store.migrate()\n', `await store.migrate()\n${setUp}`)
    const tail = `console.log((await pool.query('select * from orders')).rows.length)\nawait pool.end()`
    expect(
      await snippet('readme-transaction', `${text}\n${tail}`, { DATABASE_URL: await server.createDatabase() }),
    ).toBe('1')
  })
})

test('webhooks: every event is sent three times, the receiver is killed, and each payment is booked once', async () => {
  const shown = await node([join(root, 'examples', 'webhooks', 'deliveries.ts')])
  expect(JSON.parse(shown)).toEqual({ events: 12, kills: 2, accepted: 36, payments: 12, orders: 12 })
})

needs('kafka', { ours: true }).describe('examples on Kafka and PostgreSQL', () => {
  needs('postgres').test(
    'order-events: relay and mailer are killed, and there is one mail per order, in order',
    async () => {
      await using kafka = await startKafka()
      await using postgres = await startPostgres()
      const shown = await node([join(root, 'examples', 'order-events', 'story.ts')], {
        DATABASE_URL: await postgres.createDatabase(),
        KAFKA_BROKER: new URL(kafka.url).host,
        KAFKAJS_NO_PARTITIONER_WARNING: '1',
      })
      expect(JSON.parse(shown)).toEqual({ orders: 60, kills: 6, mails: 60, inOrder: true })
    },
  )
})
