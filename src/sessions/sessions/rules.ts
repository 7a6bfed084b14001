// The rules of a session, in their order, as functions of what is stored. The memory and the SQL databases decide by these, and Redis by
// the same in Lua (redis/decisions.lua.ts). test/sessions/model.ts is the third reading, which knows none of the others.

import { OnceError } from '../../core/errors.ts'
import type { ErrorCode } from '../../core/errors.ts'

/** What one request of a client says about itself. */
export interface NumberedRequest {
  readonly client: string
  readonly epoch: number
  readonly sequence: number
  /** The client has the answers of this number and of all below it. */
  readonly acknowledged: number
}

/** Names a session. */
export type AskedSession = Pick<NumberedRequest, 'client' | 'epoch'>

export interface SessionState {
  readonly epoch: number
  /** Answers up to this number have been let go. */
  readonly floor: number
  /** The greatest number that was let in. */
  readonly last: number
  /** The last fence that was given out. */
  readonly fence: number
  readonly leaseUntilMs: number
  readonly isClosed: boolean
  /** Of the server that last let the client in, for people. What decides is the window of the server that is asked. */
  readonly window: number
}

export interface SessionLimits {
  readonly window: number
  readonly strict: boolean
}

/** Why a request is not run, with the numbers that its message needs. */
export interface SessionRefusal {
  readonly code: SessionRefusalCode
  readonly session?: Pick<SessionState, 'epoch' | 'floor' | 'last'>
}

export type SessionRefusalCode = Extract<
  ErrorCode,
  'SESSION_EXPIRED' | 'FENCED' | 'FORGOTTEN' | 'MISMATCH' | 'WINDOW_EXCEEDED' | 'GAP'
>

/** Unknown, closed, silent for too long, or of an epoch that this store never gave out: in each case nothing is known of its requests. */
export function sessionRefusal(
  session: SessionState | undefined,
  { epoch }: Pick<NumberedRequest, 'epoch'>,
  nowMs: number,
): SessionRefusal | undefined {
  if (!session || session.isClosed || nowMs >= session.leaseUntilMs) return { code: 'SESSION_EXPIRED' }
  if (epoch < session.epoch) return { code: 'FENCED', session }
  return epoch > session.epoch ? { code: 'SESSION_EXPIRED' } : undefined
}

/** Undefined when the request may run or has its answer. `known` is the stored request of this number. */
export function requestRefusal(
  session: SessionState,
  known: { readonly fingerprint: string } | undefined,
  asked: NumberedRequest & { readonly fingerprint: string },
  { window, strict }: SessionLimits,
): SessionRefusal | undefined {
  const { sequence, acknowledged, fingerprint } = asked
  if (sequence <= session.floor) return { code: 'FORGOTTEN', session }
  if (known) return known.fingerprint === fingerprint ? undefined : { code: 'MISMATCH', session }
  if (sequence > Math.max(session.floor, acknowledged) + window) return { code: 'WINDOW_EXCEEDED', session }
  return strict && sequence > session.last + 1 ? { code: 'GAP', session } : undefined
}

export interface SessionTimes {
  readonly nowMs: number
  /** The session's, not that of an attempt. */
  readonly leaseMs: number
  readonly window: number
}

/** The session after a request that was not refused: every one of them keeps it alive, and counts as its acknowledgement. */
export function afterRequest(
  session: SessionState,
  asked: NumberedRequest,
  { nowMs, leaseMs, window }: SessionTimes,
): SessionState {
  return {
    ...session,
    floor: Math.max(session.floor, asked.acknowledged),
    last: Math.max(session.last, asked.sequence),
    window,
    fence: Math.max(session.fence + 1, nowMs * 1_000),
    leaseUntilMs: nowMs + leaseMs,
  }
}

/**
 * The session after a registration. An epoch is at least the time, so that it also grows when the store has forgotten the client in
 * between: a request of a former life is never taken for one of this life.
 */
export function afterRegistration(
  session: SessionState | undefined,
  { nowMs, leaseMs, window }: SessionTimes,
): SessionState {
  return {
    epoch: Math.max((session?.epoch ?? 0) + 1, nowMs),
    floor: 0,
    last: 0,
    fence: Math.max((session?.fence ?? 0) + 1, nowMs * 1_000),
    leaseUntilMs: nowMs + leaseMs,
    isClosed: false,
    window,
  }
}

/** The error for the caller. `executed` is given where more is known than the code says. */
export function refusedBySession(
  { code, session }: SessionRefusal,
  asked: AskedSession & Partial<NumberedRequest>,
  { window }: Pick<SessionLimits, 'window'>,
  executed?: 'no',
): OnceError {
  const name = `${asked.client} (epoch ${asked.epoch})`
  const request = asked.sequence === undefined ? `Session ${name}` : `Request ${asked.sequence} of session ${name}`
  const messages: Readonly<Record<SessionRefusalCode, string>> = {
    SESSION_EXPIRED:
      `${request} was not run: the session is unknown, closed, or was silent for longer than its leaseMs. What became of requests ` +
      'without an answer is unknown. Find out, then register again.',
    FENCED: `${request} is refused: the client registered again and has epoch ${session?.epoch}. Use that one, and give every process its own client id.`,
    FORGOTTEN: `${request} was not run: the client acknowledged everything up to ${session?.floor}, so its answer was let go.`,
    MISMATCH: `${request} was sent before with another content (fingerprint). Nothing was run. Use the next number for a new request.`,
    WINDOW_EXCEEDED:
      `${request} was not run: it is more than the window of ${window} above ${Math.max(session?.floor ?? 0, asked.acknowledged ?? 0)}, ` +
      'the last number that the client acknowledged. Acknowledge the answers that arrived, then retry.',
    GAP: `${request} was not run: the last number was ${session?.last}, and a strict session takes ${(session?.last ?? 0) + 1} next. Send that one first.`,
  }
  return new OnceError(code, { message: messages[code], ...(executed && { executed }) })
}
