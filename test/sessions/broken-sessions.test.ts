// Cases that pass everything prove nothing: each of these sessions is wrong in one way that is common, and its case must fail.
import { expect, test } from 'vitest'
import { FinalError, OnceError } from '../../src/index.ts'
import {
  createSessions,
  type Op,
  type SessionRequest,
  type Sessions,
  type SessionsOptions,
} from '../../src/sessions/sessions.ts'
import { sessionCases } from './session-cases.ts'
import { memorySessions, sessionSubject } from './session-subject.ts'

type Apply = (request: SessionRequest, effect: (tx: unknown, op: Op) => unknown) => Promise<Answer>
interface Answer {
  readonly value: unknown
  readonly replayed: boolean
  readonly attempt: number
}
type Broken = (sound: Sessions, options: SessionsOptions) => Sessions

// Sessions that apply like this.
const applying =
  (make: (apply: Apply, sound: Sessions) => Apply): Broken =>
  (sound) => ({ ...sound, apply: make(sound.apply as Apply, sound) as Sessions['apply'] })

// Sessions that take every failure for one of this kind.
const throwing = (Failure: new (message: string) => Error): Broken =>
  applying(
    (apply) => (request, effect) =>
      apply(request, async (tx, given) => {
        try {
          return await effect(tx, given)
        } catch (error) {
          throw new Failure((error as Error).message)
        }
      }),
  )

const isRefusal = (error: unknown, code: string): boolean => error instanceof OnceError && error.code === code

// What all processes of a broken service share, in the place of its database.
const shared = new Map<string, Answer>()
const registrations = new Map<string, ReturnType<Sessions['register']>>()
const op = {} as Op

async function ran(effect: (tx: unknown, op: Op) => unknown): Promise<Answer> {
  return { value: await effect(undefined, op), replayed: false, attempt: 1 }
}

const again = (answer: Answer): Answer => ({ ...answer, replayed: true })
const nameOf = ({ session, epoch, sequence }: SessionRequest): string => `${session} ${epoch} ${sequence}`

const broken: readonly [what: string, noticedBy: string, make: Broken][] = [
  [
    'keep answers in the process that ran the effect',
    'a request that comes again is given its stored answer, whichever process gets it',
    applying(() => {
      const own = new Map<string, Answer>()
      return async (request, effect) => {
        const known = own.get(nameOf(request))
        if (known) return again(known)
        const answer = await ran(effect)
        own.set(nameOf(request), answer)
        return answer
      }
    }),
  ],
  [
    'look, run, and store the answer afterwards',
    'of many deliveries of one request at once, through two processes, one has its effect',
    applying(() => async (request, effect) => {
      const known = shared.get(nameOf(request))
      if (known) return again(known)
      await Promise.resolve()
      const answer = await ran(effect)
      shared.set(nameOf(request), answer)
      return answer
    }),
  ],
  [
    'run one request of a client after the other',
    'several requests of one client are in flight at once, and end in any order',
    applying((apply) => {
      const inFlight = new Set<string>()
      return async (request, effect) => {
        if (inFlight.has(request.session)) throw new OnceError('IN_FLIGHT', { message: 'one at a time' })
        inFlight.add(request.session)
        try {
          return await apply(request, effect)
        } finally {
          inFlight.delete(request.session)
        }
      }
    }),
  ],
  [
    'store a server failure as the answer',
    'a server failure is no answer: its effect is not kept where the database can, and the retry runs it',
    throwing(FinalError),
  ],
  ['take a business failure for none', 'a business failure is the answer, and is given again', throwing(Error)],
  [
    'store answers as text',
    'answers are replayed as they were given: bytes, nothing, null, lists',
    applying((apply) => (request, effect) => apply(request, async (tx, given) => `${String(await effect(tx, given))}`)),
  ],
  [
    'compare no fingerprints',
    'the same number with another content is a mismatch in every state, and runs and changes nothing',
    applying((apply) => (request, effect) => apply({ ...request, fingerprint: 'any' }, effect)),
  ],
  [
    'give the same epoch to every registration',
    'registering again raises the epoch and fences the old one',
    (sound) => ({
      ...sound,
      register: (id = 'any') => {
        const known = registrations.get(id) ?? sound.register(id)
        registrations.set(id, known)
        return known
      },
    }),
  ],
  [
    'look at the epoch only before the effect',
    'an effect that runs while its client registers again has no answer, and is rolled back where the database can',
    applying((apply) => async (request, effect) => {
      let value: unknown
      try {
        return await apply(request, async (tx, given) => (value = await effect(tx, given)))
      } catch (error) {
        if (isRefusal(error, 'FENCED') && value !== undefined) return { value, replayed: false, attempt: 1 }
        throw error
      }
    }),
  ],
  [
    'carry the numbers of a client over to its next registration',
    'numbers of a client that lost its memory never meet those of before (request numbers colliding after a crash)',
    applying((apply) => async (request, effect) => {
      const known = shared.get(`${request.session} ${request.sequence}`)
      if (known) return again(known)
      const answer = await apply(request, effect)
      shared.set(`${request.session} ${request.sequence}`, answer)
      return answer
    }),
  ],
  [
    'take every number that was begun for one that is in flight',
    'a request whose process died is not locked out, and the dead one can answer nothing (lock-out of a client)',
    applying((apply) => (request, effect) => {
      if (shared.has(nameOf(request))) return Promise.reject(new OnceError('MISMATCH', { message: 'it was begun' }))
      shared.set(nameOf(request), { value: 0, replayed: false, attempt: 0 })
      return apply(request, effect)
    }),
  ],
  [
    'run what was acknowledged again',
    'what the client has acknowledged is let go, and never runs again',
    applying(
      (apply) => (request, effect) =>
        apply(request, effect).catch((error: unknown) => {
          if (isRefusal(error, 'FORGOTTEN')) return ran(effect)
          throw error
        }),
    ),
  ],
  [
    'keep every answer',
    'what the client has acknowledged is let go, and never runs again',
    (_sound, options) => {
      const keeping = createSessions({ ...options, window: 10_000 }) as Sessions
      return {
        ...keeping,
        apply: ((request, effect) => keeping.apply({ ...request, acknowledged: 0 }, effect)) as Sessions['apply'],
      }
    },
  ],
  [
    'have no window',
    'beyond the window nothing runs, until answers are acknowledged',
    (_sound, options) => createSessions({ ...options, window: 10_000 }) as Sessions,
  ],
  [
    'accept a gap',
    'a strict session refuses a gap, and goes on once it is filled',
    (_sound, options) => createSessions({ ...options, strict: false }) as Sessions,
  ],
  [
    'refuse every gap',
    'a session that is not strict takes numbers in any order',
    (_sound, options) => createSessions({ ...options, strict: true }) as Sessions,
  ],
  [
    'compare fingerprints before all else',
    'the rules have an order: expired, fenced, forgotten, mismatch, replay, window, gap',
    applying((apply) => {
      const prints = new Map<string, unknown>()
      return (request, effect) => {
        const name = `${request.session} ${request.sequence}`
        if (prints.has(name) && prints.get(name) !== request.fingerprint) {
          return Promise.reject(new OnceError('MISMATCH', { message: 'another fingerprint' }))
        }
        prints.set(name, request.fingerprint)
        return apply(request, effect)
      }
    }),
  ],
  [
    'make a session up for a client that they do not know',
    'a session that nobody registered is refused, and none is made up',
    applying(
      (apply, sound) => (request, effect) =>
        apply(request, effect).catch(async (error: unknown) => {
          if (!isRefusal(error, 'SESSION_EXPIRED')) throw error
          const { epoch } = await sound.register(request.session)
          return apply({ ...request, epoch }, effect)
        }),
    ),
  ],
  [
    'run a request of an expired session as a new one',
    'a session that was silent for its lease is expired: a late request is refused and never runs',
    applying(
      (apply) => (request, effect) =>
        apply(request, effect).catch((error: unknown) => {
          if (isRefusal(error, 'SESSION_EXPIRED')) return ran(effect)
          throw error
        }),
    ),
  ],
  [
    'take a closed session for an open one',
    'a closed session runs nothing, and what was in flight has no answer',
    (sound) => ({ ...sound, close: async () => {} }),
  ],
  [
    'tell the window that they have, and not that of the client',
    'a person sees the floor, the window, the lease and the numbers above the floor, with what became of them',
    (sound) => ({
      ...sound,
      async show(id) {
        const shown = await sound.show(id)
        return shown && { ...shown, window: 64 }
      },
    }),
  ],
  [
    'tell a request that failed as answered',
    'a person sees the floor, the window, the lease and the numbers above the floor, with what became of them',
    (sound) => ({
      ...sound,
      async show(id) {
        const shown = await sound.show(id)
        return shown && { ...shown, answered: [...shown.answered, ...shown.unanswered], unanswered: [] }
      },
    }),
  ],
  [
    'fold the names of clients to lower case',
    'clients and services are told apart byte for byte',
    (sound) => ({ ...sound, register: (id) => sound.register(id?.toLowerCase()) }),
  ],
]

test.each(broken)('sessions that %s are noticed by: %s', async (_what, noticedBy, make) => {
  shared.clear()
  registrations.clear()
  const create = ((options: SessionsOptions) =>
    make(createSessions(options) as Sessions, options)) as unknown as typeof createSessions
  const subject = await sessionSubject(memorySessions(), create)
  // By an assertion of the case, and not by whatever else goes wrong.
  await expect(sessionCases[noticedBy]!(subject)).rejects.toMatchObject({ name: 'AssertionError' })
  await subject.close()
})

test('a case for each of them exists', () => {
  for (const [, noticedBy] of broken) expect(Object.keys(sessionCases)).toContain(noticedBy)
})
