// What goes wrong with a broker, for events: codes and names of errors only, whatever a client may have put in their place. A message
// of an error could name a key.

import { publish } from '../core/events.ts'
import type { Events } from '../core/events.ts'

/** What is being asked of the broker. */
export type FailedDuring = Events['consumer-failed']['during']

/** The library never logs: it publishes what failed, with the client's code for it. */
export function reportFailed(
  { broker, consumer }: { readonly broker: string; readonly consumer: string },
  during: FailedDuring,
  error: unknown,
): void {
  const cause = codeOf(error)
  publish('consumer-failed', undefined, { broker, consumer, during, ...(cause !== undefined && { cause }) })
}

/** The code of Node (ECONNREFUSED), of the client or of the broker (320), else the name of the error. */
export function codeOf(error: unknown): string | undefined {
  if (!(error instanceof Error)) return undefined
  const { apiId, type, code, name } = error as Error & { readonly [field: string]: unknown }
  const known = [apiId, type, code, name].find((each) => typeof each === 'string' || typeof each === 'number')
  return /^[\w.-]{1,60}$/.test(String(known)) ? String(known) : undefined
}

export function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error))
}
