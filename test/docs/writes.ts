// docs/writes.md is true: its programs run as they are written and answer as they say, and its table has every answer.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { createPool } from '../subjects/postgres.ts'
import { startDynamodb } from '../servers/dynamodb.ts'
import { startMariadb } from '../servers/mariadb.ts'
import { startMongodb } from '../servers/mongodb.ts'
import { needs } from '../servers/needs.ts'
import { startPostgres } from '../servers/postgres.ts'
import { createClient } from '../subjects/dynamodb.ts'
import { root, take } from './blocks.ts'
import { openPrograms } from './programs.ts'

const text = readFileSync(join(root, 'docs', 'writes.md'), 'utf8')
const programs = openPrograms()
afterAll(() => programs[Symbol.dispose]())
take('docs/writes.md')

function block(heading: string, language: 'ts' | 'sql'): string {
  const section = text.split(/^## /m).find((each) => each.startsWith(`${heading}\n`))!
  return new RegExp('```' + language + '\\n([^]*?)```').exec(section)![1]!
}

test('SQLite runs as written', async () => {
  expect(await programs.run('sqlite', block('SQLite', 'ts'))).toBe('applied applied already missing')
})

needs('postgres').describe('PostgreSQL', () => {
  test('runs as written', async () => {
    await using server = await startPostgres()
    const url = await server.createDatabase()
    const pool = createPool(url)
    await pool.query(block('PostgreSQL', 'sql'))
    const said = await programs.run('postgres', block('PostgreSQL', 'ts'), [], { DATABASE_URL: url })
    expect(said).toBe('applied applied already applied applied stale applied conflict applied applied already appended')
    const { rows } = await pool.query('select * from orders')
    expect(rows).toEqual([{ id: 'order-1', state: 'payment_pending', name: 'Ada King', version: '2', total: '500' }])
    await pool.end()
  })
})

needs('mariadb').describe('MySQL, MariaDB', () => {
  test('runs as written', async () => {
    await using server = await startMariadb()
    const env = { MYSQL_URL: await server.createDatabase() }
    expect(await programs.run('mysql', block('MySQL, MariaDB', 'ts'), [], env)).toBe('applied applied already')
  })
})

needs('dynamodb').describe('DynamoDB', () => {
  test('runs as written', async () => {
    await using server = await startDynamodb()
    const client = createClient(server.url)
    for (const [table, partition, sort] of [
      ['things', 'id'],
      ['event_ids', 'event_id'],
      ['events', 'stream', 'version'],
    ]) {
      const keys = [{ AttributeName: partition, KeyType: 'HASH' as const }]
      const types = [{ AttributeName: partition, AttributeType: 'S' as const }]
      await client.createTable({
        TableName: table,
        BillingMode: 'PAY_PER_REQUEST',
        KeySchema: sort ? [...keys, { AttributeName: sort, KeyType: 'RANGE' }] : keys,
        AttributeDefinitions: sort ? [...types, { AttributeName: sort, AttributeType: 'N' }] : types,
      })
    }
    client.destroy()
    const credentials = { AWS_ACCESS_KEY_ID: 'onceonly', AWS_SECRET_ACCESS_KEY: 'onceonly', AWS_REGION: 'local' }
    const env = { DYNAMODB_URL: server.url, ...credentials }
    expect(await programs.run('dynamodb', block('DynamoDB', 'ts'), [], env)).toBe('applied appended already conflict')
  })
})

needs('mongodb').describe('MongoDB', () => {
  test('runs as written', async () => {
    await using server = await startMongodb()
    const env = { MONGODB_URL: server.url }
    expect(await programs.run('mongodb', block('MongoDB', 'ts'), [], env)).toBe('applied applied already')
  })
})

describe('the table of answers', () => {
  const source = readFileSync(join(root, 'src', 'writes', 'writes.ts'), 'utf8')
  const declared = Array.from(source.matchAll(/^ {2}readonly (\w+): ((?:'\w+'(?: \| )?)+)$/gm), ([, name, union]) => ({
    name: name!,
    answers: Array.from(union!.matchAll(/'(\w+)'/g), (match) => match[1]!),
  }))

  test('there are seven writes', () => expect(declared).toHaveLength(7))

  test.each(declared)('has the answers of $name', ({ name, answers }) => {
    const line = text.split('\n').find((each) => each.startsWith(`| \`${name}(`))!
    const listed = line.split('|').at(-2)!
    expect(Array.from(listed.matchAll(/`(\w+)`/g), (match) => match[1])).toEqual(answers)
  })
})
