// What the public types promise, compiled: snippets that must compile, and snippets that must not, with the error that a user
// reads. All of them are one program, so that tsc runs once.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'

const root = join(import.meta.dirname, '..')
const tsc = join(dirname(createRequire(import.meta.url).resolve('typescript/package.json')), 'bin', 'tsc')

const prelude = `
import { createOnce } from 'onceonly'
import type { Codec, Once, Result, Storable, Stored } from 'onceonly'
import { memoryStore } from 'onceonly/memory'
import { sqliteStore } from 'onceonly/sqlite'
import type { SqliteStore } from 'onceonly/sqlite'
import { redisStore } from 'onceonly/redis'
import { dynamodbStore } from 'onceonly/dynamodb'
import type { IncomingMessage } from 'node:http'
declare const client: Parameters<typeof redisStore>[0]['client']
declare const codec: Codec
const memory = createOnce({ store: memoryStore(), scope: 'shop' })
const sqlite = createOnce({ store: sqliteStore({ path: 'x.db' }), scope: 'shop' })
const redis = createOnce({ store: redisStore({ client }), scope: 'shop' })
declare const aws: Parameters<typeof dynamodbStore>[0]['client']
const dynamodb = createOnce({ store: dynamodbStore({ client: aws, table: 'onceonly' }), scope: 'shop' })
const coded = createOnce({ store: sqliteStore({ path: 'x.db' }), scope: 'shop', codec })
export type Used = [Codec, Once, Result<1>, Storable<1>, Stored<1>, SqliteStore, IncomingMessage, typeof memory, typeof sqlite, typeof redis, typeof dynamodb, typeof coded]
export { memory, sqlite, redis, dynamodb, coded }
`

/** A snippet, and the error that it must have. Without one it must compile. */
const snippets: readonly [name: string, code: string, error?: RegExp][] = [
  [
    'a replayed Date is a string',
    `const { value } = await memory.run('a', () => new Date())
     const text: string = value.slice(0, 4); console.log(text)`,
  ],
  [
    'a replayed Date has no getTime',
    `const { value } = await memory.run('a', () => new Date())
     value.getTime()`,
    /Property 'getTime' does not exist on type 'string'/,
  ],
  [
    'a Date inside an object is a string, and what is undefined is left out',
    `const { value } = await memory.run('a', async () => ({ at: new Date(), note: 'x' as string | undefined, tags: ['a'] }))
     const at: string = value.at; const note: string | undefined = value.note; console.log(at, note, value.tags.length)
     const same: { at: string; note?: string; tags: string[] } = value; console.log(same)`,
  ],
  [
    'toJSON says what is stored',
    `class Money { toJSON(): { cents: number } { return { cents: 5 } } }
     const { value } = await memory.run('a', () => ({ paid: new Money() }))
     const cents: number = value.paid.cents; console.log(cents)`,
  ],
  [
    'a method is gone after a replay',
    `class Money { readonly cents = 5; add(): Money { return this } }
     const { value } = await memory.run('a', () => new Money())
     console.log(value.cents); value.add()`,
    /Property 'add' does not exist/,
  ],
  [
    'JSON keeps its own types: literals, unions, tuples, unknown, bytes, nothing',
    `const state = await memory.run('a', () => 'paid' as 'paid' | 'open')
     const either: 'paid' | 'open' = state.value
     const union = await memory.run('a', () => (either === 'paid' ? { ok: true as const, id: 'i' } : { ok: false as const, why: 1 }))
     if (union.value.ok) console.log(union.value.id)
     else console.log(union.value.why.toFixed())
     const pair = await memory.run('a', () => [1, 'b'] as [number, string])
     const two: [number, string] = pair.value
     const some: unknown = (await memory.run('a', () => JSON.parse('1') as unknown)).value
     const bytes: Uint8Array = (await memory.run('a', () => new Uint8Array(1))).value
     await memory.run('a', async () => {})
     console.log(two, some, bytes)`,
  ],
  [
    'a recursive type has an end',
    `interface Tree { readonly at: Date; readonly children: readonly Tree[] }
     const { value } = await memory.run('a', () => ({}) as Tree)
     const at: string = value.children[0]!.children[0]!.at; console.log(at)`,
  ],
  ['a bigint does not compile', `await memory.run('a', () => 5n)`, /a bigint cannot be stored as JSON/],
  [
    'a bigint inside does not compile',
    `await memory.run('a', async () => ({ n: { m: 5n } }))`,
    /a bigint cannot be stored/,
  ],
  [
    'a Map does not compile',
    `await memory.run('a', () => new Map([['a', 1]]))`,
    /a Map or Set cannot be stored as JSON/,
  ],
  [
    'a Set inside does not compile',
    `await memory.run('a', () => ({ s: new Set([1]) }))`,
    /a Map or Set cannot be stored/,
  ],
  ['a function does not compile', `await memory.run('a', () => () => 1)`, /cannot be stored as JSON/],
  ['a symbol does not compile', `await memory.run('a', () => Symbol('x'))`, /cannot be stored as JSON/],
  [
    'a Response does not compile, and the error says what to return',
    `await memory.run('a', () => fetch('http://x'))`,
    /return await response.json\(\)/,
  ],
  [
    'an ArrayBuffer does not compile',
    `await memory.run('a', () => new ArrayBuffer(1))`,
    /binary data cannot lie inside JSON/,
  ],
  [
    'in a transaction, too',
    `await sqlite.transaction('a', () => new Set([1]))`,
    /a Map or Set cannot be stored as JSON/,
  ],
  [
    'within a transaction, too',
    `const r = await sqlite.within({} as never).run('a', () => new Date()); const s: string = r.value; console.log(s)
     sqlite.within({} as never).runSync('a', () => 5n)`,
    /a bigint cannot be stored as JSON/,
  ],
  [
    'with a codec every type is its own',
    `const at = await coded.run('a', () => new Date())
     at.value.getTime()
     const many = await coded.transaction('a', () => new Map([[1, 2n]]))
     const n: bigint | undefined = many.value.get(1); console.log(n)
     const big = await coded.within({} as never).run('b', () => 5n)
     const b: bigint = big.value; console.log(b)`,
  ],
  [
    'a step: a Date is a string, for the function and for its undo',
    `sqlite.operation('a', {}, async (op) => {
       const at = await op.step('at', { run: ({ key }) => ({ key, at: new Date() }), undo: ({ result }) => result?.at.slice(0, 4) })
       const short = await op.step('short', async () => new Date())
       return at.at.slice(0, 4) + short.slice(0, 4)
     })`,
  ],
  [
    'the result of a step has no getTime',
    `memory.operation('a', {}, async (op) => { (await op.step('at', () => new Date())).getTime() })`,
    /Property 'getTime' does not exist on type 'string'/,
  ],
  [
    'the undo of a step is given no Date',
    `memory.operation('a', {}, (op) => op.step('at', { run: () => new Date(), undo: ({ result }) => result?.getTime() }))`,
    /Property 'getTime' does not exist on type 'string'/,
  ],
  [
    'a bigint in a step does not compile',
    `memory.operation('a', {}, async (op) => { await op.step('at', () => 5n) })`,
    /a bigint cannot be stored as JSON/,
  ],
  [
    'a Map in a step with an undo does not compile',
    `memory.operation('a', {}, async (op) => { await op.step('at', { run: async () => new Map([[1, 2]]), undo: () => {} }) })`,
    /a Map or Set cannot be stored as JSON/,
  ],
  [
    'a Response in a step does not compile',
    `memory.operation('a', {}, async (op) => { await op.step('at', ({ signal }) => fetch('http://x', { signal })) })`,
    /return await response.json\(\)/,
  ],
  [
    'a step in a transaction, too',
    `sqlite.operation('a', {}, async (op) => {
       const at = await op.transaction('at', { run: (tx) => { tx.exec('select 1'); return new Date() }, undo: (tx, { result }) => tx.exec(result ?? '') })
       return (await op.transaction('two', () => new Date())).slice(0, 4) + at.slice(0, 4)
     })`,
  ],
  [
    'a bigint in a transaction of an operation does not compile',
    `sqlite.operation('a', {}, async (op) => { await op.transaction('at', () => ({ n: 5n })) })`,
    /a bigint cannot be stored as JSON/,
  ],
  [
    'the result of an operation is what a replay has',
    `const made = memory.operation('a', {}, async (op, order: { id: string; note?: string; tags: string[] }) => ({ at: new Date(), id: order.id }))
     const at: string = (await made.run('1', { id: 'i', tags: ['a'] })).value.at
     const { outcome } = await made.start('2', { id: 'i', tags: [] })
     if (outcome?.kind === 'value') console.log(outcome.value.at.slice(0, 4), at)`,
  ],
  [
    'the result of an operation has no getTime',
    `const made = memory.operation('a', {}, async () => ({ at: new Date() }))
     ;(await made.run('1', undefined)).value.at.getTime()`,
    /Property 'getTime' does not exist on type 'string'/,
  ],
  [
    'an operation that returns a Set does not compile',
    `memory.operation('a', {}, async () => new Set([1]))`,
    /a Map or Set cannot be stored as JSON/,
  ],
  [
    'an operation whose input has a Date does not compile: a worker reads a string',
    `memory.operation('a', {}, async (_op, { at }: { at: Date }) => at.getTime())`,
    /the function is given its input as JSON has it/,
  ],
  [
    'an operation whose input has a method does not compile',
    `class Order { readonly id = 'i'; total(): number { return 5 } }
     memory.operation('a', {}, async (_op, order: Order) => order.total())`,
    /the function is given its input as JSON has it/,
  ],
  [
    'inputs that JSON has: unknown, tuples, unions, nested lists, what may be undefined',
    `memory.operation('a', {}, async (_op, input: unknown) => String(input))
     memory.operation('b', {}, async (_op, input: readonly [string, number]) => input[1])
     memory.operation('c', {}, async (_op, input: { kind: 'a'; lines: { sku: string; count: number | undefined }[] } | { kind: 'b' }) => input.kind)
     memory.operation('d', {}, async (_op, input: string) => input)
     memory.operation('e', {}, async () => 1)`,
  ],
  [
    'with a codec the steps, the input and the result of an operation are their own',
    `const made = coded.operation('a', {}, async (op, input: { at: Date }) => {
       const n = await op.step('n', { run: () => 5n, undo: ({ result }) => result?.toString(16) })
       const map = await op.transaction('map', () => new Map([[n, input.at]]))
       return map
     })
     const value: Map<bigint, Date> = (await made.run('1', { at: new Date() })).value; console.log(value)`,
  ],
  [
    'resolve gives a key a value that can be stored',
    `await memory.resolve('a', { value: { receipt: 'r', at: new Date() } }, 'seen at the bank')
     await memory.resolve('a', { failure: new Error('declined') }, 'seen at the bank')
     await coded.resolve('a', { value: 5n }, 'seen at the bank')`,
  ],
  [
    'resolve with a bigint does not compile',
    `await memory.resolve('a', { value: 5n }, 'seen at the bank')`,
    /a bigint cannot be stored as JSON/,
  ],
  [
    'a function of one’s own passes an effect on',
    `function pay<T>(effect: (() => Promise<T>) & Storable<T>): Promise<Result<Stored<T>>> { return memory.run('a', effect) }
     const at: string = (await pay(async () => new Date())).value; console.log(at)`,
  ],
  [
    'memory has operations and hands, and no transactions',
    `memory.operation; memory.recover; memory.get; memory.release; memory.inDoubt`,
  ],
  ['memory has no transaction', `memory.transaction`, /Property 'transaction' does not exist/],
  [
    'SQLite has everything',
    `sqlite.transaction; sqlite.within({} as never).runSync; sqlite.operation; sqlite.reconcile; sqlite.forget`,
  ],
  ['Redis has hands', `redis.get; redis.forget`],
  ['Redis has no transaction', `redis.transaction`, /Property 'transaction' does not exist/],
  ['Redis has no within', `redis.within`, /Property 'within' does not exist/],
  ['Redis has no operation', `redis.operation`, /Property 'operation' does not exist/],
  ['Redis has no worker', `redis.recover`, /Property 'recover' does not exist/],
  [
    'DynamoDB has transactions whose tx collects',
    `await dynamodb.transaction('a', (tx) => { tx.put({ TableName: 't', Item: { id: { S: 'a' } } }) })`,
  ],
  ['DynamoDB has no within', `dynamodb.within`, /Property 'within' does not exist/],
  ['DynamoDB has no operation', `dynamodb.operation`, /Property 'operation' does not exist/],
  [
    'what DynamoDB collects has the form of TransactWriteItems',
    `await dynamodb.transaction('a', (tx) => { tx.put({ TableName: 't', Key: { id: { S: 'a' } } }) })`,
    /'Key' does not exist in type 'TransactPut'/,
  ],
  ['the tx of a transaction is the store’s', `await sqlite.transaction('a', (tx) => { tx.exec('select 1') })`],
  [
    'any Once is a Once',
    `const all: Once[] = [memory, sqlite, redis, coded]; console.log(all.length)
     const mine: Once<SqliteStore> = sqlite; console.log(mine)`,
  ],
  [
    'an option that is misspelt does not compile',
    `await memory.run('a', () => 1, { lease: 5 })`,
    /'lease' does not exist in type 'RunOptions'/,
  ],
]

let folder: string
let output: string

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'onceonly-types-'))
  const options = {
    typeRoots: [join(root, 'node_modules', '@types')],
    noUnusedLocals: false,
    noUnusedParameters: false,
  }
  const config = { extends: join(root, 'tsconfig.json'), compilerOptions: options, include: ['*.ts'] }
  writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify(config))
  writeFileSync(join(folder, 'package.json'), '{"type":"module"}')
  snippets.forEach(([, code], index) => writeFileSync(join(folder, fileOf(index)), `${prelude}\n${code}\n`))
  const ran = spawnSync(process.execPath, [tsc, '-p', folder, '--pretty', 'false'], { cwd: folder, encoding: 'utf8' })
  output = ran.stdout
})

afterAll(() => rmSync(folder, { recursive: true, force: true }))

const fileOf = (index: number): string => `snippet-${index}.ts`

/** The errors of one snippet, each with the lines that explain it. */
function errorsOf(index: number): string[] {
  const all = output.split(/\n(?=\S)/)
  return all.filter((each) => each.startsWith(`${fileOf(index)}(`))
}

test.each(snippets.map(([name, code, error], index) => ({ name, code, error, index })))('$name', ({ error, index }) => {
  const errors = errorsOf(index)
  if (!error) return expect(errors).toEqual([])
  expect(errors.join('\n')).toMatch(error)
  expect(errors).toHaveLength(1)
})

test('nothing else is wrong', () => {
  expect(output.split(/\n(?=\S)/).filter((each) => each !== '' && !each.startsWith('snippet-'))).toEqual([])
})
