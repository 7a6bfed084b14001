// Sessions over HTTP: the headers of a numbered request, and the path where clients register, renew and close. Sessions themselves are
// src/sessions, taken by their shape. A client knows its session by the name it registered under. The store knows it with its tenant
// (scoped-key.ts), so no tenant can use, fence or close the session of another.

import type { Op, Result } from '../../core/call.ts'
import { newId } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Store } from '../../core/store.ts'
import { endsWithParameters, readKey, trim } from './key-header.ts'
import { rulesPath } from './options.ts'
import type { HttpSettings } from './options.ts'
import type { ProblemDetails, ProblemName } from './problem.ts'
import { splitTarget } from './request-fingerprint.ts'
import { scopedSession } from './scoped-key.ts'
import type { Answer } from './stored-response.ts'
import { parseStrictJson } from './strict-json.ts'

/** The part of `createSessions` of `onceonly/sessions` that the exchange uses. */
export interface HttpSessions {
  readonly store: Store
  readonly scope: string
  readonly guarantee: 'one-transaction' | 'claim-and-settle'
  readonly window: number
  readonly leaseMs: number
  register(client: string): Promise<{ readonly epoch: number }>
  apply(
    request: SessionOfStore & {
      readonly sequence: number
      readonly acknowledged: number
      readonly fingerprint: string
    },
    effect: (tx: unknown, op: Op) => Promise<Uint8Array>,
  ): Promise<Result<Uint8Array>>
  keepAlive(session: SessionOfStore): Promise<void>
  close(session: SessionOfStore): Promise<void>
  show(session: string): Promise<unknown>
}

interface SessionOfStore {
  readonly session: string
  readonly epoch: number
}

/** What the headers of a numbered request say. */
export interface Numbered {
  readonly session: string
  readonly epoch: number
  readonly sequence: number
  readonly acknowledged: number
}

/** Why a request is refused before anything is asked of the store. */
export interface SessionProblem {
  readonly problem: ProblemName
  readonly details: ProblemDetails
}

const names = {
  session: 'Idempotency-Session',
  epoch: 'Idempotency-Epoch',
  sequence: 'Idempotency-Sequence',
  acknowledged: 'Idempotency-Acknowledged',
} as const

/** In lower case, as Node has them. For the gateway, which does not pass them on. */
export const sessionHeaders: readonly string[] = Object.values(names).map((name) => name.toLowerCase())

/** A request with one of these two is meant to be numbered. */
export const numberedBy = ['idempotency-session', 'idempotency-sequence'] as const

interface WithHeaders {
  header(name: string): string | undefined
}

export function isNumbered(asked: WithHeaders): boolean {
  return asked.header(numberedBy[0]) !== undefined || asked.header(numberedBy[1]) !== undefined
}

/** All four headers must be there: one that is left out may be the one that a proxy dropped. */
export function readNumbered(
  settings: HttpSettings<never>,
  asked: WithHeaders & { readonly keyLines: readonly string[] },
): Numbered | SessionProblem {
  if (!settings.sessions) return { problem: 'sessionsNotOffered', details: {} }
  if (asked.keyLines.length > 0) return { problem: 'sessionAndKey', details: {} }
  const session = readSession(settings, names.session, asked.header(names.session))
  if (typeof session !== 'string') return session
  const epoch = readInteger(names.epoch, asked.header(names.epoch), 1)
  if (typeof epoch !== 'number') return epoch
  const sequence = readInteger(names.sequence, asked.header(names.sequence), 1)
  if (typeof sequence !== 'number') return sequence
  const acknowledged = readInteger(names.acknowledged, asked.header(names.acknowledged), 0)
  if (typeof acknowledged !== 'number') return acknowledged
  if (acknowledged >= sequence) {
    return invalid(
      `${names.acknowledged} is ${acknowledged}, and must be below ${names.sequence}, which is ${sequence}.`,
    )
  }
  return { session, epoch, sequence, acknowledged }
}

/** The session as a key is read: a string in double quotes, or bare. The format that keys must have is not asked of it. */
function readSession(settings: HttpSettings<never>, name: string, value: string | undefined): string | SessionProblem {
  if (value === undefined) return invalid(`${name} is missing.`)
  const reading = readKey([value], { parse: settings.parse, keyFormat: 'any', keyLengthMax: sessionLengthMax })
  return 'refused' in reading ? invalid(`${name} was refused because ${reading.refused}.`) : reading.key
}

/** As a key. */
const sessionLengthMax = 255

// An integer of RFC 9651 has up to 15 digits, which is below 2 ** 53. No sign, no leading zero: two spellings are one mistake.
const digits = /^(?:0|[1-9][0-9]{0,14})(?=;|$)/

function readInteger(name: string, value: string | undefined, min: number): number | SessionProblem {
  if (value === undefined) return invalid(`${name} is missing.`)
  const field = trim(value)
  const [found] = digits.exec(field) ?? []
  const number = Number(found)
  if (found !== undefined && number >= min && endsWithParameters(field.slice(found.length))) return number
  return invalid(`${name} must be one integer from ${min} to 999999999999999, in plain digits.`)
}

/** The key that the effect of a number runs under, as sessions name it. */
export function numberKey({ scope }: HttpSessions, { session, epoch, sequence }: Numbered): Key {
  return { scope, id: `${session}/${epoch}/${sequence}` }
}

function invalid(detail: string): SessionProblem {
  return { problem: 'sessionInvalid', details: { detail } }
}

export const sessionsPath: string = `${rulesPath}/sessions`

/** What a request to the path of sessions asks for. */
export type SessionCall = { readonly does: 'register' } | { readonly does: 'renew' | 'close'; readonly name: string }

const memberCalls: Readonly<Record<string, 'renew' | 'close'>> = { PUT: 'renew', DELETE: 'close' }

/** Undefined for every other request. */
export function sessionCall(method: string, target: string): SessionCall | undefined {
  if (!target.includes(sessionsPath)) return undefined
  const { path } = splitTarget(target)
  if (path === sessionsPath) return method === 'POST' ? { does: 'register' } : undefined
  const does = memberCalls[method]
  const name = path.startsWith(`${sessionsPath}/`) ? path.slice(sessionsPath.length + 1) : ''
  return does && name !== '' && !name.includes('/') ? { does, name } : undefined
}

/** A name of a client, and some white space. */
export const registrationBytesMax = 4_096

/** Registers, renews or closes. Throws what sessions refuse. */
export async function callSession(
  { sessions, hashKeys }: { readonly sessions: HttpSessions; readonly hashKeys: boolean },
  call: SessionCall,
  asked: { readonly tenant: string | undefined; readonly body: Uint8Array } & WithHeaders,
): Promise<Answer | SessionProblem> {
  const how = hashKeys ? 'hashed' : 'plain'
  if (call.does === 'register') {
    const name = clientIn(asked.body)
    if (typeof name !== 'string') return name
    const { epoch } = await sessions.register(scopedSession(asked.tenant, name, how))
    const { window, leaseMs } = sessions
    return jsonAnswer(201, { session: name, epoch, window, leaseMs })
  }
  const name = unescaped(call.name)
  if (name === undefined) return invalid('The path does not end with the name of a session, percent-encoded.')
  const epoch = readInteger(names.epoch, asked.header(names.epoch), 1)
  if (typeof epoch !== 'number') return epoch
  const session = { session: scopedSession(asked.tenant, name, how), epoch }
  if (call.does === 'renew') {
    await sessions.keepAlive(session)
    return jsonAnswer(200, { leaseMs: sessions.leaseMs })
  }
  await sessions.close(session)
  return { status: 204, headers: [noStore], body: new Uint8Array() }
}

const noStore = ['Cache-Control', 'no-store'] as const

function jsonAnswer(status: number, value: object): Answer {
  return { status, headers: [['Content-Type', 'application/json'], noStore], body: Buffer.from(JSON.stringify(value)) }
}

/** What a structured-field string can hold, so that the client can send its session in a header. */
const sendable = /^[\x20-\x7e]{1,255}$/

/** A client that gives no name gets one. */
function clientIn(body: Uint8Array): string | SessionProblem {
  if (body.length === 0) return newId()
  const value = parseStrictJson(body)?.value
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    return invalid('The body must be empty, or a JSON object such as {"client":"till-7"}.')
  }
  const { client } = value as { readonly client?: unknown }
  if (client === undefined) return newId()
  if (typeof client === 'string' && sendable.test(client)) return client
  return invalid('The member client must be a string of 1 to 255 characters of printable ASCII.')
}

function unescaped(name: string): string | undefined {
  try {
    const session = decodeURIComponent(name)
    return sendable.test(session) ? session : undefined
  } catch {
    return undefined
  }
}
