// The program as its users meet it: its options and their mistakes, its file, its admin port, the example, and what docs/gateway.md says.
import { execFile, spawn } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import pg from 'pg'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { gatewayOptionRows, withBlock } from '../../scripts/docs.ts'
import { commandOptions } from '../../src/cli/gateway.ts'
import { gatewayProblems } from '../../src/gateway/proxy.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import { freePort } from '../servers/free-port.ts'
import { needs, needsTool } from '../servers/needs.ts'
import { startPostgres } from '../servers/postgres.ts'
import { startRedis } from '../servers/redis.ts'
import { pollUntil } from '../servers/poll.ts'
import { gatewayArguments, openPlace, type Place } from './programs.ts'

const root = join(import.meta.dirname, '..', '..')
const docs = readFileSync(join(root, 'docs', 'gateway.md'), 'utf8')
let place: Place
beforeEach(() => void (place = openPlace()))
afterEach(() => place.close())

async function run(
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
): Promise<{ code: number; stdout: string; stderr: string }> {
  const program = join(root, 'src', 'cli', 'main.ts')
  // As a person starts it, also when npx has started these tests: the program suggests commands as it was started.
  const environment = { ...process.env, npm_command: undefined, ...env }
  const ran = promisify(execFile)(process.execPath, [program, 'gateway', ...args], { env: environment })
  return ran.then(
    ({ stdout, stderr }) => ({ code: 0, stdout, stderr }),
    (error: { code: number; stdout: string; stderr: string }) => error,
  )
}

describe('the command line', () => {
  test('--help names every option', async () => {
    const { code, stdout } = await run(['--help'])
    expect(code).toBe(0)
    for (const name of Object.keys(commandOptions)) expect(stdout).toContain(`--${name}`)
  })

  test.each<[string, string[], string]>([
    ['no upstream', ['--tenant', 'shared'], '--upstream http://127.0.0.1:3000'],
    ['nobody whose keys they are', ['--upstream', 'http://127.0.0.1:1', '--store', 'memory:'], '--tenant-header'],
    [
      'both',
      ['--upstream', 'http://127.0.0.1:1', '--store', 'memory:', '--tenant', 'shared', '--tenant-header', 'X-A'],
      'got both',
    ],
    ['a misspelt option', ['--upstrem', 'http://127.0.0.1:1'], 'did you mean "--upstream"?'],
    ['a lease without a unit', ['--lease', '30'], 'expected --lease to be a duration'],
    [
      'an upstream with a path',
      ['--upstream', 'http://127.0.0.1:1/a', '--store', 'memory:', '--tenant', 'shared'],
      'without user, path and query',
    ],
    ['a file that is not there', ['--config', '/nowhere/gateway.json'], 'cannot be read as JSON'],
    [
      'GET',
      ['--upstream', 'http://127.0.0.1:1', '--store', 'memory:', '--tenant', 'shared', '--methods', 'GET'],
      'without GET',
    ],
    [
      'a store of no kind',
      ['--upstream', 'http://127.0.0.1:1', '--store', 'oracle:x', '--tenant', 'shared'],
      'expected a store to be',
    ],
  ])('%s: exit 2, and what to do', async (_name, args, message) => {
    const { code, stderr } = await run(args)
    expect(stderr).toContain(message)
    expect(code).toBe(2)
  })

  test('a store that cannot be reached ends it with 1 before it listens', async () => {
    const store = `postgres://127.0.0.1:${await freePort()}/none`
    const { code, stdout, stderr } = await run(await gatewayArguments('http://127.0.0.1:1', store))
    expect([code, stdout.includes('listening')]).toEqual([1, false])
    expect(stderr).toMatch(/ECONNREFUSED|unavailable|reached/i)
  })

  test('an address that is taken ends it with 1', async () => {
    const service = await place.startService()
    const { code, stderr } = await run([
      '--upstream',
      service,
      '--store',
      'memory:',
      '--tenant',
      'shared',
      '--listen',
      new URL(service).host,
    ])
    expect([code, stderr]).toEqual([
      1,
      `onceonly: cannot listen on ${new URL(service).host}: another program has it. End that one, or give another port ` +
        '(0 is any free one) (EADDRINUSE).\n',
    ])
  })
})

needs('postgres').describe('a database without tables', () => {
  test('ends it with 1 and the command that makes them, and --migrate makes them', async () => {
    await using server = await startPostgres()
    const args = await gatewayArguments('http://127.0.0.1:1', server.url)
    const { code, stdout, stderr } = await run(args)
    const shown = server.url.replace(/\/\/[^/]*@/, '//')
    expect([code, stdout.includes('listening')]).toEqual([1, false])
    expect(stderr).toContain(`Run: onceonly migrate --store ${shown}, or start the gateway with --migrate`)
    expect(stderr).not.toContain('await store.migrate()')
    // A store that the file names is that one, whatever the environment says.
    const file = join(place.folder, 'gateway.json')
    writeFileSync(file, JSON.stringify({ upstream: 'http://127.0.0.1:1', store: server.url, tenant: 'shared' }))
    const fromFile = await run(['--config', file], { ONCEONLY_STORE: 'sqlite:another.db' })
    expect(fromFile.stderr).toContain(`Run: onceonly migrate --store ${shown}, or`)
    const gateway = await place.startGateway([...args, '--migrate'])
    gateway.signal('SIGTERM')
    expect(await gateway.ended).toBe(0)
    const again = await place.startGateway(args)
    again.signal('SIGTERM')
    expect(await again.ended).toBe(0)
  })

  test('a user who may look and not write ends it with 1', async () => {
    await using server = await startPostgres()
    const pool = new pg.Pool({ connectionString: server.url })
    try {
      await postgresStore({ pool }).migrate()
      await pool.query('create role reader login; grant select on all tables in schema public to reader')
    } finally {
      await pool.end()
    }
    const asReader = Object.assign(new URL(server.url), { username: 'reader' }).href
    const { code, stdout, stderr } = await run(await gatewayArguments('http://127.0.0.1:1', asReader))
    expect([code, stdout.includes('listening')]).toEqual([1, false])
    expect(stderr).toContain('Correct the user, the password, the database or the rights')
  })
})

needs('redis', { ours: true }).describe('a Redis that is not fit', () => {
  test('ends it with 1 and the cure, before it listens', async () => {
    await using bare = await startRedis({ config: { appendonly: 'no' } })
    await using locked = await startRedis({ config: { appendonly: 'yes', requirepass: 'right' } })
    for (const [store, cure] of [
      [bare.url, 'CONFIG SET appendonly yes'],
      [locked.url.replace('//', '//:wrong@'), 'WRONGPASS'],
    ] as const) {
      const { code, stdout, stderr } = await run(await gatewayArguments('http://127.0.0.1:1', store))
      expect([code, stdout.includes('listening')]).toEqual([1, false])
      expect(stderr).toContain(cure)
    }
  })
})

test('--wait 0 answers a duplicate at once', async () => {
  const service = await place.startService()
  const gateway = await place.startGateway(await gatewayArguments(service, 'memory:', ['--wait', '0']))
  const rules = await fetch(`${gateway.url}/.well-known/idempotency`, { headers: { accept: 'application/json' } })
  expect(await rules.json()).toMatchObject({ waitMs: 0 })
  gateway.signal('SIGTERM')
  expect(await gateway.ended).toBe(0)
})

test('ONCEONLY_STORE is the store where nothing else names one, and is not printed with its password', async () => {
  const program = join(root, 'src', 'cli', 'main.ts')
  const args = [program, 'gateway', '--upstream', 'http://127.0.0.1:1', '--tenant', 'shared', '--listen', '127.0.0.1:0']
  const env = { ...process.env, ONCEONLY_STORE: `postgres://app:hunter2@127.0.0.1:${await freePort()}/none` }
  const ran = promisify(execFile)(process.execPath, args, { env, cwd: place.folder })
  const { code, stdout, stderr } = await ran.then(
    () => ({ code: 0, stdout: '', stderr: '' }),
    (error: { code: number; stdout: string; stderr: string }) => error,
  )
  expect([code, stderr.includes('STORE_UNAVAILABLE')]).toEqual([1, true])
  expect(stdout + stderr).not.toContain('hunter2')
})

test('a token file that is empty is refused, and not taken for none', async () => {
  const file = join(place.folder, 'token')
  writeFileSync(file, '\n')
  const args = await gatewayArguments('http://127.0.0.1:1', 'memory:', ['--admin', '0', '--admin-token-file', file])
  const { code, stderr } = await run(args)
  expect([code, /expected token to be/.test(stderr)]).toEqual([2, true])
})

test('a file that is no JSON is told where, and nothing of it is printed', async () => {
  const file = join(place.folder, 'broken.json')
  writeFileSync(file, '{"store": postgres://app:hunter2@h/db}')
  const { code, stderr } = await run(['--config', file])
  expect([code, stderr.includes('it is no JSON, ')]).toEqual([2, true])
  expect(stderr).not.toMatch(/hunter2|postgres/)
})

test('a log that nobody reads any more does not end it', async () => {
  const service = await place.startService()
  const gateway = await place.startGateway(await gatewayArguments(service, 'memory:'))
  gateway.child.stdout!.destroy()
  for (const key of ['a', 'b', 'c']) {
    const headers = { 'idempotency-key': key }
    const { status } = await fetch(`${gateway.url}/charges`, { method: 'POST', headers, body: '{}' })
    expect(status).toBeLessThan(300)
  }
  gateway.signal('SIGTERM')
  expect(await gateway.ended).toBe(0)
})

test('the file of docs/gateway.md works as it stands there', async () => {
  const [, block] = /```json\n(\{\n {2}"upstream"[^]*?)```/.exec(docs)!
  const file = join(place.folder, 'gateway.json')
  writeFileSync(file, block!)
  const service = await place.startService()
  const gateway = await place.startGateway([
    '--config',
    file,
    '--upstream',
    service,
    '--store',
    'memory:',
    '--listen',
    '127.0.0.1:0',
  ])
  const ask = (method: string, path: string, headers: Record<string, string>): Promise<Response> =>
    fetch(gateway.url + path, { method, headers, body: '{}' })
  expect((await ask('PUT', '/transfers/1', { 'x-account': 'a' })).status).toBe(400)
  const put = await ask('PUT', '/transfers/1', { 'x-account': 'a', 'idempotency-key': 'k' })
  expect([put.status, put.headers.get('idempotency-window')]).toEqual([201, String(7 * 86_400)])
  expect(
    (await ask('POST', '/events/a/b', { 'x-account': 'a', 'idempotency-key': 'k' })).headers.get('idempotency-window'),
  ).toBeNull()
  expect((await ask('POST', '/other', { 'idempotency-key': 'k' })).status).toBe(400)
})

test('metrics, health and readiness are on the admin port, and only there', async () => {
  const service = await place.startService()
  const args = await gatewayArguments(service, 'memory:', ['--admin', `127.0.0.1:${await freePort()}`])
  const gateway = await place.startGateway(args)
  for (const _ of [1, 2]) {
    await fetch(`${gateway.url}/pay`, { method: 'POST', body: '{}', headers: { 'idempotency-key': 'secret-key' } })
  }
  await pollUntil('two records', () => gateway.lines.filter(({ event }) => event === 'request').length === 2)
  const metrics = await (await fetch(`${gateway.admin}/metrics`)).text()
  expect(metrics).toContain('onceonly_gateway_requests_total{result="executed",status="2xx"} 1\n')
  expect(metrics).toContain('onceonly_gateway_requests_total{result="replayed",status="2xx"} 1\n')
  expect(metrics).toContain('onceonly_replays_total 1\n')
  expect(metrics).toMatch(/^onceonly_gateway_in_flight 0$/m)
  expect([(await fetch(`${gateway.admin}/healthz`)).status, (await fetch(`${gateway.admin}/readyz`)).status]).toEqual([
    200, 200,
  ])
  // On the public port they are the service's own.
  expect(await (await fetch(`${gateway.url}/metrics`)).json()).toMatchObject({ key: 'undefined' })
  expect(JSON.stringify(gateway.lines) + metrics).not.toContain('secret-key')
  gateway.signal('SIGTERM')
  expect(await gateway.ended).toBe(0)
})

test('every answer of its own is in docs/gateway.md, and no other is', () => {
  const table = docs.slice(docs.indexOf('## Answers of its own'))
  const documented = Array.from(
    table.matchAll(/^\| (\d+) \| `([\w-]+)` \| (\w+) \|/gm),
    ([, status, code, executed]) => `${status} ${code} ${executed}`,
  )
  const ours = Object.values(gatewayProblems).map(({ status, code, executed }) => `${status} ${code} ${executed}`)
  expect(new Set(documented)).toEqual(new Set(ours))
})

test('every option is in docs/gateway.md as its table has it', () => {
  expect(withBlock(docs, 'options', gatewayOptionRows())).toBe(docs)
  for (const name of Object.keys(commandOptions)) expect(docs, name).toContain(`\`--${name}`)
})

const python = await promisify(execFile)('python3', ['--version']).then(
  () => undefined,
  () => ({ reason: 'python3 does not run', cure: 'apt-get install python3' }),
)

needsTool('python3', python).test('examples/any-language: a service in Python is asked once', async () => {
  const ledger = join(place.folder, 'ledger')
  const child = spawn('python3', [join(root, 'examples', 'any-language', 'payments.py'), '0', ledger], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  try {
    const url = await new Promise<string>((resolve, reject) => {
      child.stdout.once('data', (chunk: Buffer) => resolve(chunk.toString().trim()))
      child.once('exit', () => reject(new Error('the service ended before it listened')))
    })
    const gateway = await place.startGateway(await gatewayArguments(url, 'memory:'))
    const pay = (body: string): Promise<Response> =>
      fetch(`${gateway.url}/payments`, { method: 'POST', body, headers: { 'idempotency-key': 'order-42' } })
    // What never began leaves the key to a better request.
    expect((await pay('{}')).status).toBe(400)
    const answers = [await pay('{"cents":500}'), await pay('{"cents":500}')]
    expect(answers.map(({ status, headers }) => [status, headers.get('idempotent-replayed')])).toEqual([
      [201, null],
      [201, 'true'],
    ])
    expect(await Promise.all(answers.map((each) => each.json()))).toEqual([{ charged: 500 }, { charged: 500 }])
    expect(readFileSync(ledger, 'utf8')).toBe('order-42 attempt 1: 500 cents\n')
  } finally {
    const exited = new Promise((resolve) => child.once('exit', resolve))
    child.kill()
    await exited
  }
})
