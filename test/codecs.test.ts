// A codec covers everything that is stored. The codec is the one of docs/codecs.md, as it is printed there: JSON, encrypted with AES.

import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { stripTypeScriptTypes } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { FinalError } from '../src/core/errors.ts'
import { createOnce } from '../src/core/once.ts'
import type { Once } from '../src/core/once.ts'
import type { Codec } from '../src/core/outcome.ts'
import { operationAt, resumeByHand } from '../src/gateway/operation-by-hand.ts'
import { idempotency } from '../src/http/fetch.ts'
import { sqliteStore } from '../src/stores/sqlite.ts'
import type { SqliteStore } from '../src/stores/sqlite.ts'

type Keys = readonly { readonly id: number; readonly key: Uint8Array }[]
let aesCodec: (keys: Keys) => Codec
const first = { id: 1, key: Buffer.alloc(32, 1) }
const second = { id: 2, key: Buffer.alloc(32, 2) }

beforeAll(async () => {
  const page = readFileSync(join(import.meta.dirname, '../docs/codecs.md'), 'utf8')
  const block = /```ts\n([\s\S]*?)```/.exec(page)![1]!
  // The function alone: what uses it opens a store of its own.
  const [definition] = block.replaceAll(/^import .* from 'onceonly.*\n/gm, '').split('\nconst keyOf')
  const source = stripTypeScriptTypes(definition!)
  ;({ aesCodec } = (await import(`data:text/javascript,${encodeURIComponent(source)}`)) as {
    aesCodec: typeof aesCodec
  })
})

interface Place {
  readonly store: SqliteStore
  once(keys?: Keys): Once<SqliteStore, 'codec'>
  /** Every byte on disk. */
  onDisk(): Buffer
}

const places: { folder: string; store: SqliteStore }[] = []

function place(): Place {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-codecs-'))
  const store = sqliteStore({ path: join(folder, 'once.db') })
  places.push({ folder, store })
  return {
    store,
    once: (keys = [first]) =>
      createOnce({ store, scope: 'shop', codec: aesCodec(keys), waitMs: 0, sweepEveryMs: false }),
    onDisk: () => Buffer.concat(readdirSync(folder).map((name) => readFileSync(join(folder, name)))),
  }
}

afterAll(() => {
  for (const { folder, store } of places) {
    store.close()
    rmSync(folder, { recursive: true })
  }
})

const secret = 'SECRET-4711'
const thrownBy = (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => expect.fail('expected an error'),
    (error: unknown) => error,
  )

describe('a codec covers', () => {
  test.each<[what: string, value: unknown]>([
    ['a value', { card: secret, cents: [1, 2.5, null] }],
    ['bytes', Uint8Array.from([...Buffer.from(secret), 0, 255])],
    ['no bytes', new Uint8Array(0)],
    ['nothing', undefined],
  ])('%s: the first caller and every replay get the same, and none of it is readable on disk', async (_what, value) => {
    const { once, onDisk } = place()
    const results = []
    for (let asked = 0; asked < 3; asked++) results.push(await once().run('k', () => value))
    expect(results.map((result) => result.value)).toEqual([value, value, value])
    expect(results.map((result) => result.replayed)).toEqual([false, true, true])
    expect(onDisk().includes(secret)).toBe(false)
  })

  test('a failure, its message and its data, in run, transaction and resolve', async () => {
    const { once, onDisk } = place()
    const refuse = (): never => {
      throw new FinalError(`declined: ${secret}`, { data: { pin: secret } })
    }
    const replayed = { message: `declined: ${secret}`, data: { pin: secret } }
    for (let asked = 0; asked < 2; asked++) {
      expect(await thrownBy(once().run('run', refuse))).toMatchObject(replayed)
      expect(await thrownBy(once().transaction('transaction', refuse))).toMatchObject(replayed)
    }
    await once()
      .run('doubtful', () => Promise.reject(new Error('x')))
      .catch(() => {})
    await once().resolve('doubtful', { failure: new FinalError(`declined: ${secret}`) }, 'looked it up')
    expect(await thrownBy(once().run('doubtful', refuse))).toMatchObject({ message: `declined: ${secret}` })
    expect(onDisk().includes(secret)).toBe(false)
  })

  test('inputs and results of steps, and what errors said in steps, attempts, endings and where it is parked', async () => {
    const { once, onDisk, store } = place()
    const asked: unknown[] = []
    const define = (end: 'fail' | 'stick') =>
      once().operation(`checkout-${end}`, { attempts: 2, waitMs: 0 }, async (op, order: { card: string }) => {
        asked.push(order)
        await op.step('charge', {
          run: () => ({ receipt: secret }),
          undo: () => {
            if (end === 'stick') throw new Error(`the bank said ${secret}`)
          },
        })
        await op.step('ship', {
          run: () => {
            throw new FinalError(`no stock for ${secret}`, { data: { shelf: secret } })
          },
        })
      })
    const failing = define('fail')
    const failure = { message: `no stock for ${secret}`, data: { shelf: secret } }
    for (let tries = 0; tries < 2; tries++)
      expect(await thrownBy(failing.run('o', { card: secret }))).toMatchObject(failure)
    expect(asked).toEqual([{ card: secret }])
    const sticking = define('stick')
    await thrownBy(sticking.run('o', { card: secret }))
    expect(await sticking.status('o')).toMatchObject({
      state: 'parked',
      parked: expect.stringContaining(secret) as string,
      steps: [
        { name: 'charge', error: `the bank said ${secret}` },
        { name: 'ship', error: `no stock for ${secret}` },
      ],
    })
    expect(onDisk().includes(secret)).toBe(false)

    // A person without the codec sees that it is sealed, lets it go on, and destroys nothing of what is sealed.
    const key = { scope: 'shop/operations/checkout-stick', id: 'o' }
    const shown = await operationAt(store, key, await store.show(key)).status('o')
    expect(shown).toMatchObject({ state: 'parked', parked: 'sealed by the codec of the service' })
    expect(await operationAt(store, { ...key, scope: 'shop/operations/checkout-fail' }).status('o')).toMatchObject({
      state: 'failed',
      outcome: { error: { message: 'sealed by the codec of the service' } },
    })
    expect(await resumeByHand(store, key, 'the bank is back')).toMatchObject({ changed: true })
    expect(await sticking.status('o')).toMatchObject({ steps: [{ error: `the bank said ${secret}` }, {}] })
    expect(await thrownBy(sticking.run('o', { card: secret }))).toMatchObject({ code: 'PARKED' })
    expect(await sticking.status('o')).toMatchObject({
      parked: expect.stringContaining(`no stock for ${secret}`) as string,
    })
  })

  test('an input is compared before it is encoded: a codec that encrypts makes no mismatch', async () => {
    const { once } = place()
    const define = () => once().operation('greet', { waitMs: 0 }, async (_op, name: string) => `hello ${name}`)
    for (let tries = 0; tries < 3; tries++) expect(await define().run('a', 'Ada')).toMatchObject({ value: 'hello Ada' })
    expect(await thrownBy(define().run('a', 'Eve'))).toMatchObject({ code: 'MISMATCH' })
  })
})

describe('over HTTP', () => {
  const post = (key: string): Request =>
    new Request('http://localhost/orders', { method: 'POST', headers: { 'Idempotency-Key': key }, body: '{}' })

  test.each<[what: string, answer: () => Response, options: object]>([
    ['JSON', () => Response.json({ card: secret }, { status: 201, headers: { 'X-Card': secret } }), {}],
    ['bytes', () => new Response(Uint8Array.from([0, 255, 13, 10, 254, ...Buffer.from(secret)])), {}],
    ['no body', () => new Response(null, { status: 204 }), {}],
    ['a refusal', () => Response.json({ card: secret }, { status: 422 }), {}],
    ['a refusal in a transaction', () => Response.json({ card: secret }, { status: 422 }), { transaction: true }],
    ['a response in a transaction', () => Response.json({ card: secret }), { transaction: true }],
  ])('%s is replayed byte for byte, and none of it is readable on disk', async (_what, answer, options) => {
    const { once, onDisk } = place()
    let runs = 0
    const ask = async (): Promise<unknown> => {
      const handler = idempotency(once(), { tenant: 'shared', ...options })(() => (runs++, answer()))
      const response = await handler(post('k'))
      return [response.status, response.headers.get('x-card'), Buffer.from(await response.arrayBuffer())]
    }
    const [given, again, third] = [await ask(), await ask(), await ask()]
    expect([again, third]).toEqual([given, given])
    expect(runs).toBe(1)
    expect(onDisk().includes(secret)).toBe(false)
    expect(onDisk().includes(Buffer.from(secret).toString('base64').slice(0, 12))).toBe(false)
  })
})

test('a key is rotated: old values stay readable, new ones are under the new key, and without its key a value is no second run', async () => {
  const { once } = place()
  await once([first]).run('old', () => 'written with 1')
  const rotated = once([second, first])
  expect(await rotated.run('old', () => 'again')).toMatchObject({ value: 'written with 1', replayed: true })
  await rotated.run('new', () => 'written with 2')
  const later = once([second])
  expect(await later.run('new', () => 'again')).toMatchObject({ value: 'written with 2', replayed: true })
  expect(await thrownBy(later.run('old', () => expect.fail('a second run')))).toMatchObject({
    code: 'OUTCOME_UNREADABLE',
    executed: 'yes',
    message: expect.stringContaining('encrypted with key 1, and that key is not given') as string,
  })
})

test('a value that was changed on disk is unreadable, and not another value', async () => {
  const codec = aesCodec([first])
  const stored = Buffer.from(codec.encode({ cents: 500 }))
  stored[stored.length - 1]! ^= 1
  expect(() => codec.decode(stored)).toThrow()
})
