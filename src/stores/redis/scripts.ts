// Runs a script on the server that has its keys, by its hash, and by its text where the server does not know it yet.

import { hash } from 'node:crypto'
import { OnceError } from '../../core/errors.ts'
import { bounded } from '../../core/timed-call.ts'
import type { StoreCalls } from '../../core/timed-call.ts'
import type { RedisArgument, RedisLink } from '../../clients/redis.ts'
import { messageOf, refusedUser } from '../refusals.ts'
import type { Names } from './names.ts'

export interface Script {
  readonly source: string
  readonly sha: string
}

export function scriptOf(source: string): Script {
  return { source, sha: hash('sha1', source, 'hex') }
}

/** What every part of the store needs. */
export interface RedisContext {
  readonly link: RedisLink
  readonly names: Names
  readonly calls: StoreCalls
}

/** The first key decides which server it is. */
export interface ScriptRun {
  readonly script: Script
  readonly keys: readonly string[]
  /** As a function: made anew for the second try, because the process may have learnt something in between. */
  readonly values: readonly RedisArgument[] | (() => readonly RedisArgument[])
  /** Receives a reply that comes after the time-out. */
  readonly late?: (reply: unknown) => void
}

export async function runScript(
  { link, calls }: Pick<RedisContext, 'link' | 'calls'>,
  { script, keys, values, late }: ScriptRun,
): Promise<unknown> {
  const command = (name: 'EVAL' | 'EVALSHA'): Promise<unknown> => {
    const given = typeof values === 'function' ? values() : values
    const text = name === 'EVAL' ? script.source : script.sha
    return link.send(keys[0]!, [name, text, `${keys.length}`, ...keys, ...given])
  }
  const run = (): Promise<unknown> =>
    command('EVALSHA').catch((error: unknown) => {
      // The server was restarted, or its scripts were flushed.
      if (error instanceof Error && error.message.startsWith('NOSCRIPT')) return command('EVAL')
      throw error
    })
  return bounded(calls, run, late)
}

/** An error that the server returned begins with a word in capitals: OOM, READONLY, WRONGTYPE. */
export function isServerError(error: unknown): boolean {
  return error instanceof Error && /^[A-Z]{2,} /.test(error.message)
}

/** `what` is the call, with its key where it has one: "claim payments/order-42". */
export function unavailable(what: string, cause: unknown): OnceError {
  if (cause instanceof OnceError) return cause
  const why = messageOf(cause)
  // No password, a wrong one, a command that the user may not use. The server ran nothing.
  if (/^(NOAUTH|WRONGPASS|NOPERM)\b/.test(why)) {
    return refusedUser({
      server: 'Redis',
      cause,
      correct: 'the user, the password or the rights (ACL) of the client that the store was given',
    })
  }
  return new OnceError('STORE_UNAVAILABLE', {
    message: `Redis could not ${what}: ${why}. Check that it is up, reachable and takes writes (onceonly doctor).`,
    cause,
  })
}
