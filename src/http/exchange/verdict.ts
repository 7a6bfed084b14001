// What the handler did, and what that means for the key: the one place where an answer or a throw becomes a verdict, and a verdict
// becomes what `once` understands, which is a value or a throw.

import type { Op } from '../../core/call.ts'
import { FinalError, InDoubtError, NotBegunError } from '../../core/errors.ts'
import type { Key } from '../../core/key.ts'
import type { Body, Produced } from '../exchange.ts'
import { DigestError } from './content-digest.ts'
import { createContext, verdictFor } from './context.ts'
import type { HandlerChoice, IdempotencyContext } from './context.ts'
import type { HttpSettings } from './options.ts'
import { problem } from './problem.ts'
import type { Numbered } from './sessions.ts'
import { encodeAnswer, encodeNotStored } from './stored-response.ts'
import type { Answer } from './stored-response.ts'

export type RunHandler = (context: IdempotencyContext) => Promise<Produced>

/** One request under its key: what the handler produced, and what that means for the key. */
export interface RequestAttempt {
  readonly key: Key
  /** The request has a number in a session, by this name in the store. */
  readonly numbered: Numbered | undefined
  readonly body: Body
  readonly run: RunHandler
  readonly choice: HandlerChoice
  produced: Produced | undefined
  /** The answer that is sent in the handler's place. */
  instead: Answer | undefined
  /** The verdict as it was thrown to `once`. */
  thrown: unknown
}

/** What becomes of the key. Each but `store` carries the error that tells `once` so. */
type Verdict =
  | { readonly store: Uint8Array }
  /** Free for a retry of this request. */
  | { readonly open: unknown }
  /** As if the request had never arrived: free for any request. */
  | { readonly forget: unknown }
  /** Left to its lease. */
  | { readonly doubt: unknown }
  /** A refusal that is stored without the writes that led to it. */
  | { readonly final: unknown }

export function createAttempt(key: Key, numbered: Numbered | undefined, body: Body, run: RunHandler): RequestAttempt {
  const choice = { verdict: undefined }
  return { key, numbered, body, run, choice, produced: undefined, instead: undefined, thrown: undefined }
}

/** The effect, as `once` sees it: the bytes to store, or a throw. */
export function tellOnce(
  settings: HttpSettings<never>,
  attempt: RequestAttempt,
  op: Op,
  tx: unknown,
): Promise<Uint8Array> {
  // A transaction that lost against others would run the whole handler again, but a request can be handled only once.
  if (attempt.produced) return new Promise((resolve) => resolve(told(attempt, conflict(settings, attempt))))
  return attempt.run(createContext(op, tx, attempt.choice)).then((produced) => {
    attempt.produced = produced
    const verdict = judge(settings, attempt, produced)
    return verdict instanceof Promise ? verdict.then((later) => told(attempt, later)) : told(attempt, verdict)
  })
}

/** The only place where a verdict becomes a throw. */
function told(attempt: RequestAttempt, verdict: Verdict): Uint8Array {
  if ('store' in verdict) return verdict.store
  const [error] = Object.values(verdict) as [unknown]
  attempt.thrown = error
  throw error
}

function conflict(settings: HttpSettings<never>, attempt: RequestAttempt): Verdict {
  // In a session the answer is written in a transaction, also when what the handler did lies outside of it.
  attempt.instead = problem(settings, settings.transaction ? 'transactionConflict' : 'outcomeUnknown', {
    isNumbered: attempt.numbered !== undefined,
  })
  return { open: new Error('The transaction was rolled back by a conflict with another one.') }
}

function judge(settings: HttpSettings<never>, attempt: RequestAttempt, produced: Produced): Verdict | Promise<Verdict> {
  const { body, choice } = attempt
  if (produced.is === 'thrown') {
    if (produced.error instanceof DigestError) return falseDigest(settings, attempt)
    // With `began` a throw is an answer to be stored, so it must be one: the framework's own would come too late.
    if (settings.errorPolicy !== 'began' || produced.error instanceof NotBegunError) return ofThrow(produced.error)
    attempt.instead = internalError()
  }
  const answer = attempt.instead ?? (produced.is === 'answer' ? produced.answer : undefined)
  const status = answer ? answer.status : produced.is === 'stream' ? produced.status : 500
  if (!answer || body.is !== 'claimed') return ofAnswer(settings, choice, status, answer)
  return body
    .verify()
    .then((holds) => (holds ? ofAnswer(settings, choice, status, answer) : falseDigest(settings, attempt)))
}

function ofThrow(error: unknown): Verdict {
  if (error instanceof NotBegunError) return { forget: error }
  if (error instanceof InDoubtError) return { doubt: error }
  return error instanceof FinalError ? { final: error } : { open: error }
}

function ofAnswer(
  settings: HttpSettings<never>,
  choice: HandlerChoice,
  status: number,
  answer: Answer | undefined,
): Verdict {
  const name = verdictFor(status, settings.errorPolicy, choice)
  if (name === 'forget') return { forget: new NotBegunError('The handler said that it had not begun.') }
  if (name === 'doubt') return { doubt: new InDoubtError('The handler said that its effect may have taken place.') }
  if (name === 'open') return { open: new Error(`The answer (${status}) is not one to be stored.`) }
  const bytes = answer ? encodeAnswer(answer, settings) : encodeNotStored()
  // In a transaction a refusal is the outcome, without the writes that led to it.
  return settings.transaction && status >= 400 ? { final: finalAnswer(bytes) } : { store: bytes }
}

function falseDigest(settings: HttpSettings<never>, attempt: RequestAttempt): Verdict {
  attempt.instead = problem(settings, 'digestMismatch')
  // The request that was claimed does not exist, so its key must be free for the request that was meant.
  return { forget: new NotBegunError('The content did not have the digest that was claimed.') }
}

/** For a handler that threw where no framework handles the error. */
export function internalError(): Answer {
  const body = { type: 'about:blank', title: 'Internal Server Error', status: 500 }
  return {
    status: 500,
    headers: [['Content-Type', 'application/problem+json']],
    body: Buffer.from(JSON.stringify(body)),
  }
}

// A failure is kept as JSON.
function finalAnswer(bytes: Uint8Array): FinalError {
  return new FinalError('The request was refused.', { data: { http: Buffer.from(bytes).toString('base64') } })
}

export function bytesOfFinal(error: unknown): Uint8Array | undefined {
  const data = error instanceof FinalError ? (error.data as { readonly http?: unknown } | undefined) : undefined
  return typeof data?.http === 'string' ? Buffer.from(data.http, 'base64') : undefined
}
