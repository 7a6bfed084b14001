// What a handler did becomes what `once` is told, without a framework: bytes to store, or an error that says what becomes of the key.

import { expect, test } from 'vitest'
import type { Op } from '../../core/call.ts'
import { FinalError, InDoubtError, NotBegunError } from '../../core/errors.ts'
import { createOnce } from '../../core/once.ts'
import { memoryStore } from '../../stores/memory.ts'
import type { Body, Produced } from '../exchange.ts'
import { DigestError } from './content-digest.ts'
import type { IdempotencyContext } from './context.ts'
import { readHttpOptions } from './options.ts'
import type { HttpOptions, HttpSettings } from './options.ts'
import { decodeStored, encodeAnswer, encodeNotStored } from './stored-response.ts'
import type { Answer } from './stored-response.ts'
import { bytesOfFinal, createAttempt, internalError, tellOnce } from './verdict.ts'
import type { RequestAttempt } from './verdict.ts'

const once = createOnce({ store: memoryStore(), scope: 's', sweepEveryMs: false })
const settingsOf = (options: Partial<HttpOptions> = {}): HttpSettings<never> => {
  // A store without transactions refuses the option, and nothing here asks the store.
  const { transaction = false, ...others } = options
  return { ...readHttpOptions<never>(once, { tenant: 'shared', ...others } as HttpOptions<never>), transaction }
}

const key = { scope: 's', id: 'k' }
const { signal } = new AbortController()
const op: Op = { key, attempt: 1, token: 't', fence: 1, signal, keyFor: () => 'derived' }
const here: Body = { is: 'bytes', bytes: new Uint8Array() }
const claimed = (holds: boolean): Body => ({ is: 'claimed', sha256: 'x', verify: () => Promise.resolve(holds) })
const numbered = { session: 'till', epoch: 1, sequence: 1, acknowledged: 0 }
const answerOf = (status: number): Answer => ({ status, headers: [], body: Buffer.from(`${status}`) })

interface Told {
  readonly attempt: RequestAttempt
  readonly stored: Uint8Array | undefined
  readonly error: unknown
}

async function tell(
  produced: Produced,
  options: Partial<HttpOptions> = {},
  more: { body?: Body; say?: (context: IdempotencyContext) => void; tx?: unknown } = {},
): Promise<Told> {
  const attempt = createAttempt(key, undefined, more.body ?? here, (context) => {
    more.say?.(context)
    return Promise.resolve(produced)
  })
  return await settled(attempt, options, more.tx)
}

async function settled(attempt: RequestAttempt, options: Partial<HttpOptions>, tx?: unknown): Promise<Told> {
  try {
    return { attempt, stored: await tellOnce(settingsOf(options), attempt, op, tx), error: undefined }
  } catch (error) {
    return { attempt, stored: undefined, error }
  }
}

test('an answer is stored as it is, and the attempt knows what was produced', async () => {
  const produced = { is: 'answer', answer: answerOf(201) } as const
  const { attempt, stored } = await tell(produced)
  expect(stored).toEqual(encodeAnswer(answerOf(201), settingsOf()))
  expect(attempt).toMatchObject({
    key,
    produced,
    instead: undefined,
    thrown: undefined,
    choice: { verdict: undefined },
  })
})

test('the handler is given its transaction', async () => {
  const tx = {}
  let seen: unknown
  await tell({ is: 'answer', answer: answerOf(200) }, {}, { tx, say: (context) => (seen = context.tx) })
  expect(seen).toBe(tx)
})

test.each([
  [{ is: 'answer', answer: answerOf(500) }, {}, 'The answer (500) is not one to be stored.'],
  [{ is: 'answer', answer: answerOf(429) }, { errorPolicy: 'began' }, 'The answer (429) is not one to be stored.'],
  [
    { is: 'answer', answer: answerOf(400) },
    { errorPolicy: 'success-only' },
    'The answer (400) is not one to be stored.',
  ],
  [{ is: 'stream', status: 503 }, {}, 'The answer (503) is not one to be stored.'],
  [{ is: 'broken' }, {}, 'The answer (500) is not one to be stored.'],
] as const)('%j with %j leaves the key open', async (produced, options, message) => {
  const { attempt, error } = await tell(produced, options)
  expect(error).toEqual(new Error(message))
  expect(attempt).toMatchObject({ produced, instead: undefined, thrown: error })
})

test('a stream, and half an answer where every answer is stored, are kept as not stored', async () => {
  const notStored = encodeNotStored()
  expect((await tell({ is: 'stream', status: 200 })).stored).toEqual(notStored)
  expect((await tell({ is: 'broken' }, { errorPolicy: 'began' })).stored).toEqual(notStored)
})

test.each([
  ['release', 200, 'Error', 'The answer (200) is not one to be stored.'],
  ['notBegun', 200, 'NotBegunError', 'The handler said that it had not begun.'],
  ['inDoubt', 200, 'InDoubtError', 'The handler said that its effect may have taken place.'],
] as const)('%s of the handler overrules an answer of %i', async (say, status, name, message) => {
  const { attempt, error } = await tell(
    { is: 'answer', answer: answerOf(status) },
    {},
    { say: (context) => context[say]() },
  )
  expect(error).toMatchObject({ name, message })
  expect(attempt.thrown).toBe(error)
})

test('what a handler throws is told as it is, and an error of its own kind keeps its kind', async () => {
  const thrown = [new Error('a'), new FinalError('b'), new InDoubtError('c'), new NotBegunError('d'), 'no error']
  for (const error of thrown) {
    const told = await tell({ is: 'thrown', error })
    expect(told.error).toBe(error)
    expect(told.attempt).toMatchObject({ thrown: error, instead: undefined })
  }
})

test('with began a throw is a stored 500, unless the handler had not begun', async () => {
  const { attempt, stored } = await tell({ is: 'thrown', error: new Error('a') }, { errorPolicy: 'began' })
  expect(attempt.instead).toEqual(internalError())
  expect(stored).toEqual(encodeAnswer(internalError(), settingsOf()))
  const error = new NotBegunError('nothing was done')
  expect((await tell({ is: 'thrown', error }, { errorPolicy: 'began' })).error).toBe(error)
})

test('an answer to a throw is a problem document of 500', () => {
  const { status, headers, body } = internalError()
  expect([status, headers]).toEqual([500, [['Content-Type', 'application/problem+json']]])
  expect(JSON.parse(body.toString())).toEqual({ type: 'about:blank', title: 'Internal Server Error', status: 500 })
})

const mismatch = { status: 400, headers: expect.arrayContaining([['Cache-Control', 'no-store']]) as unknown[] }

test('a digest that does not hold forgets the key, whatever was answered, and one that holds is an answer', async () => {
  const answered = { is: 'answer', answer: answerOf(201) } as const
  for (const told of [
    await tell(answered, {}, { body: claimed(false) }),
    await tell({ is: 'thrown', error: new DigestError() }),
    await tell({ is: 'thrown', error: new DigestError() }, { errorPolicy: 'began' }),
  ]) {
    expect(told.error).toBeInstanceOf(NotBegunError)
    expect(told.attempt.thrown).toBe(told.error)
    expect(told.attempt.instead).toMatchObject(mismatch)
    expect(told.attempt.instead!.body.toString()).toContain('idempotency-digest-mismatch')
  }
  const { stored } = await tell(answered, {}, { body: claimed(true) })
  expect(stored).toEqual(encodeAnswer(answerOf(201), settingsOf()))
  const refused = await tell({ is: 'answer', answer: answerOf(500) }, {}, { body: claimed(true) })
  expect([refused.error, refused.attempt.instead]).toEqual([expect.any(Error), undefined])
})

test('what is no whole answer needs no digest: nothing of it is stored', async () => {
  const unasked: Body = { is: 'claimed', sha256: 'x', verify: () => expect.fail('asked for') }
  expect((await tell({ is: 'stream', status: 200 }, {}, { body: unasked })).stored).toEqual(encodeNotStored())
  expect((await tell({ is: 'broken' }, {}, { body: unasked })).error).toBeInstanceOf(Error)
})

test.each([
  [399, false],
  [400, true],
  [499, true],
])('in a transaction an answer of %i is a refusal without its writes: %s', async (status, isFinal) => {
  const { stored, error } = await tell({ is: 'answer', answer: answerOf(status) }, { transaction: true })
  expect([stored !== undefined, error instanceof FinalError]).toEqual([!isFinal, isFinal])
  const bytes = stored ?? bytesOfFinal(error)!
  expect(decodeStored(bytes)).toMatchObject({ is: 'answer', answer: { status, body: Buffer.from(`${status}`) } })
  expect((await tell({ is: 'answer', answer: answerOf(status) })).error).toBeUndefined()
})

test('only a refusal of ours has an answer in it', () => {
  expect(bytesOfFinal(new FinalError('a'))).toBeUndefined()
  expect(bytesOfFinal(new FinalError('a', { data: { http: 5 } }))).toBeUndefined()
  expect(bytesOfFinal(new FinalError('a', { data: null }))).toBeUndefined()
  expect(bytesOfFinal(Object.assign(new Error('a'), { data: { http: 'AQ==' } }))).toBeUndefined()
  expect(bytesOfFinal(new FinalError('a', { data: { http: 'AQ==' } }))).toEqual(Buffer.from([1]))
  expect(bytesOfFinal(undefined)).toBeUndefined()
})

test.each([
  [true, false, 'idempotency-transaction-conflict', 'key'],
  [true, true, 'idempotency-transaction-conflict', 'number'],
  [false, false, 'idempotency-outcome-unknown', 'key'],
  [false, true, 'idempotency-outcome-unknown', 'number'],
])(
  'a handler is not run a second time by a conflict (transaction %s, in a session %s)',
  async (transaction, inSession, code, spoken) => {
    let runs = 0
    const attempt = createAttempt(key, inSession ? numbered : undefined, here, () => {
      runs++
      return Promise.resolve({ is: 'answer', answer: answerOf(201) })
    })
    await settled(attempt, { transaction })
    const { stored, error } = await settled(attempt, { transaction })
    expect([runs, stored, attempt.thrown]).toEqual([1, undefined, error])
    expect(error).toEqual(new Error('The transaction was rolled back by a conflict with another one.'))
    const { detail, ...problem } = JSON.parse(attempt.instead!.body.toString()) as { code: string; detail: string }
    expect(problem.code).toBe(code)
    expect(/\bnumber\b/.test(detail)).toBe(spoken === 'number')
  },
)
