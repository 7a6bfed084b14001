// The exchange without a framework: what becomes of a request when `once`, the store or a session refuses, and what is asked of a request
// before that.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { afterAll, expect, test, vi } from 'vitest'
import { FinalError, OnceError } from '../core/errors.ts'
import type { ErrorCode, OnceErrorDetails } from '../core/errors.ts'
import { createOnce } from '../core/once.ts'
import type { Once } from '../core/once.ts'
import { createSessions } from '../sessions/sessions.ts'
import { memoryStore } from '../stores/memory.ts'
import { sqliteStore } from '../stores/sqlite.ts'
import { checkStore, createExchange } from './exchange.ts'
import type { Answer, AskedRequest, Body, Delivery, HttpOptions, HttpSessions, Produced } from './exchange.ts'
import { encodeAnswer } from './exchange/stored-response.ts'

const newOnce = (): Once => createOnce({ store: memoryStore(), scope: 'shop', sweepEveryMs: false })

interface Asking extends Partial<AskedRequest<unknown>> {
  readonly headers?: Readonly<Record<string, string>>
}

function asked({ headers = {}, ...more }: Asking = {}): AskedRequest<unknown> {
  return {
    request: undefined,
    method: 'POST',
    target: '/orders',
    keyLines: ['k'],
    header: (name) => headers[name.toLowerCase()],
    body: () => ({ is: 'bytes', bytes: Buffer.from('{}') }),
    ...more,
  }
}

const created: Answer = { status: 201, headers: [['X-Made', 'yes']], body: Buffer.from('made') }
const answering = (answer: Answer = created) => vi.fn(async (): Promise<Produced> => ({ is: 'answer', answer }))

const exchangeOf = (once: Once, options: Partial<HttpOptions> = {}) =>
  createExchange(once, { tenant: 'shared', ...options })

function problemOf(delivery: Delivery): { status: number; code: string; retryable: boolean; detail: string } {
  if (delivery.is !== 'answer') expect.fail(`delivered: ${delivery.is}`)
  return JSON.parse(Buffer.from(delivery.answer.body).toString()) as ReturnType<typeof problemOf>
}

/** A `once` that refuses before or after the effect has run. */
function refusing(code: ErrorCode | Error, when: 'before' | 'after', details: Partial<OnceErrorDetails> = {}): Once {
  const once = newOnce()
  const refuse: Once['run'] = async (_key, effect) => {
    const op = { key: { scope: 's', id: 'k' }, attempt: 1, token: 't', fence: 1 }
    if (when === 'after') await (effect as (given: unknown) => unknown)(op)
    throw code instanceof Error ? code : new OnceError(code, { message: code, ...details })
  }
  return { ...once, run: refuse }
}

test.each<[ErrorCode, status: number, code: string, retryAfter: string | undefined]>([
  ['IN_FLIGHT', 409, 'idempotency-in-progress', '3'],
  ['MISMATCH', 422, 'idempotency-key-reused', undefined],
  ['EXPIRED', 410, 'idempotency-key-expired', undefined],
  ['IN_DOUBT', 409, 'idempotency-outcome-unknown', undefined],
  ['CLAIM_LOST', 409, 'idempotency-in-progress', '3'],
  ['DEADLINE_PASSED', 503, 'idempotency-outcome-unknown', '3'],
  ['STORE_UNAVAILABLE', 503, 'idempotency-store-unavailable', '3'],
  ['STORE_UNSAFE', 503, 'idempotency-store-unavailable', undefined],
  ['SCHEMA_MISSING', 503, 'idempotency-store-unavailable', undefined],
  ['TRANSACTION_CONFLICT', 503, 'idempotency-transaction-conflict', '3'],
  ['OUTCOME_UNKNOWN', 503, 'idempotency-outcome-unknown', '3'],
  ['OUTCOME_UNREADABLE', 500, 'idempotency-outcome-unreadable', undefined],
  ['OUTCOME_NOT_STORED', 409, 'idempotency-response-not-stored', undefined],
])('%s before the handler is %i %s, to be asked for again after %s s', async (code, status, name, retryAfter) => {
  const run = answering()
  const delivery = await exchangeOf(refusing(code, 'before', { retryAfterMs: 2_500 })).handle(asked(), run)
  expect([problemOf(delivery).status, problemOf(delivery).code]).toEqual([status, name])
  const { headers } = (delivery as { answer: Answer }).answer
  expect(headers.find(([header]) => header === 'Retry-After')?.[1]).toBe(retryAfter)
  expect(headers.at(-1)).toEqual(['Idempotency-Window', '86400'])
  expect(run).not.toHaveBeenCalled()
})

test('an error of the program is thrown on, before the handler and after it', async () => {
  for (const when of ['before', 'after'] as const) {
    const delivery = await exchangeOf(refusing('INVALID_ARGUMENT', when)).handle(asked(), answering())
    expect(delivery).toMatchObject({ is: 'thrown', error: { code: 'INVALID_ARGUMENT' } })
  }
})

test('an error of the store that is none of ours, after the handler, leaves the outcome unknown', async () => {
  const delivery = await exchangeOf(refusing(new Error('socket hang up'), 'after')).handle(asked(), answering())
  expect(problemOf(delivery)).toMatchObject({ status: 503, code: 'idempotency-outcome-unknown' })
})

test('a failure that a handler of another way stored is thrown as it was, and one with an answer is replayed', async () => {
  const error = new FinalError('declined', { data: { why: 'card' } })
  expect(await exchangeOf(refusing(error, 'before')).handle(asked(), answering())).toEqual({ is: 'thrown', error })
  const bytes = encodeAnswer(created, { replaySetCookie: false, replayHeader: 'Idempotent-Replayed' })
  const refused = new FinalError('refused', { data: { http: Buffer.from(bytes).toString('base64') } })
  expect(await exchangeOf(refusing(refused, 'before')).handle(asked(), answering())).toEqual({
    is: 'answer',
    answer: {
      ...created,
      headers: [...created.headers, ['Idempotency-Window', '86400'], ['Idempotent-Replayed', 'true']],
    },
  })
})

test('an answer that could not be stored is forwarded, and one that was not made is the problem', async () => {
  const after = await exchangeOf(refusing('OUTCOME_NOT_STORED', 'after')).handle(asked(), answering())
  expect(after).toEqual({ is: 'handler', headers: [['Idempotency-Window', '86400']] })
  const rolledBack = refusing('OUTCOME_NOT_STORED', 'before', { executed: 'no' })
  expect(await exchangeOf(rolledBack).handle(asked(), answering())).toMatchObject({
    is: 'thrown',
    error: { code: 'OUTCOME_NOT_STORED' },
  })
})

const unprotected = {
  is: 'handler',
  headers: [
    ['Idempotency-Window', '86400'],
    ['Idempotency-Status', 'unprotected'],
  ],
}

test('without the store a handler runs where that was chosen, once, as the first attempt of its key', async () => {
  const run = answering()
  const down = exchangeOf(refusing('STORE_UNAVAILABLE', 'before'), { onStoreDown: 'run' })
  expect(await down.handle(asked(), run)).toEqual(unprotected)
  expect(run).toHaveBeenCalledExactlyOnceWith(
    expect.objectContaining({ key: { scope: 'shop/', id: 'k' }, attempt: 1, fence: 0, tx: undefined }),
  )
  const [[context]] = run.mock.calls as unknown as [[{ token: string; signal: AbortSignal }]]
  expect([context.token.length, context.signal.aborted]).toEqual([36, false])
})

test('an answer whose record is not known to be kept is forwarded where that was chosen, and only then', async () => {
  for (const code of ['OUTCOME_UNKNOWN', 'STORE_UNAVAILABLE'] as const) {
    const run = answering()
    const once = refusing(code, 'after')
    expect(await exchangeOf(once, { onStoreDown: 'run' }).handle(asked(), run)).toEqual(unprotected)
    expect(run).toHaveBeenCalledTimes(1)
    expect((await exchangeOf(once).handle(asked(), answering())).is).toBe('answer')
  }
  // Nothing was made that could be forwarded, and running it might be the second time.
  const run = answering()
  const unknown = exchangeOf(refusing('OUTCOME_UNKNOWN', 'before'), { onStoreDown: 'run' })
  expect(problemOf(await unknown.handle(asked(), run)).code).toBe('idempotency-outcome-unknown')
  expect(run).not.toHaveBeenCalled()
  const busy = exchangeOf(refusing('IN_FLIGHT', 'after'), { onStoreDown: 'run' })
  expect(problemOf(await busy.handle(asked(), answering())).code).toBe('idempotency-in-progress')
})

test('what is here is not waited for, and what comes later is', async () => {
  const tenant = vi.fn((): string | Promise<string> => 'acme')
  const exchange = exchangeOf(newOnce(), { tenant })
  expect(exchange.handle(asked({ keyLines: [] }), answering())).not.toBeInstanceOf(Promise)
  expect(exchange.handle(asked({ body: () => ({ is: 'too-large' }) }), answering())).not.toBeInstanceOf(Promise)
  const later = asked({ body: async () => ({ is: 'too-large' }) })
  expect(problemOf(await exchange.handle(later, answering())).code).toBe('idempotency-body-too-large')
  tenant.mockReturnValueOnce(Promise.resolve(''))
  expect(problemOf(await exchange.handle(asked(), answering())).code).toBe('idempotency-scope-missing')
})

test('the key is told before the body is read, with its tenant in it', async () => {
  const seen: unknown[] = []
  const body = (): Body => (seen.push('body'), { is: 'digest-mismatch' })
  const exchange = exchangeOf(newOnce(), { tenant: () => 'acme' })
  const delivery = await exchange.handle(asked({ body, onKey: (key) => seen.push(key) }), answering())
  expect(problemOf(delivery)).toMatchObject({ status: 400, code: 'idempotency-digest-mismatch' })
  expect(seen).toEqual([{ scope: 'shop/acme', id: 'k' }, 'body'])
})

test('a body is read up to the limit, and against the digest that the client claims', async () => {
  const body = vi.fn((): Body => ({ is: 'too-large' }))
  const sha256 = `${'a'.repeat(43)}=`
  const headers = { 'content-digest': `sha-256=:${sha256}:` }
  await exchangeOf(newOnce(), { bodyBytesMax: 7 }).handle(asked({ body, headers }), answering())
  await exchangeOf(newOnce()).handle(asked({ body }), answering())
  expect(body.mock.calls).toEqual([[{ bytesMax: 7, sha256 }], [{ bytesMax: 1_048_576, sha256: undefined }]])
})

test('a replay of a large body is given only to whom its digest holds', async () => {
  const exchange = exchangeOf(newOnce())
  const large = (holds: boolean): AskedRequest<unknown> =>
    asked({ body: () => ({ is: 'claimed', sha256: 'x', verify: async () => holds }) })
  expect(await exchange.handle(large(true), answering())).toMatchObject({ is: 'handler' })
  expect(problemOf(await exchange.handle(large(false), answering())).code).toBe('idempotency-digest-mismatch')
  expect(await exchange.handle(large(true), answering())).toMatchObject({ is: 'answer', answer: { status: 201 } })
})

test.each([
  ['stripe', 500, 'false'],
  ['stripe', 499, undefined],
  ['draft', 500, undefined],
] as const)('in the profile %s a replay of %i says Stripe-Should-Retry: %s', async (profile, status, said) => {
  const exchange = exchangeOf(newOnce(), { profile, errorPolicy: 'began' })
  const run = answering({ ...created, status })
  await exchange.handle(asked(), run)
  const replayed = await exchange.handle(asked(), run)
  const { headers } = (replayed as { answer: Answer }).answer
  expect(headers.find(([name]) => name === 'Stripe-Should-Retry')?.[1]).toBe(said)
  expect(run).toHaveBeenCalledTimes(1)
})

test('an upgrade may change the lines that it is given, and the next replay is not changed by it', async () => {
  const once = newOnce()
  await exchangeOf(once).handle(asked(), answering())
  const upgrade = (response: Answer): Answer => {
    ;(response.headers as [string, string][])[0]![1] += '!'
    return response
  }
  const upgraded = exchangeOf(once, { version: 1, upgrade })
  for (let times = 0; times < 2; times++) {
    const replayed = await upgraded.handle(asked(), answering())
    expect((replayed as { answer: Answer }).answer.headers[0]).toEqual(['X-Made', 'yes!'])
  }
})

test('a request concerns the exchange by its method, and by its key or where one is required', () => {
  const [plain, required] = [exchangeOf(newOnce()), exchangeOf(newOnce(), { required: true })]
  expect([plain.concerns('POST', true), plain.concerns('GET', true), plain.concerns('POST', false)]).toEqual([
    true,
    false,
    false,
  ])
  expect([required.concerns('POST', false), required.concerns('GET', false)]).toEqual([true, false])
  expect(plain.managesSession('POST', '/.well-known/idempotency/sessions')).toBe(false)
})

test('a start is refused by a store or by sessions that only a person can mend, and not by what is down', async () => {
  const fail = (code: ErrorCode) => async (): Promise<never> => {
    throw new OnceError(code, { message: code })
  }
  const ready = (code: ErrorCode): Once => ({ ...newOnce(), ready: fail(code) })
  await expect(checkStore(ready('SCHEMA_MISSING'))).rejects.toMatchObject({ code: 'SCHEMA_MISSING' })
  await checkStore(ready('STORE_UNAVAILABLE'))
  const show = (code: ErrorCode): HttpSessions => ({ show: fail(code) }) as unknown as HttpSessions
  await expect(checkStore(newOnce(), show('SCHEMA_MISSING'))).rejects.toMatchObject({ code: 'SCHEMA_MISSING' })
  await checkStore(newOnce(), show('STORE_UNAVAILABLE'))
})

const path = '/.well-known/idempotency/sessions'
const newSessions = () => createSessions({ store: memoryStore(), scope: 'tills', leaseMs: 60_500 })

test('a registration may have 4096 bytes, whoever read them, and is asked for no more', async () => {
  const exchange = exchangeOf(newOnce(), { sessions: newSessions() })
  const body = vi.fn((): Body => ({ is: 'bytes', bytes: Buffer.from('{}'.padEnd(4_096)) }))
  const registered = await exchange.handle(asked({ target: path, keyLines: [], body }), answering())
  expect(registered).toMatchObject({ is: 'answer', answer: { status: 201 } })
  expect(body).toHaveBeenCalledExactlyOnceWith({ bytesMax: 4_096, sha256: undefined })
  for (const refused of [
    { is: 'bytes', bytes: Buffer.from('{}'.padEnd(4_097)) },
    { is: 'too-large' },
  ] satisfies Body[]) {
    const delivery = await exchange.handle(asked({ target: path, keyLines: [], body: () => refused }), answering())
    expect(problemOf(delivery)).toMatchObject({ status: 400, code: 'idempotency-session-invalid' })
    expect(problemOf(delivery).detail).toMatch(/^The body is larger than 4096 bytes\./)
  }
})

test('what a session refuses is a problem, an error of the program is thrown, and both leave the window of sessions', async () => {
  const failing = (error: Error): HttpSessions => ({ ...newSessions(), register: () => Promise.reject(error) })
  const register = (error: Error): Delivery | Promise<Delivery> =>
    exchangeOf(newOnce(), { sessions: failing(error) }).handle(asked({ target: path, keyLines: [] }), answering())
  const fenced = await register(new OnceError('FENCED', { message: 'again' }))
  expect(problemOf(fenced).code).toBe('idempotency-session-fenced')
  expect((fenced as { answer: Answer }).answer.headers.at(-1)).toEqual(['Idempotency-Window', '60'])
  const down = new OnceError('STORE_UNAVAILABLE', { message: 'down', retryAfterMs: 4_000 })
  expect((await register(down)) as object).toMatchObject({
    answer: { status: 503, headers: expect.arrayContaining([['Retry-After', '4']]) as unknown[] },
  })
  const uncured = new OnceError('STORE_UNAVAILABLE', { message: 'down', retryable: false })
  expect(problemOf(await register(uncured)).retryable).toBe(false)
  for (const error of [new OnceError('INVALID_ARGUMENT', { message: 'no' }), new Error('a bug')])
    expect(await register(error)).toEqual({ is: 'thrown', error })
})

test('a numbered request is answered with the window of sessions, and a key with that of keys', async () => {
  const sessions = newSessions()
  const { epoch } = await sessions.register('/till')
  const exchange = exchangeOf(newOnce(), { sessions })
  const numbers = {
    'idempotency-session': 'till',
    'idempotency-epoch': `${epoch}`,
    'idempotency-sequence': '1',
    'idempotency-acknowledged': '0',
  }
  const numbered = await exchange.handle(asked({ keyLines: [], headers: numbers }), answering())
  expect(numbered).toEqual({ is: 'handler', headers: [['Idempotency-Window', '60']] })
  const keyed = await exchange.handle(asked(), answering())
  expect(keyed).toEqual({ is: 'handler', headers: [['Idempotency-Window', '86400']] })
  const both = await exchange.handle(asked({ headers: numbers }), answering())
  expect(problemOf(both).code).toBe('idempotency-session-and-key')
})

test.each([
  [{}, 'replayed', 0],
  [{ version: 1 }, 'replayed', 0],
  [{ version: 2 }, 'replayed', 1],
  [{ version: 2, onOlderVersion: 'refuse' }, 'idempotency-key-expired', 0],
  [{ version: 1, onOlderVersion: 'refuse' }, 'replayed', 0],
] as const)('what version 1 stored is for %j: %s, upgraded %i times', async (options, expected, times) => {
  const once = newOnce()
  const upgrade = vi.fn(async (response: Answer, _version: number) => ({ ...response, status: 299 }))
  await exchangeOf(once, { version: 1 }).handle(asked(), answering())
  const delivery = await exchangeOf(once, { upgrade, ...options }).handle(asked(), answering())
  if (expected !== 'replayed') expect(problemOf(delivery)).toMatchObject({ status: 410, code: expected })
  else expect(delivery).toMatchObject({ is: 'answer', answer: { status: times === 1 ? 299 : 201 } })
  expect(upgrade.mock.calls.map(([response, version]) => [response.status, version])).toEqual(
    times === 1 ? [[201, 1]] : [],
  )
  const without = await exchangeOf(once, { version: 9 }).handle(asked(), answering())
  expect(without).toMatchObject({ is: 'answer', answer: { status: 201, body: created.body } })
})

test('an upgrade that fails, and a stored value that is no answer, are 500 and run nothing', async () => {
  const once = newOnce()
  await exchangeOf(once).handle(asked(), answering())
  const upgrade = (): never => {
    throw new Error('no way')
  }
  const run = answering()
  const delivery = await exchangeOf(once, { version: 1, upgrade }).handle(asked(), run)
  expect(problemOf(delivery)).toMatchObject({ status: 500, code: 'idempotency-outcome-unreadable' })
  expect(run).not.toHaveBeenCalled()
})

test('a stream is forwarded, and its retry is told that it was not stored', async () => {
  const exchange = exchangeOf(newOnce())
  const run = vi.fn(async (): Promise<Produced> => ({ is: 'stream', status: 200 }))
  expect(await exchange.handle(asked(), run)).toEqual({ is: 'handler', headers: [['Idempotency-Window', '86400']] })
  expect(problemOf(await exchange.handle(asked(), run)).code).toBe('idempotency-response-not-stored')
  expect(run).toHaveBeenCalledTimes(1)
})

test('what a handler throws is thrown on after its key is free, and an answer in its place has the window', async () => {
  const error = new Error('a bug')
  const run = vi.fn(async (): Promise<Produced> => ({ is: 'thrown', error }))
  const exchange = exchangeOf(newOnce())
  expect(await exchange.handle(asked(), run)).toEqual({ is: 'thrown', error })
  expect(await exchange.handle(asked(), answering())).toMatchObject({ is: 'handler' })
  const began = exchangeOf(newOnce(), { errorPolicy: 'began' })
  const instead = { is: 'answer', answer: { status: 500 } }
  expect(await began.handle(asked(), run)).toMatchObject(instead)
  const replayed = (await began.handle(asked(), run)) as { answer: Answer }
  expect(replayed).toMatchObject(instead)
  expect(replayed.answer.headers).toEqual([
    ['Content-Type', 'application/problem+json'],
    ['Idempotency-Window', '86400'],
    ['Idempotent-Replayed', 'true'],
  ])
  expect(run).toHaveBeenCalledTimes(2)
})

const folder = mkdtempSync(join(tmpdir(), 'onceonly-exchange-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

test('in a transaction the handler has it, a 4xx is kept without its writes, and a 5xx keeps nothing', async () => {
  const database = new DatabaseSync(join(folder, 'transaction.db'))
  const store = sqliteStore({ path: join(folder, 'transaction.db') })
  const once = createOnce({ store, scope: 'shop', sweepEveryMs: false })
  const exchange = exchangeOf(once, { transaction: true })
  const effects = (): unknown => database.prepare('select name from effects order by name').all()
  database.exec('create table effects (name text)')
  const writing = (status: number): { run: (context: { tx: unknown }) => Promise<Produced>; runs: () => number } => {
    let runs = 0
    const run = async ({ tx }: { tx: unknown }): Promise<Produced> => {
      ;(tx as DatabaseSync).prepare('insert into effects values (?)').run(`${status}-${++runs}`)
      return { is: 'answer', answer: { ...created, status } }
    }
    return { run, runs: () => runs }
  }
  for (const [status, runs, replays] of [
    [201, 1, true],
    [402, 1, true],
    [500, 2, false],
  ] as const) {
    const handler = writing(status)
    const keyLines = [`k${status}`]
    expect(await exchange.handle(asked({ keyLines }), handler.run)).toMatchObject({ is: 'handler' })
    const again = await exchange.handle(asked({ keyLines }), handler.run)
    expect([again.is, handler.runs()]).toEqual([replays ? 'answer' : 'handler', runs])
    if (again.is === 'answer') expect(again.answer.headers).toContainEqual(['Idempotent-Replayed', 'true'])
  }
  expect(effects()).toEqual([{ name: '201-1' }])
  expect(problemOf(await exchange.handle(asked({ keyLines: [] }), writing(201).run)).code).toBe(
    'idempotency-key-missing',
  )
  await once.close()
  database.close()
  store.close()
})

test('in a session the handler has the transaction only where it asked for one', async () => {
  const store = sqliteStore({ path: join(folder, 'sessions.db') })
  const once = createOnce({ store, scope: 'shop', sweepEveryMs: false })
  const sessions = createSessions({ store, scope: 'tills' })
  await sessions.migrate()
  const { epoch } = await sessions.register('/till')
  const headers = (sequence: number): Record<string, string> => ({
    'idempotency-session': 'till',
    'idempotency-epoch': `${epoch}`,
    'idempotency-sequence': `${sequence}`,
    'idempotency-acknowledged': '0',
  })
  const seen: boolean[] = []
  const run = async ({ tx }: { tx: unknown }): Promise<Produced> => {
    seen.push(tx !== undefined)
    return { is: 'answer', answer: created }
  }
  for (const [sequence, transaction] of [
    [1, true],
    [2, false],
  ] as const)
    await exchangeOf(once, { sessions, transaction }).handle(asked({ keyLines: [], headers: headers(sequence) }), run)
  expect(seen).toEqual([true, false])
  const another = asked({ keyLines: [], headers: headers(1), target: '/other' })
  expect(problemOf(await exchangeOf(once, { sessions }).handle(another, run))).toMatchObject({
    status: 422,
    code: 'idempotency-sequence-reused',
  })
  await once.close()
  store.close()
})

test('without sessions a number is refused by name, and a key protects whatever else there is', async () => {
  const exchange = exchangeOf(newOnce())
  const headers = { 'idempotency-sequence': '1' }
  const lonely = await exchange.handle(asked({ keyLines: [], headers }), answering())
  expect(problemOf(lonely)).toMatchObject({ status: 400, code: 'idempotency-sessions-not-offered' })
  expect(await exchange.handle(asked({ headers }), answering())).toMatchObject({ is: 'handler' })
})

test('sessions are managed at their path only, by a caller with a tenant', async () => {
  const tenant = vi.fn(async (): Promise<string | undefined> => 'acme')
  const sessions = newSessions()
  const exchange = exchangeOf(newOnce(), { tenant, sessions })
  expect([exchange.managesSession('POST', path), exchange.managesSession('POST', '/orders')]).toEqual([true, false])
  const body = (): Body => ({ is: 'bytes', bytes: Buffer.from('{"client":"till"}') })
  const register = asked({ target: path, keyLines: [], body })
  expect(await exchange.handle(register, answering())).toMatchObject({ is: 'answer', answer: { status: 201 } })
  expect(await sessions.show('acme/till')).toMatchObject({ session: 'acme/till' })
  tenant.mockResolvedValueOnce(undefined)
  const missing = await exchange.handle(register, answering())
  expect(problemOf(missing).code).toBe('idempotency-scope-missing')
  const invalid = asked({ target: path, keyLines: [], body: () => ({ is: 'bytes', bytes: Buffer.from('[]') }) })
  expect(problemOf(await exchange.handle(invalid, answering())).code).toBe('idempotency-session-invalid')
})
