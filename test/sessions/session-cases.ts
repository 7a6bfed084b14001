// What sessions promise on every database. Each case is a function of a subject, so that sessions which are wrong on purpose can be given
// to it (broken-sessions.test.ts). Refusals are compared as values: what is wrong fails by an assertion.
import { isDeepStrictEqual } from 'node:util'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { key } from '../../src/core/key.ts'
import { FinalError, OnceError } from '../../src/index.ts'
import { sessionsByHand } from '../../src/sessions/sessions.ts'
import type { ClientSession, ScopedSession, SessionRequest, Sessions } from '../../src/sessions/sessions.ts'
import { eventually } from '../messages/eventually.ts'
import { sessionSubject } from './session-subject.ts'
import type { SessionServer, SessionsGround, SessionSubject } from './session-subject.ts'

export type SessionCase = (subject: SessionSubject) => Promise<void>

type Asking = Partial<SessionRequest> & { readonly text?: string }

// An answer as 'value', 'value again' for a replay, the message of a failure, or the code of a refusal.
async function told(asked: Promise<{ readonly value: unknown; readonly replayed: boolean }>): Promise<string> {
  try {
    const { value, replayed } = await asked
    return replayed ? `${String(value)} again` : String(value)
  } catch (error) {
    return error instanceof OnceError ? error.code : (error as Error).message
  }
}

// One effect, which is named by what was asked, and answers with that name.
async function ask(
  server: SessionServer,
  session: ClientSession,
  sequence: number,
  asking: Asking = {},
): Promise<string> {
  const { text = `request ${sequence}`, ...rest } = asking
  const request = { session: session.session, epoch: session.epoch, sequence, fingerprint: text, ...rest }
  return told(
    server.sessions.apply(request, async (tx) => {
      await server.effect(tx, text)
      return text
    }),
  )
}

// Begins an effect that ends when it is told to.
function begin(
  server: SessionServer,
  session: ClientSession,
  sequence: number,
): { readonly began: Promise<void>; end(): void; readonly told: Promise<string> } {
  const began = Promise.withResolvers<void>()
  const ending = Promise.withResolvers<void>()
  const text = `request ${sequence}`
  const { session: name, epoch } = session
  const answer = told(
    server.sessions.apply({ session: name, epoch, sequence, fingerprint: text }, async (tx) => {
      await server.effect(tx, text)
      began.resolve()
      await ending.promise
      return text
    }),
  )
  const refused = answer.then((what) => Promise.reject(new Error(`the effect was not begun: ${what}`)))
  refused.catch(() => {})
  return { began: Promise.race([began.promise, refused]), end: ending.resolve, told: answer }
}

const code = async (asked: Promise<unknown>): Promise<string> =>
  told(asked.then((value) => ({ value: value === undefined ? 'done' : value, replayed: false })))

// The database may need a moment to notice that the one who had the request is gone.
const askUntilFree = (server: SessionServer, session: ClientSession, sequence: number): Promise<string> =>
  eventually('the request is free', async () => {
    const answer = await ask(server, session, sequence)
    return answer === 'IN_FLIGHT' ? undefined : answer
  })

const untilExpired = (sessions: Sessions, { session }: ClientSession): Promise<unknown> =>
  eventually('the session is expired', async () => (await sessions.show(session))?.state === 'expired')

// The store's clock has moved on when another client registers with a later lease.
const clockAfter = (sessions: Sessions, leaseUntilMs: number): Promise<unknown> =>
  eventually('the clock of the store moves', async () => {
    await sessions.register('till-8')
    return (await sessions.show('till-8'))!.leaseUntilMs > leaseUntilMs
  })

// A failure of the server: the number stays without an answer.
const fail = ({ sessions }: SessionServer, session: ClientSession, sequence: number): Promise<string> => {
  const request = { session: session.session, epoch: session.epoch, sequence }
  return told(sessions.apply(request, () => Promise.reject(new Error('no printer'))))
}

const stored = async (sessions: Sessions, { session }: ClientSession): Promise<number | undefined> =>
  (await sessions.show(session))?.requests

export const sessionCases: Readonly<Record<string, SessionCase>> = {
  async 'a request that comes again is given its stored answer, whichever process gets it'(subject) {
    const [first, second] = [await subject.server(), await subject.server()]
    const session = await first.sessions.register('till-7')
    expect(await ask(first, session, 1)).toBe('request 1')
    expect(await ask(second, session, 2)).toBe('request 2')
    for (const server of [first, second]) {
      expect(await ask(server, session, 1)).toBe('request 1 again')
      expect(await ask(server, session, 2)).toBe('request 2 again')
    }
    expect(await subject.effects()).toEqual(['request 1', 'request 2'])
  },

  async 'of many deliveries of one request at once, through two processes, one has its effect'(subject) {
    // Far above what twenty effects take: none of them is refused while it waits.
    const waitMs = 25_000
    const servers = [await subject.server({ waitMs }), await subject.server({ waitMs })]
    const session = await servers[0]!.sessions.register('till-7')
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_value, index) => ask(servers[index % 2]!, session, 1)),
    )
    expect(answers.filter((answer) => answer === 'request 1')).toHaveLength(1)
    expect(new Set(answers)).toEqual(new Set(['request 1', 'request 1 again']))
    expect(await subject.effects()).toEqual(['request 1'])
  },

  async 'several requests of one client are in flight at once, and end in any order'(subject) {
    const server = await subject.server({ waitMs: 0 })
    const session = await server.sessions.register('till-7')
    const first = begin(server, session, 1)
    await first.began
    if (!subject.isSerial) {
      expect(await ask(server, session, 3)).toBe('request 3')
      expect(await ask(server, session, 1)).toBe('IN_FLIGHT')
      const second = begin(server, session, 2)
      await second.began
      second.end()
      expect(await second.told).toBe('request 2')
    }
    first.end()
    expect(await first.told).toBe('request 1')
    const answers = await Promise.all([4, 5, 6, 7].map((sequence) => ask(server, session, sequence)))
    expect(answers).toEqual(['request 4', 'request 5', 'request 6', 'request 7'])
    expect(await ask(server, session, 1)).toBe('request 1 again')
  },

  async 'a server failure is no answer: its effect is not kept where the database can, and the retry runs it'(subject) {
    const server = await subject.server()
    const session = await server.sessions.register('till-7')
    const request = { ...session, sequence: 1, fingerprint: 'request 1' }
    const failing = server.sessions.apply(request, async (tx) => {
      if (server.sessions.guarantee === 'one-transaction') await server.effect(tx, 'failed')
      throw new Error('no printer')
    })
    expect(await told(failing)).toBe('no printer')
    expect(await ask(server, session, 1)).toBe('request 1')
    expect(await ask(server, session, 1)).toBe('request 1 again')
    expect(await subject.effects()).toEqual(['request 1'])
  },

  async 'a business failure is the answer, and is given again'(subject) {
    const [first, second] = [await subject.server(), await subject.server()]
    const session = await first.sessions.register('till-7')
    const request = { ...session, sequence: 1, fingerprint: 'request 1' }
    const failing = first.sessions.apply(request, async (tx) => {
      if (first.sessions.guarantee === 'one-transaction') await first.effect(tx, 'refused')
      throw new FinalError('card declined', { data: { reason: 'funds' } })
    })
    expect(await told(failing)).toBe('card declined')
    expect(await ask(second, session, 1)).toBe('card declined')
    const again = second.sessions.apply(request, () => 'ran')
    await expect(again).rejects.toMatchObject({ name: 'FinalError', data: { reason: 'funds' } })
    expect(await subject.effects()).toEqual([])
  },

  async 'answers are replayed as they were given: bytes, nothing, null, lists'(subject) {
    const server = await subject.server()
    const session = await server.sessions.register('till-7')
    const values: unknown[] = [new Uint8Array([0, 255, 10]), undefined, null, [1, { a: 'é' }], '']
    for (const [index, value] of values.entries()) {
      const request = { ...session, sequence: index + 1 }
      const first = await server.sessions.apply(request, () => value as string)
      const again = await server.sessions.apply(request, () => 'ran')
      expect([first.replayed, again.replayed]).toEqual([false, true])
      expect(again.value).toEqual(value)
      expect(first.value).toEqual(value)
    }
  },

  async 'the same number with another content is a mismatch in every state, and runs and changes nothing'(subject) {
    const server = await subject.server()
    const session = await server.sessions.register('till-7')
    const request = { ...session, sequence: 2, fingerprint: 'request 2' }
    await code(server.sessions.apply(request, () => Promise.reject(new Error('no printer'))))
    expect(await ask(server, session, 2, { text: 'other' })).toBe('MISMATCH')
    expect(await ask(server, session, 2)).toBe('request 2')
    expect(await ask(server, session, 2, { text: 'other', acknowledged: 1 })).toBe('MISMATCH')
    expect((await server.sessions.show('till-7'))?.floor).toBe(0)
    expect(await ask(server, session, 2)).toBe('request 2 again')
    expect(await subject.effects()).toEqual(['request 2'])
  },

  async 'registering again raises the epoch and fences the old one'(subject) {
    const [first, second] = [await subject.server(), await subject.server()]
    const old = await first.sessions.register('till-7')
    expect(await ask(first, old, 1)).toBe('request 1')
    const session = await second.sessions.register('till-7')
    expect(session.epoch).toBeGreaterThan(old.epoch)
    expect(await ask(first, old, 1)).toBe('FENCED')
    expect(await ask(first, old, 2)).toBe('FENCED')
    expect(await code(first.sessions.keepAlive(old))).toBe('FENCED')
    expect(await code(first.sessions.close(old))).toBe('FENCED')
    expect(await ask(second, session, 1)).toBe('request 1')
    expect(await stored(second.sessions, session)).toBe(1)
    expect(await subject.effects()).toEqual(['request 1', 'request 1'])
  },

  async 'a new epoch begins with nothing acknowledged'(subject) {
    const server = await subject.server({ window: 2, strict: true })
    const old = await server.sessions.register('till-7')
    expect(await ask(server, old, 1)).toBe('request 1')
    expect(await ask(server, old, 2, { acknowledged: 1 })).toBe('request 2')
    const session = await server.sessions.register('till-7')
    expect(await server.sessions.show('till-7')).toMatchObject({ floor: 0, last: 0, requests: 0 })
    expect(await ask(server, session, 2)).toBe('GAP')
    expect(await ask(server, session, 1)).toBe('request 1')
  },

  async 'an effect that runs while its client registers again has no answer, and is rolled back where the database can'(
    subject,
  ) {
    const [first, second] = [await subject.server(), await subject.server()]
    const old = await first.sessions.register('till-7')
    const running = begin(first, old, 1)
    await running.began
    // One writer: the registration waits for the effect, and comes after it.
    const registered = second.sessions.register('till-7')
    if (!subject.isSerial) await registered
    running.end()
    const session = await registered
    const { guarantee } = first.sessions
    expect(await running.told).toBe(subject.isSerial ? 'request 1' : 'FENCED')
    const isKept = subject.isSerial || guarantee === 'claim-and-settle'
    expect(await subject.effects()).toEqual(isKept ? ['request 1'] : [])
    expect(await ask(second, session, 1)).toBe('request 1')
    expect(await stored(second.sessions, session)).toBe(1)
  },

  async 'numbers of a client that lost its memory never meet those of before (request numbers colliding after a crash)'(
    subject,
  ) {
    const server = await subject.server()
    const before = await server.sessions.register('till-7')
    expect(await ask(server, before, 1, { text: 'sell tea' })).toBe('sell tea')
    // The client comes back, has forgotten its counter, and begins at 1 with another request.
    const session = await server.sessions.register('till-7')
    expect(await ask(server, session, 1, { text: 'sell coffee' })).toBe('sell coffee')
    expect(await ask(server, before, 1, { text: 'sell tea' })).toBe('FENCED')
    expect(await ask(server, session, 1, { text: 'sell coffee' })).toBe('sell coffee again')
    expect(await subject.effects()).toEqual(['sell tea', 'sell coffee'])
  },

  async 'a request whose process died is not locked out, and the dead one can answer nothing (lock-out of a client)'(
    subject,
  ) {
    const first = await subject.server({ attemptLeaseMs: 300 })
    const second = await subject.server({ attemptLeaseMs: 30_000, waitMs: 1_000 })
    const session = await first.sessions.register('till-7')
    const dying = begin(first, session, 1)
    await dying.began
    await first.die()
    expect(await askUntilFree(second, session, 1)).toBe('request 1')
    // It may never be heard of again. It is not waited for.
    const said: string[] = []
    void dying.told.then((answer) => said.push(answer))
    dying.end()
    for (let times = 0; times < 3; times++) expect(await ask(second, session, 1)).toBe('request 1 again')
    expect(said).not.toContain('request 1')
    const times = first.sessions.guarantee === 'one-transaction' ? 1 : 2
    expect(await subject.effects()).toEqual(Array.from({ length: times }, () => 'request 1'))
  },

  async 'an attempt without a heartbeat is taken over and stores nothing, and a transaction needs no heartbeat'(
    subject,
  ) {
    const first = await subject.server({ attemptLeaseMs: 300 })
    const second = await subject.server({ attemptLeaseMs: 30_000, waitMs: 0 })
    const session = await first.sessions.register('till-7')
    const stalled = begin(first, session, 1)
    await stalled.began
    first.stall()
    const isTransaction = first.sessions.guarantee === 'one-transaction'
    if (!isTransaction) expect(await askUntilFree(second, session, 1)).toBe('request 1')
    else if (!subject.isSerial) expect(await ask(second, session, 1)).toBe('IN_FLIGHT')
    stalled.end()
    expect(await stalled.told).toBe(isTransaction ? 'request 1' : 'CLAIM_LOST')
    expect(await ask(second, session, 1)).toBe('request 1 again')
  },

  async 'what the client has acknowledged is let go, and never runs again'(subject) {
    const server = await subject.server({ window: 4 })
    const session = await server.sessions.register('till-7')
    for (let sequence = 1; sequence <= 20; sequence++) {
      expect(await ask(server, session, sequence, { acknowledged: Math.max(0, sequence - 3) })).toBe(
        `request ${sequence}`,
      )
      expect(await stored(server.sessions, session)).toBeLessThanOrEqual(4)
    }
    expect(await stored(server.sessions, session)).toBe(3)
    for (const late of [1, 16, 17]) expect(await ask(server, session, late)).toBe('FORGOTTEN')
    expect(await ask(server, session, 18)).toBe('request 18 again')
    // A late duplicate says less than is known by now.
    expect(await ask(server, session, 19, { acknowledged: 2 })).toBe('request 19 again')
    expect(await server.sessions.show('till-7')).toMatchObject({ floor: 17, last: 20, requests: 3, state: 'open' })
    expect(await subject.effects()).toHaveLength(20)
  },

  async 'beyond the window nothing runs, until answers are acknowledged'(subject) {
    const server = await subject.server({ window: 3 })
    const session = await server.sessions.register('till-7')
    expect(await ask(server, session, 4)).toBe('WINDOW_EXCEEDED')
    for (const sequence of [1, 2, 3]) expect(await ask(server, session, sequence)).toBe(`request ${sequence}`)
    expect(await ask(server, session, 4)).toBe('WINDOW_EXCEEDED')
    expect(await ask(server, session, Number.MAX_SAFE_INTEGER)).toBe('WINDOW_EXCEEDED')
    expect(await ask(server, session, 4, { acknowledged: 1 })).toBe('request 4')
    expect(await ask(server, session, 5)).toBe('WINDOW_EXCEEDED')
    expect(await subject.effects()).toEqual(['request 1', 'request 2', 'request 3', 'request 4'])
  },

  async 'a strict session refuses a gap, and goes on once it is filled'(subject) {
    const server = await subject.server({ strict: true })
    const session = await server.sessions.register('till-7')
    expect(await ask(server, session, 2)).toBe('GAP')
    expect(await ask(server, session, 1)).toBe('request 1')
    expect(await ask(server, session, 3, { acknowledged: 1 })).toBe('GAP')
    expect(await server.sessions.show('till-7')).toMatchObject({ floor: 0, last: 1 })
    expect(await ask(server, session, 2)).toBe('request 2')
    expect(await ask(server, session, 3, { acknowledged: 1 })).toBe('request 3')
    expect(await subject.effects()).toEqual(['request 1', 'request 2', 'request 3'])
  },

  async 'a session that is not strict takes numbers in any order'(subject) {
    const server = await subject.server()
    const session = await server.sessions.register('till-7')
    for (const sequence of [3, 1, 7, 2]) expect(await ask(server, session, sequence)).toBe(`request ${sequence}`)
    expect(await ask(server, session, 500, { acknowledged: 499 })).toBe('request 500')
    expect(await stored(server.sessions, session)).toBe(1)
    expect(await ask(server, session, 7)).toBe('FORGOTTEN')
  },

  async 'the rules have an order: expired, fenced, forgotten, mismatch, replay, window, gap'(subject) {
    const server = await subject.server({ window: 2, strict: true })
    const old = await server.sessions.register('till-7')
    const session = await server.sessions.register('till-7')
    expect(await ask(server, session, 1)).toBe('request 1')
    expect(await ask(server, session, 2, { acknowledged: 1 })).toBe('request 2')
    expect(await ask(server, old, 1, { text: 'other' })).toBe('FENCED')
    expect(await ask(server, session, 1, { text: 'other' })).toBe('FORGOTTEN')
    expect(await ask(server, session, 2, { text: 'other' })).toBe('MISMATCH')
    expect(await ask(server, session, 2)).toBe('request 2 again')
    expect(await ask(server, session, 9)).toBe('WINDOW_EXCEEDED')
    expect(await ask(server, session, 4, { acknowledged: 2 })).toBe('GAP')
    await server.sessions.close(session)
    expect(await ask(server, old, 1)).toBe('SESSION_EXPIRED')
    expect(await ask(server, session, 2)).toBe('SESSION_EXPIRED')
  },

  async 'a session that nobody registered is refused, and none is made up'(subject) {
    const server = await subject.server()
    expect(await ask(server, { session: 'ghost', epoch: 1 }, 1)).toBe('SESSION_EXPIRED')
    const session = await server.sessions.register('till-7')
    expect(await ask(server, { ...session, epoch: session.epoch + 1 }, 1)).toBe('SESSION_EXPIRED')
    expect(await ask(server, { ...session, session: 'till-8' }, 1)).toBe('SESSION_EXPIRED')
    expect((await server.sessions.list()).map((each) => each.session)).toEqual(['till-7'])
    expect(await subject.effects()).toEqual([])
  },

  async 'a session that was silent for its lease is expired: a late request is refused and never runs'(subject) {
    const server = await subject.server({ leaseMs: 200 })
    const session = await server.sessions.register('till-7')
    const first = await ask(server, session, 1)
    await untilExpired(server.sessions, session)
    expect(await ask(server, session, 1)).toBe('SESSION_EXPIRED')
    expect(await ask(server, session, 2)).toBe('SESSION_EXPIRED')
    expect(await code(server.sessions.keepAlive(session))).toBe('SESSION_EXPIRED')
    const next = await server.sessions.register('till-7')
    expect(next.epoch).toBeGreaterThan(session.epoch)
    expect(await ask(server, session, 2)).not.toBe('request 2')
    // At a high load the lease may have ended before the first request came.
    expect(await subject.effects()).toEqual(first === 'SESSION_EXPIRED' ? [] : ['request 1'])
  },

  async 'every request and every keep-alive keeps the session alive'(subject) {
    const server = await subject.server()
    const session = await server.sessions.register('till-7')
    const until = async (): Promise<number> => (await server.sessions.show('till-7'))!.leaseUntilMs
    const calls: readonly (() => Promise<unknown>)[] = [
      () => ask(server, session, 1),
      () => ask(server, session, 1), // a replay
      () => server.sessions.keepAlive(session),
    ]
    for (const call of calls) {
      const before = await until()
      await clockAfter(server.sessions, before)
      await call()
      expect(await until()).toBeGreaterThan(before)
    }
  },

  async 'what ended sessions left is swept, and a forgotten client is as unknown as ever'(subject) {
    const server = await subject.server({ leaseMs: 100, tombstoneMs: 200 })
    const other = await subject.server()
    const lasting = await other.sessions.register('till-8')
    expect(await ask(other, lasting, 1)).toBe('request 1')
    const session = await server.sessions.register('till-7')
    await ask(server, session, 1, { text: 'of the one that ends' })
    await eventually('it is forgotten', async () => {
      await server.sessions.sweep()
      return (await server.sessions.show('till-7')) === undefined
    })
    await server.sessions.sweep()
    expect(await server.sessions.sweep()).toBe(0)
    expect(await ask(server, session, 1, { text: 'of the one that ends' })).toBe('SESSION_EXPIRED')
    expect(await ask(other, lasting, 1)).toBe('request 1 again')
    const next = await other.sessions.register('till-7')
    expect(next.epoch).toBeGreaterThan(session.epoch)
    expect(await ask(other, session, 2)).toBe('FENCED')
  },

  async 'a closed session runs nothing, and what was in flight has no answer'(subject) {
    const [first, second] = [await subject.server(), await subject.server()]
    const session = await first.sessions.register('till-7')
    expect(await ask(first, session, 1)).toBe('request 1')
    const running = begin(first, session, 2)
    await running.began
    const closed = second.sessions.close(session)
    if (!subject.isSerial) await closed
    running.end()
    await closed
    const isRolledBack = !subject.isSerial && first.sessions.guarantee === 'one-transaction'
    expect(await running.told).toBe(subject.isSerial ? 'request 2' : 'SESSION_EXPIRED')
    expect(await ask(second, session, 1)).toBe('SESSION_EXPIRED')
    expect(await ask(second, session, 3)).toBe('SESSION_EXPIRED')
    expect(await subject.effects()).toEqual(isRolledBack ? ['request 1'] : ['request 1', 'request 2'])
    expect(await second.sessions.show('till-7')).toMatchObject({ state: 'closed', requests: 0 })
  },

  async 'clients and services are told apart byte for byte'(subject) {
    const [server, other] = [await subject.server(), await subject.server({ scope: 'another service' })]
    const names = ['till', 'Till', 'till ', 'tıll', 'till/1/1', 'ti%ll', 'é', 'e\u0301']
    for (const name of names) {
      const session = await server.sessions.register(name)
      expect(await ask(server, session, 1, { text: name })).toBe(name)
    }
    expect(await ask(other, { session: 'till', epoch: 1 }, 1)).toBe('SESSION_EXPIRED')
    expect(await other.sessions.show('till')).toBeUndefined()
    expect(await subject.effects()).toEqual(names)
    expect((await server.sessions.list()).map(({ session }) => session).toSorted()).toEqual(names.toSorted())
  },

  async 'a client without a name is given one of its own'(subject) {
    const server = await subject.server()
    const [one, two] = [await server.sessions.register(), await server.sessions.register()]
    expect(one.session).not.toBe(two.session)
    expect(await ask(server, one, 1)).toBe('request 1')
    expect(await ask(server, two, 1)).toBe('request 1')
  },

  async 'every refusal says whether the effect may have taken place, and whether to retry'(subject) {
    const server = await subject.server({ window: 2, strict: true })
    const session = await server.sessions.register('till-7')
    expect(await ask(server, session, 1)).toBe('request 1')
    expect(await ask(server, session, 2, { acknowledged: 1 })).toBe('request 2')
    type Request = Partial<SessionRequest> & { readonly sequence: number }
    const meanings: readonly (readonly [code: string, request: Request, executed: string, retryable: boolean])[] = [
      ['SESSION_EXPIRED', { session: 'ghost', sequence: 3 }, 'unknown', false],
      ['FENCED', { epoch: 1, sequence: 3 }, 'unknown', false],
      ['FORGOTTEN', { sequence: 1 }, 'unknown', false],
      ['MISMATCH', { sequence: 2, fingerprint: 'other' }, 'no', false],
      ['WINDOW_EXCEEDED', { sequence: 9 }, 'no', true],
      ['GAP', { sequence: 4, acknowledged: 2 }, 'no', true],
    ]
    for (const [name, request, executed, retryable] of meanings) {
      const asked = server.sessions.apply({ ...session, ...request }, () => 'ran')
      await expect(asked).rejects.toMatchObject({ code: name, executed, retryable })
    }
  },

  async 'numbers and names that make no sense are refused by name, before anything is asked of the store'(subject) {
    const server = await subject.server()
    const session = await server.sessions.register('till-7')
    const refusedWith = async (request: object, words: RegExp): Promise<void> => {
      const asked = server.sessions.apply({ ...session, sequence: 1, ...request } as SessionRequest, () => 'ran')
      const error = await asked.then(
        () => new Error('it ran'),
        (thrown: Error) => thrown,
      )
      expect(error).toMatchObject({ code: 'INVALID_ARGUMENT', message: expect.stringMatching(words) as string })
    }
    for (const sequence of [0, -1, 1.5, 2 ** 53, Infinity, Number.NaN, '1', null, 1n, undefined]) {
      await refusedWith({ sequence }, /sequence to be an integer from 1 to 9007199254740991/)
    }
    for (const epoch of [0, -1, 1.5, 2 ** 53, '1', undefined]) await refusedWith({ epoch }, /epoch to be an integer/)
    for (const acknowledged of [-1, 0.5, 2 ** 53, '0', null]) {
      await refusedWith({ sequence: 5, acknowledged }, /acknowledged to be an integer from 0/)
    }
    await refusedWith({ sequence: 5, acknowledged: 5 }, /acknowledged to be below sequence 5, got 5/)
    await refusedWith({ sequence: 5, acknowledged: 6 }, /acknowledged to be below sequence 5, got 6/)
    await refusedWith({ session: 'x'.repeat(1_000_000) }, /1 to 200 bytes of UTF-8, got 1000000/)
    await refusedWith({ session: 'é'.repeat(101) }, /1 to 200 bytes of UTF-8, got 202/)
    await refusedWith({ session: '' }, /1 to 255 bytes|1 to 200 bytes/)
    await refusedWith({ session: 'a\nb' }, /control characters/)
    await refusedWith({ session: 'a\ud800' }, /well-formed/)
    await refusedWith({ session: 7 }, /string, got number/)
    await refusedWith({ sequense: 1 }, /unknown option "sequense", did you mean "sequence"/)
    expect(await code(server.sessions.register('x'.repeat(201)))).toBe('INVALID_ARGUMENT')
    expect(await ask(server, session, 1)).toBe('request 1')
  },

  async 'a store that breaks off or does not answer is unavailable within its time limit, whatever is asked'(subject) {
    const proxy = subject.proxy!
    const [patient, hasty] = [await subject.server(), await subject.server({ storeTimeoutMs: 200 })]
    const session = await patient.sessions.register('till-7')
    type Asked = readonly [call: (server: SessionServer) => Promise<unknown>, cutAt: number]
    // Redis has nothing to sweep, and no message that begins a transaction.
    const isSql = patient.sessions.guarantee === 'one-transaction'
    const change = isSql ? 2 : 1
    const asked: readonly Asked[] = [
      [({ sessions }) => sessions.register('till-7'), change],
      [({ sessions }) => sessions.keepAlive(session), change],
      [({ sessions }) => sessions.close(session), change],
      [({ sessions }) => sessions.show('till-7'), 1],
      [({ sessions }) => sessions.list(), 1],
      ...(isSql ? [[({ sessions }: SessionServer) => sessions.sweep(), 1] as const] : []),
    ]
    for (const [call, message] of asked) {
      // It has a connection, so that the call breaks off in a statement.
      await eventually(
        'a connection',
        async () => (await code(patient.sessions.show('till-7'))) !== 'STORE_UNAVAILABLE',
      )
      proxy.cutAt({ direction: 'request', message, side: 'before' })
      expect(await code(call(patient)), `${call}`).toBe('STORE_UNAVAILABLE')
    }
    await proxy.setMode('blackHole')
    for (const [position, [call]] of asked.entries()) {
      await expect(call(hasty), `${call}`).rejects.toMatchObject({
        code: 'STORE_UNAVAILABLE',
        // The first three change something, and the store may have got them.
        executed: position < 3 ? 'unknown' : 'no',
        message: expect.stringContaining('no answer within 200 ms') as string,
      })
    }
    // What waits for an answer ends.
    await proxy.setMode('reset')
  },

  async 'of a change whose reply was lost it is not said that it was not made'(subject) {
    const proxy = subject.proxy!
    const { sessions } = await subject.server()
    const changes: readonly ((session: ClientSession) => Promise<unknown>)[] = [
      ({ session }) => sessions.register(session),
      sessions.keepAlive,
      sessions.close,
    ]
    for (const [position, change] of changes.entries()) {
      let made = 0
      // Each message of the reply is lost once, with what follows it.
      for (let message = 1, wasLost = true; wasLost; message++) {
        const session = await sessions.register(`till-${position}-${message}`)
        const before = await sessions.show(session.session)
        await clockAfter(sessions, before!.leaseUntilMs)
        let isLost = false
        void proxy.cutAt({ direction: 'reply', message, side: 'before' }).happened.then(() => (isLost = true))
        const failure = await change(session).then(
          () => undefined,
          (error: unknown) => error as OnceError,
        )
        wasLost = isLost
        const after = await eventually('a connection', async () => {
          const shown = await sessions.show(session.session).catch(() => undefined)
          return isLost ? shown : undefined
        })
        if (!failure || isDeepStrictEqual(after, before)) continue
        expect(failure, `${change}, message ${message}`).toMatchObject({ executed: 'unknown' })
        made++
      }
      expect(made, `${change}`).toBeGreaterThan(0)
    }
  },

  async 'a person sees the floor, the window, the lease and the numbers above the floor, with what became of them'(
    subject,
  ) {
    const server = await subject.server({ window: 6, leaseMs: 3_600_000, waitMs: 0 })
    const registered = await server.sessions.register('till-7')
    expect(await server.sessions.show('till-7')).toMatchObject({ window: 6, answered: [], unanswered: [] })
    for (const sequence of [1, 2, 3]) await ask(server, registered, sequence)
    expect(await fail(server, registered, 5)).toBe('no printer')
    expect(await ask(server, registered, 4, { acknowledged: 1 })).toBe('request 4')
    const running = subject.isSerial ? undefined : begin(server, registered, 6)
    await running?.began
    const unanswered = subject.isSerial ? [5] : [5, 6]
    const { epoch } = registered
    const shown = { session: 'till-7', epoch, state: 'open', floor: 1, last: unanswered.at(-1), window: 6 }
    const numbers = { answered: [2, 3, 4], unanswered, requests: 3 + unanswered.length }
    const found = await server.sessions.show('till-7')
    expect(found).toEqual({ ...shown, ...numbers, leaseUntilMs: expect.any(Number) as number })
    // An epoch is at least the time of the registration, by the store's clock.
    expect(found!.leaseUntilMs - epoch).toBeGreaterThanOrEqual(3_600_000)
    const { answered: _answered, unanswered: _unanswered, ...row } = found!
    expect(await server.sessions.list()).toEqual([row])
    running?.end()
    await running?.told
    // The next server has another window, and lets more in.
    const wider = await subject.server({ window: 9 })
    expect(await ask(wider, registered, 9)).toBe('request 9')
    expect(await wider.sessions.show('till-7')).toMatchObject({ window: 9, last: 9 })
    await server.sessions.close(registered)
    expect(await server.sessions.show('till-7')).toMatchObject({ state: 'closed', answered: [], unanswered: [] })
  },

  async 'of an expired session a person still sees which requests had their answers'(subject) {
    const server = await subject.server({ leaseMs: 300 })
    const session = await server.sessions.register('till-7')
    // At a high load the lease may have ended before a request came.
    const [first, second] = [await ask(server, session, 1), await fail(server, session, 2)]
    const answered = first === 'SESSION_EXPIRED' ? [] : [1]
    const unanswered = second === 'SESSION_EXPIRED' ? [] : [2]
    await untilExpired(server.sessions, session)
    expect(await server.sessions.show('till-7')).toMatchObject({ requests: 0, answered, unanswered })
  },

  async 'a person lists the sessions of all services page by page, without a gap, and by how a client begins'(subject) {
    const [one, two] = [subject.scope, `${subject.scope}-é/100%`]
    const server = await subject.server()
    const other = await subject.server({ scope: two })
    const clients = ['till', 'till-1', 'till-2', 'Till-3', 'ti_l', 'ti%l', 'tié/1', 'tié/2']
    for (const client of clients) for (const { sessions } of [server, other]) await sessions.register(client)
    const byHand = sessionsByHand(server.store)
    const all: ScopedSession[] = []
    for (let after: ScopedSession | undefined; ;) {
      const page = await byHand.list({ limit: 5, ...(after && { after }) })
      all.push(...page)
      after = page.at(-1)
      if (page.length < 5) break
    }
    // Those of other cases are there, too.
    const names = (sessions: readonly ScopedSession[]): string[] =>
      sessions.map(({ scope, session }) => `${scope} ${session}`)
    const own = names(all).filter((name) => name.startsWith(subject.scope))
    const expected = [one, two].flatMap((scope) => clients.map((client) => `${scope}/sessions ${client}`))
    expect([own.length, own.toSorted()]).toEqual([16, expected.toSorted()])
    const scope = `${two}/sessions`
    const found = async (begins: string): Promise<string[]> =>
      (await byHand.list({ scope, begins })).map(({ session }) => session)
    expect(await found('till')).toEqual(['till', 'till-1', 'till-2'])
    expect(await found('tié/')).toEqual(['tié/1', 'tié/2'])
    expect([await found('ti_'), await found('ti%'), await found('tilt')]).toEqual([['ti_l'], ['ti%l'], []])
    const after = { scope, session: 'till-1' }
    expect(names(await byHand.list({ scope, begins: 'till', after, limit: 9 }))).toEqual([`${scope} till-2`])
    expect(names(await byHand.list({ scope, limit: 1 }))).toEqual([`${scope} Till-3`])
    expect(await code(byHand.list({ scope: '' }))).toBe('INVALID_ARGUMENT')
  },

  async 'a person closes a session whose epoch is not known, and the reason is on record'(subject) {
    const server = await subject.server()
    const scope = `${subject.scope}/sessions`
    const name = { scope, session: 'till-7' }
    const byHand = sessionsByHand(server.store)
    const reasons = async (): Promise<string[]> =>
      (await server.store.audit(key(scope, 'till-7'))).map(({ reason }) => reason)
    const old = await server.sessions.register('till-7')
    const session = await server.sessions.register('till-7')
    expect(await ask(server, session, 1)).toBe('request 1')
    for (const reason of ['', ' ', 'x'.repeat(501)])
      expect(await code(byHand.close(name, reason))).toBe('INVALID_ARGUMENT')
    // Seen before the client registered again: it is not what the person looked at.
    expect(await byHand.close({ ...name, epoch: old.epoch }, 'stolen')).toMatchObject({
      changed: false,
      session: { state: 'open', epoch: session.epoch, answered: [1] },
    })
    expect([await byHand.close({ ...name, session: 'till-8' }, 'stolen'), await reasons()]).toEqual([undefined, []])
    expect(await byHand.close(name, 'stolen')).toMatchObject({
      changed: true,
      session: { ...name, state: 'closed', epoch: session.epoch, requests: 0 },
    })
    expect(await ask(server, session, 1)).toBe('SESSION_EXPIRED')
    expect(await byHand.close(name, 'again')).toMatchObject({ changed: false, session: { state: 'closed' } })
    expect(await reasons()).toEqual(['close: stolen'])
    // The client can come back, with an epoch of its own.
    expect(await ask(server, await server.sessions.register('till-7'), 1)).toBe('request 1')
  },

  async 'the greatest numbers and the longest name are taken'(subject) {
    const server = await subject.server()
    const session = await server.sessions.register('é'.repeat(100))
    const sequence = Number.MAX_SAFE_INTEGER
    const greatest = { acknowledged: sequence - 1, text: 'the last' }
    expect(await ask(server, session, sequence, greatest)).toBe('the last')
    expect(await ask(server, session, sequence, greatest)).toBe('the last again')
    expect(await server.sessions.show(session.session)).toMatchObject({ floor: sequence - 1, last: sequence })
  },
}

/** They cut connections: nothing for a store in the same process. */
const casesOfNetworks: readonly string[] = [
  'a store that breaks off or does not answer is unavailable within its time limit, whatever is asked',
  'of a change whose reply was lost it is not said that it was not made',
]

/** A test for each case, on a ground that all of them share. Returns what gives a check of one's own a subject. */
export function testSessions(
  start: () => Promise<SessionsGround>,
  { network = true } = {},
): (check: SessionCase) => Promise<void> {
  let ground: SessionsGround
  beforeAll(async () => {
    ground = await start()
  })
  afterAll(() => ground[Symbol.asyncDispose]())
  const trying = async (check: SessionCase): Promise<void> => {
    const subject = await sessionSubject(ground)
    try {
      await check(subject)
    } finally {
      await subject.close()
    }
  }
  for (const [what, check] of Object.entries(sessionCases))
    if (network || !casesOfNetworks.includes(what)) test(what, () => trying(check))
  return trying
}
