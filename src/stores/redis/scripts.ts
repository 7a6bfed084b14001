// Runs a script on the server that has its keys, by its hash, and by its text where the server does not know it yet.

import { hash } from 'node:crypto'
import { OnceError } from '../../core/errors.ts'
import { bounded } from '../../core/timed-call.ts'
import type { StoreCalls } from '../../core/timed-call.ts'
import type { RedisArgument, RedisLink } from '../../clients/redis.ts'
import { messageOf, refusedUser, unavailable } from '../failures.ts'
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
  readonly commands: CommandsInUse
}

/** The native commands that all servers have, as far as they were asked. Without them, scripts do the same. */
export interface CommandsInUse {
  readonly claims: boolean
  /** How a short script compares: by IFEQ, or in Lua where the server has none. */
  readonly writes: 'ifeq' | 'script' | undefined
  /** Everything by script, until the servers are asked again. */
  none(): void
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
      if (isUnknownScript(error)) return command('EVAL')
      throw error
    })
  return bounded(calls, run, late)
}

/** The server does not have the script of this hash: it was restarted, or its scripts were flushed. */
export function isUnknownScript(reply: unknown): boolean {
  return reply instanceof Error && reply.message.startsWith('NOSCRIPT')
}

/** An error that the server returned begins with a word in capitals: OOM, READONLY, WRONGTYPE. */
export function isServerError(error: unknown): boolean {
  return error instanceof Error && /^[A-Z]{2,} /.test(error.message)
}

export function errorOf(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error))
}

/** `what` completes "Redis could not …": "claim payments/42". */
export function storeError(cause: unknown, what: string, executed: 'no' | 'unknown'): OnceError {
  if (cause instanceof OnceError) return cause
  // No password, a wrong one, a command that the user may not use. The server ran nothing.
  if (/^(NOAUTH|WRONGPASS|NOPERM)\b/.test(messageOf(cause))) {
    return refusedUser({
      server: 'Redis',
      cause,
      correct: 'the user, the password or the rights (ACL) of the client that the store was given',
    })
  }
  const cure = 'Check that it is up, reachable and takes writes (onceonly doctor).'
  return unavailable({ server: 'Redis', what, executed, cause, cure })
}
