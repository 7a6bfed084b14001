// The programs of docs/stores.md, one for each store and client, and that of docs/operating.md, run as written: only the
// address of the server is another.

import { execFile } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { startDynamodb } from './servers/dynamodb.ts'
import { startMariadb } from './servers/mariadb.ts'
import { startMongodb } from './servers/mongodb.ts'
import { needs } from './servers/needs.ts'
import { startPostgres } from './servers/postgres.ts'
import { startRedis } from './servers/redis.ts'

const root = join(import.meta.dirname, '..')
const programs = ['stores.md', 'operating.md'].flatMap((page) =>
  Array.from(readFileSync(join(root, 'docs', page), 'utf8').matchAll(/```ts\n([\s\S]*?)```/g), (match) => match[1]!),
)
let folder: string

beforeAll(() => {
  // A user's folder: the package (its sources do here), the drivers, and nothing else.
  folder = mkdtempSync(join(tmpdir(), 'onceonly-stores-docs-'))
  mkdirSync(join(folder, 'node_modules', '@aws-sdk'), { recursive: true })
  writeFileSync(join(folder, 'package.json'), '{"type":"module"}')
  const drivers = ['pg', 'redis', 'ioredis', 'mysql2', 'mongodb', '@aws-sdk/client-dynamodb']
  for (const name of drivers) symlinkSync(join(root, 'node_modules', name), join(folder, 'node_modules', name))
})

afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** The program that says this, run with these replacements, and two asks at its end. */
async function runs(saying: string, changes: Readonly<Record<string, string>>, end: string): Promise<void> {
  let program = programs.find((each) => each.includes(saying) && each.includes('Store('))!
  expect(program, `a program of docs/ that says ${saying}`).toBeDefined()
  for (const [written, real] of Object.entries(changes)) {
    expect(program).toContain(written)
    program = program.replace(written, real)
  }
  if (!program.includes('createOnce')) {
    program = `import { createOnce } from 'onceonly'\n${program}\nconst once = createOnce({ store, scope: 'payments' })`
  }
  const inSource = program.replaceAll(
    /from 'onceonly(\/[\w-]+)?'/g,
    (_all, path: string | undefined) => `from '${join(root, 'src', path ? `stores${path}.ts` : 'index.ts')}'`,
  )
  const ask = `for (const _ of [1, 2]) console.log(JSON.stringify(await once.run('order-1', () => 'ran')))`
  const file = join(folder, `${saying.replaceAll(/\W+/g, '-')}.ts`)
  writeFileSync(file, `${inSource}\n${ask}\nawait once.close()\n${end}\n`)
  const { stdout } = await promisify(execFile)(process.execPath, [file], {
    cwd: folder,
    env: { ...process.env, ...environment },
  })
  expect(stdout.trim().split('\n')).toEqual([
    '{"value":"ran","replayed":false,"attempt":1}',
    '{"value":"ran","replayed":true,"attempt":1}',
  ])
}

let environment: Record<string, string> = {}

needs('redis').describe('Redis', () => {
  test.each([
    ['redis', 'await client.close()'],
    ['ioredis', 'process.exit()'],
  ])('with %s runs as written', async (client, end) => {
    await using server = await startRedis({ config: { appendonly: 'yes', appendfsync: 'everysec' } })
    await runs(`from '${client}'`, { 'redis://localhost:6379': server.url }, end)
  })
})

needs('mariadb').describe('MySQL, MariaDB', () => {
  test('runs as written', async () => {
    await using server = await startMariadb()
    await runs(
      "from 'mysql2/promise'",
      { 'mysql://root@127.0.0.1:3306/shop': await server.createDatabase() },
      'process.exit()',
    )
  })
})

needs('mongodb').describe('MongoDB', () => {
  test('runs as written', async () => {
    await using server = await startMongodb()
    await runs("from 'mongodb'", { 'mongodb://db1,db2,db3/?replicaSet=main': server.url }, 'await client.close()')
  })
})

needs('dynamodb').describe('DynamoDB', () => {
  test('runs as written', async () => {
    await using server = await startDynamodb()
    const credentials = `credentials: { accessKeyId: 'a', secretAccessKey: 'b' }`
    const region = `region: 'eu-central-1'`
    await runs(
      "from '@aws-sdk/client-dynamodb'",
      { [region]: `${region}, endpoint: '${server.url}', ${credentials}` },
      '',
    )
  })
})

needs(['redis', 'postgres']).describe('Redis over PostgreSQL', () => {
  test('runs as written', async () => {
    await using redis = await startRedis()
    await using postgres = await startPostgres()
    environment = { REDIS_URL: redis.url, DATABASE_URL: await postgres.createDatabase() }
    await runs("from 'onceonly/redis-postgres'", {}, 'await redis.close()\nawait pool.end()')
  })
})

needs('postgres').describe('PostgreSQL in periods', () => {
  test('runs as written', async () => {
    await using postgres = await startPostgres()
    environment = { DATABASE_URL: await postgres.createDatabase() }
    await runs('periodMs: 3 * day', {}, 'await pool.end()')
  })
})
