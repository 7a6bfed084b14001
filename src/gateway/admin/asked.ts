// What a request to the admin server asks for: its parameters and its body, read and checked.

import type { IncomingMessage } from 'node:http'
import { invalidArgument } from '../../core/errors.ts'
import type { Key } from '../../core/key.ts'
import { aString, checkOptions, oneOf, optional } from '../../core/options.ts'
import type { EntryState } from '../../core/store.ts'
import type { ParkedFilter } from '../../messages/inbox.ts'
import type { DeadLetterFilter } from '../../messages/outbox.ts'
import type { ScopedFilter } from '../../sessions/sessions.ts'
import type { DeliveryFilter, EndpointFilter } from '../../webhooks.ts'
import type { FoundText } from '../found-outcome.ts'
import { entryStates } from './entries.ts'
import type { DeliveryName } from './webhooks.ts'

export function keyOf(parameters: URLSearchParams): Key {
  return { scope: parameters.get('scope') ?? '', id: parameters.get('id') ?? '' }
}

const aState = optional(oneOf(...entryStates))

export function filterOf(parameters: URLSearchParams): { scope?: string; state?: EntryState; after?: Key } {
  const scope = parameters.get('scope') || undefined
  const state = parameters.get('state') || undefined
  const wrong = aState(state)
  if (wrong) throw invalidArgument(`expected state to be ${wrong}`)
  const after = parameters.has('afterId')
    ? { scope: parameters.get('afterScope') ?? '', id: parameters.get('afterId') ?? '' }
    : undefined
  return {
    ...(scope !== undefined && { scope }),
    ...(state !== undefined && { state: state as EntryState }),
    ...(after && { after }),
  }
}

const aParkedCode = optional(oneOf('ATTEMPTS', 'TOO_OLD', 'MISMATCH', 'NO_ID'))

export function parkedFilter(parameters: URLSearchParams): Omit<ParkedFilter, 'limit'> {
  const given = givenIn(parameters, ['scope', 'id', 'code'])
  const wrong = aParkedCode(given.code)
  if (wrong) throw invalidArgument(`expected code to be ${wrong}`)
  const { afterScope, afterId, afterFingerprint } = givenIn(parameters, ['afterScope', 'afterId', 'afterFingerprint'])
  const after = { scope: afterScope ?? '', id: afterId ?? '', fingerprint: afterFingerprint ?? '' }
  return { ...(given as Omit<ParkedFilter, 'limit' | 'after'>), ...(afterId !== undefined && { after }) }
}

const aHeldState = optional(oneOf('waiting', 'parked', 'dead'))

export function letterFilter(parameters: URLSearchParams): Omit<DeadLetterFilter, 'limit' | 'after'> {
  const given = givenIn(parameters, ['state', 'topic', 'key', 'type', 'id'])
  const wrong = aHeldState(given.state)
  if (wrong) throw invalidArgument(`expected state to be ${wrong}`)
  return given as Omit<DeadLetterFilter, 'limit' | 'after'>
}

export function sessionFilter(parameters: URLSearchParams): Omit<ScopedFilter, 'limit'> {
  const { afterScope, afterSession } = givenIn(parameters, ['afterScope', 'afterSession'])
  const after = { scope: afterScope ?? '', session: afterSession ?? '' }
  return { ...givenIn(parameters, ['scope', 'begins']), ...(afterSession !== undefined && { after }) }
}

const anEndpointState = optional(oneOf('active', 'disabled'))

export function endpointFilter(parameters: URLSearchParams): Omit<EndpointFilter, 'limit'> {
  const given = givenIn(parameters, ['topic', 'state', 'after'])
  const wrong = anEndpointState(given.state)
  if (wrong) throw invalidArgument(`expected state to be ${wrong}`)
  return given as Omit<EndpointFilter, 'limit'>
}

const aDeliveryState = optional(oneOf('pending', 'delivered', 'failed'))

export function deliveryFilter(
  parameters: URLSearchParams,
): Pick<DeliveryFilter, 'id' | 'endpoint' | 'topic' | 'state' | 'after'> {
  const { after, ...given } = givenIn(parameters, ['id', 'endpoint', 'topic', 'state', 'after'])
  const wrong = aDeliveryState(given.state)
  if (wrong) throw invalidArgument(`expected state to be ${wrong}`)
  if (after !== undefined && !/^[1-9]\d{0,14}$/.test(after)) throw invalidArgument('expected after to be a position')
  return { ...(given as Pick<DeliveryFilter, 'id'>), ...(after !== undefined && { after: Number(after) }) }
}

export function deliveryName(parameters: URLSearchParams): DeliveryName {
  return { id: parameters.get('id') ?? '', endpoint: parameters.get('endpoint') ?? '' }
}

/** A field of a form that was left empty chooses nothing. */
function givenIn<Name extends string>(parameters: URLSearchParams, names: readonly Name[]): { [N in Name]?: string } {
  const given = names.flatMap((name) => (parameters.get(name) ? [[name, parameters.get(name)!] as const] : []))
  return Object.fromEntries(given) as { [N in Name]?: string }
}

export const foundAs = ['value', 'failure', 'response'] as const
export type FoundAs = (typeof foundAs)[number]

export function foundText(as: FoundAs, text: string): FoundText {
  if (as === 'response') return { response: Buffer.from(text) }
  return as === 'failure' ? { failure: text } : { value: text }
}

export type GivenRules<Given> = { readonly [Name in keyof Given]: (value: unknown) => string | undefined }

// A key, a reason and their names. No change needs more.
export const changeBytesMax = 8_192
// And a response that a person pasted. A larger response goes through the command line, from a file.
export const resolveBytesMax = 262_144

export async function readChange<Given extends object>(
  request: IncomingMessage,
  rules: GivenRules<Given>,
  bytesMax: number,
): Promise<Given & { reason: string }> {
  // A form of another site cannot send this type without a preflight, which is refused.
  if (!/^application\/json\b/.test(request.headers['content-type'] ?? '')) {
    throw invalidArgument('expected Content-Type to be application/json')
  }
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length
    if (bytes > bytesMax) throw invalidArgument(`expected at most ${bytesMax} bytes`)
    chunks.push(chunk)
  }
  const given = parseJson(Buffer.concat(chunks).toString('utf8'))
  checkOptions('change', given, { reason: aString, ...rules })
  return given as Given & { reason: string }
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    throw invalidArgument('expected JSON')
  }
}
