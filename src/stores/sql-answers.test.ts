// How the lines that PostgreSQL's and MySQL's functions return are read, what is asked again and for how long, and what the errors
// say about the effect. The servers themselves are in postgres/ and mysql/.

import { describe, expect, test, vi } from 'vitest'
import { countedBackoffs } from '../core/backoff.ts'
import { OnceError } from '../core/errors.ts'
import { key } from '../core/key.ts'
import { unavailable } from './failures.ts'
import { manualClock } from '../testing/manual-clock.ts'
import { request } from '../testing/store-contract.ts'
import {
  askForAdvance,
  askForClaim,
  askForWrite,
  claimWhileLocked,
  commitRefused,
  commitUnknown,
  conflictWithOthers,
  databaseCalls,
  endedByEffect,
  fencedOf,
  mendWhileLocked,
  openStep,
  partsOf,
  retried,
  schemaMissing,
  verdictOf,
  writtenBy,
} from './sql-answers.ts'

const subject = key('payments', '42')
const claim = { key: subject, token: 'a token', attempt: 1, fence: 1 }
const asked = request({ token: 'a token', leaseMs: 30_000 })

/** A server of nothing but a clock, whose errors say what could not be done. */
function server() {
  const clock = manualClock()
  const storeError = (cause: unknown, what: string, executed: 'no' | 'unknown'): OnceError =>
    cause instanceof OnceError ? cause : unavailable({ server: 'the server', what, executed, cause })
  return { clock, storeError }
}

/** Returns what is asked for, and how often it was asked. */
function answering(...answers: readonly (string | Error)[]) {
  let times = 0
  const ask = async (): Promise<string> => {
    const answer = answers[Math.min(times++, answers.length - 1)]!
    if (answer instanceof Error) throw answer
    return answer
  }
  return { ask, times: () => times }
}

async function thrownBy(work: Promise<unknown>): Promise<unknown> {
  return work.then(
    () => expect.fail('expected an error'),
    (error: unknown) => error,
  )
}

describe('the answer to a claim', () => {
  test.each([
    ['granted f 1 7', { is: 'granted', how: 'fresh', claim: { key: subject, token: 'a token', attempt: 1, fence: 7 } }],
    ['granted n 1 7', { is: 'granted', how: 'fresh', claim: { key: subject, token: 'a token', attempt: 1, fence: 7 } }],
    ['granted r 2 8', { is: 'granted', how: 'reopened', claim: { ...claim, attempt: 2, fence: 8 } }],
    ['granted t 3 9', { is: 'granted', how: 'taken-over', claim: { ...claim, attempt: 3, fence: 9 } }],
    ['settled 2 5 aGk=', { is: 'settled', attempt: 2, version: 5, outcome: new Uint8Array(Buffer.from('hi')) }],
    ['settled 2 5 ', { is: 'settled', attempt: 2, version: 5, outcome: new Uint8Array() }],
    ['busy 250', { is: 'busy', retryAfterMs: 250 }],
    ['held', { is: 'busy', retryAfterMs: 100 }],
    ['locked', { is: 'busy', retryAfterMs: 100 }],
    ['doubt 4', { is: 'doubt', attempt: 4 }],
    ['mismatch', { is: 'mismatch' }],
    ['expired', { is: 'expired' }],
  ])('%j is read', (answer, verdict) => {
    expect(verdictOf(subject, asked, answer)).toStrictEqual(verdict)
  })

  test('a key that a transaction holds is asked for again within a short lease', () => {
    expect(verdictOf(subject, { ...asked, leaseMs: 40 }, 'held')).toEqual({ is: 'busy', retryAfterMs: 40 })
  })

  test('a settled entry without an outcome cannot be read, and was not run', () => {
    expect(() => verdictOf(subject, asked, 'settled 2 5')).toThrow(
      expect.objectContaining({ code: 'OUTCOME_UNREADABLE', message: expect.stringContaining('payments/42') }),
    )
  })

  test('an answer that no function of ours gives is a bug that is told', () => {
    expect(() => verdictOf(subject, asked, 'perhaps')).toThrow('Bug! The server answered a claim with "perhaps".')
    expect(() => fencedOf('perhaps')).toThrow('Bug! The server answered a write with "perhaps".')
  })

  test.each([
    ['done', 'done'],
    ['cancelled', 'done'],
    ['lost', 'lost'],
    ['locked', 'locked'],
  ])('a write that is answered %s is %s', (answer, fenced) => expect(fencedOf(answer)).toBe(fenced))
})

describe('a row that another transaction has locked', () => {
  test('is asked for again, and a claim gets the answer of the moment when it is free', async () => {
    const { clock, storeError } = server()
    const { ask, times } = answering('locked', 'locked', 'granted f 1 7')
    const verdict = askForClaim({ clock, storeError }, subject, asked, ask)
    await clock.advance(1_000)
    expect(await verdict).toMatchObject({ is: 'granted', claim: { fence: 7 } })
    expect(times()).toBe(3)
  })

  test('is busy for a claim after a quarter of a second', async () => {
    const { clock, storeError } = server()
    const { ask, times } = answering('locked')
    const verdict = askForClaim({ clock, storeError }, subject, asked, ask)
    await clock.advance(300)
    expect(await verdict).toEqual({ is: 'busy', retryAfterMs: 100 })
    expect(times()).toBe(countedBackoffs.lockedClaim.triesMax)
    expect(clock.pending).toBe(0)
  })

  test('is waited for by a pause that grows, and not asked for without one', async () => {
    const { clock } = server()
    const { ask, times } = answering('locked')
    const answer = claimWhileLocked(clock, ask)
    await clock.advance(0.9)
    expect(times()).toBe(1)
    await clock.advance(1.1)
    expect(times()).toBe(2)
    await clock.advance(1.9)
    expect(times()).toBeLessThanOrEqual(3)
    await clock.advance(1_000)
    expect(await answer).toBe('locked')
  })

  test.each(['extend', 'settle', 'release'] as const)(
    '%s that stays locked says for how long, and that it may yet be written',
    async (verb) => {
      const { clock, storeError } = server()
      const { ask, times } = answering('locked')
      const thrown = thrownBy(askForWrite({ clock, storeError }, claim, verb, ask))
      await clock.advance(10_000)
      const seconds = expect.stringMatching(/^payments\/42 has been locked by another open transaction for [2-5] s\./)
      expect(await thrown).toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'unknown', message: seconds })
      expect(times()).toBe(countedBackoffs.lockedWrite.triesMax)
    },
  )

  test('a person who mends is told after half a second, and that nothing was done', async () => {
    const { clock } = server()
    const { ask, times } = answering('locked')
    const thrown = thrownBy(mendWhileLocked(clock, subject, ask))
    await clock.advance(1_200)
    const message = expect.stringContaining('payments/42 has been locked by another open transaction for 1 s.')
    expect(await thrown).toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'no', message })
    expect(times()).toBe(countedBackoffs.lockedMend.triesMax)
    expect(await mendWhileLocked(clock, subject, answering('open').ask)).toBe('open')
    expect(await mendWhileLocked(clock, subject, async () => undefined)).toBeUndefined()
  })
})

describe('a write', () => {
  test.each([
    ['done', 'done', 'done'],
    ['cancelled', 'done', 'cancelled'],
    ['lost', 'lost', 'lost'],
  ])('answered %s is %s for a key and %s for an operation', async (answer, ofKey, ofOperation) => {
    const { clock, storeError } = server()
    const { ask } = answering(answer)
    expect(await askForWrite({ clock, storeError }, claim, 'settle', ask)).toBe(ofKey)
    expect(await askForAdvance({ clock, storeError }, claim, ask)).toBe(ofOperation)
  })

  test.each([
    ['settle', (ask: () => Promise<string>) => askForWrite(server(), claim, 'settle', ask)],
    ['advance', (ask: () => Promise<string>) => askForAdvance(server(), claim, ask)],
  ] as const)('%s that the server did not answer may have been written', async (verb, write) => {
    expect(await thrownBy(write(answering(new Error('ECONNRESET')).ask))).toMatchObject({
      executed: 'unknown',
      message: `the server could not ${verb} payments/42: ECONNRESET. It may have done so all the same: look before you repeat it.`,
    })
  })

  test('and a claim that the server did not answer has run nothing', async () => {
    const failing = askForClaim(server(), subject, asked, answering(new Error('ECONNRESET')).ask)
    expect(await thrownBy(failing)).toMatchObject({
      code: 'STORE_UNAVAILABLE',
      executed: 'no',
      message: 'the server could not claim payments/42: ECONNRESET. The effect was not run. Retry.',
    })
  })
})

test.each([
  ['forget' as const, { keepMs: 0, tombstoneMs: 0, outcome: undefined }],
  [{ keepMs: 5 }, { keepMs: 5, tombstoneMs: 0, outcome: undefined }],
  [
    { resolve: new Uint8Array([1]), retention: { keepMs: 6, tombstoneMs: 7 } },
    { keepMs: 6, tombstoneMs: 7, outcome: new Uint8Array([1]) },
  ],
])('what a manual change writes: %j', (action, written) => expect(writtenBy(action)).toStrictEqual(written))

describe('work that others made fail', () => {
  test('runs again, and its result is the first that comes', async () => {
    const { clock } = server()
    const { ask, times } = answering(new Error('deadlock'), new Error('deadlock'), 'done')
    const result = retried(clock, () => true, ask)
    await clock.advance(0)
    expect(times()).toBe(1)
    await clock.advance(1_000)
    expect(await result).toBe('done')
    expect(times()).toBe(3)
  })

  test('is given up after its tries, with the last error, and no timer is left', async () => {
    const { clock } = server()
    const deadlock = new Error('deadlock')
    const { ask, times } = answering(deadlock)
    const thrown = thrownBy(retried(clock, () => true, ask))
    await clock.advance(1_000)
    expect(await thrown).toBe(deadlock)
    expect(times()).toBe(countedBackoffs.statement.triesMax)
    expect(clock.pending).toBe(0)
  })

  test('is not run again for an error that will not pass', async () => {
    const wrong = new Error('syntax error')
    const { ask, times } = answering(wrong)
    expect(await thrownBy(retried(manualClock(), (error) => error !== wrong, ask))).toBe(wrong)
    expect(times()).toBe(1)
  })
})

test.each([
  ['all of them fit', [4, 6], [[4, 6]]],
  ['the last one would not', [4, 6, 1], [[4, 6], [1]]],
  ['one is too long by itself', [11, 1], [[11], [1]]],
  ['one that is too long comes last', [1, 11], [[1], [11]]],
  ['there are none', [], [[]]],
  ['each part begins anew', [6, 6, 4, 6], [[6], [6, 4], [6]]],
])('calls are cut into messages of at most 10 in their order: %s', (_, lengths, parts) => {
  const cut = partsOf(
    lengths.map((length) => ({ length })),
    10,
  )
  expect(cut.map((part) => part.map(({ length }) => length))).toEqual(parts)
})

describe('a step that begins', () => {
  const opening = (isHeld: () => Promise<boolean>) => {
    const rollback = vi.fn(async () => {})
    const step = openStep(server(), claim, {
      connect: async () => 'a connection',
      isHeld,
      begun: (connection) => `a step on ${connection}`,
      rollback,
    })
    return { step, rollback }
  }

  test('keeps its connection while its claim holds', async () => {
    const { step, rollback } = opening(async () => true)
    expect(await step).toBe('a step on a connection')
    expect(rollback).not.toHaveBeenCalled()
  })

  test('gives its connection back when its claim is lost', async () => {
    const { step, rollback } = opening(async () => false)
    expect(await step).toBeUndefined()
    expect(rollback.mock.calls).toEqual([['a connection']])
  })

  test('gives its connection back when the server fails, and has run nothing', async () => {
    const { step, rollback } = opening(() => Promise.reject(new Error('ECONNRESET')))
    expect(await thrownBy(step)).toMatchObject({
      executed: 'no',
      message: expect.stringContaining('could not begin a step of payments/42: ECONNRESET'),
    })
    expect(rollback.mock.calls).toEqual([['a connection']])
  })
})

test.each<[error: OnceError, told: object]>([
  [conflictWithOthers('MySQL', 'commit', 1), { code: 'TRANSACTION_CONFLICT', executed: 'no', retryable: true }],
  [commitUnknown(subject, 1), { code: 'OUTCOME_UNKNOWN', executed: 'unknown', retryable: true }],
  [commitRefused(subject, 1, 'Why.'), { code: 'COMMIT_REFUSED', executed: 'no', retryable: false }],
  // A retry would run the effect beside what it has committed.
  [endedByEffect(subject, 1), { code: 'OUTCOME_UNKNOWN', executed: 'unknown', retryable: false }],
  [schemaMissing('No table.', 1), { code: 'SCHEMA_MISSING', executed: 'no', retryable: false }],
])('what an error says about the effect, with its cause: %s', (error, told) => {
  expect(error).toMatchObject({ ...told, cause: 1 })
})

describe('a database for tables beside the store', () => {
  function database(alone: () => Promise<readonly string[]>, isReady: () => Promise<unknown> = async () => {}) {
    const at = server()
    const calls = { ready: vi.fn(isReady), alone: vi.fn(alone), create: vi.fn(async () => {}) }
    const isConflict = (error: unknown): boolean => error instanceof Error && error.message === 'deadlock'
    const open = async (opened: { readonly id: string }) => ({ tx: opened.id }) as never
    return { ...databaseCalls({ ...at, ...calls, isConflict, open }), ...calls, clock: at.clock }
  }
  const statement = { text: 'select 1', values: [] } as never

  test('carries out a statement on a server that is fit, and again after a conflict', async () => {
    let times = 0
    const at = database(async () => {
      if (++times < 3) throw new Error('deadlock')
      return ['a row']
    })
    const rows = at.query(statement)
    await at.clock.advance(1_000)
    expect(await rows).toEqual(['a row'])
    expect(at.ready).toHaveBeenCalledTimes(1)
    expect(at.alone.mock.calls).toEqual([[statement], [statement], [statement]])
  })

  test('carries out nothing on a server that is not fit', async () => {
    const at = database(
      async () => [],
      () => Promise.reject(new Error('fsync is off')),
    )
    expect(await thrownBy(at.query(statement))).toMatchObject({
      executed: 'unknown',
      message: expect.stringContaining('could not read or write its messages: fsync is off'),
    })
    expect(await thrownBy(at.begin(subject))).toMatchObject({
      executed: 'no',
      message: expect.stringContaining('could not begin the transaction for payments/42: fsync is off'),
    })
    expect(at.alone).not.toHaveBeenCalled()
  })

  test('opens a transaction, and creates tables', async () => {
    const at = database(async () => [])
    expect(await at.begin(subject)).toEqual({ tx: '42' })
    expect(at.ready).toHaveBeenCalledTimes(1)
    await at.migrate(['create table a'])
    expect(at.create.mock.calls).toEqual([[['create table a']]])
    at.create.mockRejectedValueOnce(new Error('no rights'))
    expect(await thrownBy(at.migrate([]))).toMatchObject({
      executed: 'no',
      message: expect.stringContaining('could not migrate: no rights'),
    })
  })
})
