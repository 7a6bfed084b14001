// What it takes to reach a server by its URL: the driver, which is loaded when it is needed, a time limit, and messages about
// failures. The messages never contain the password of a URL.

import { createRequire } from 'node:module'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { sleep, systemClock } from '../../core/clock.ts'
import { invalidArgument, OnceError } from '../../core/errors.ts'

export const connectTimeoutMs = 5_000

/**
 * User and password, and whatever else of a URL can be a secret, for messages and for screens. Up to the last @: people write
 * passwords with / and @ in them as they are.
 */
export function withoutPassword(url: string): string {
  return url
    .replace(/^([a-z+-]+:\/\/)[^?]*@/i, '$1')
    .replace(/([?&][\w.-]*(?:pass|secret|token|key)[\w.-]*=)[^&]*/gi, '$1…')
}

export function checkUrl(url: string): URL {
  if (URL.canParse(url)) return new URL(url)
  throw invalidArgument(
    `${JSON.stringify(withoutPassword(url))} is no URL. Characters such as @ / # in a password are written %40 %2F %23.`,
  )
}

/** Without it, a server that accepts the connection and then sends nothing would be waited for without a limit. */
export async function inTime(work: Promise<unknown>): Promise<void> {
  const over = new AbortController()
  const late = sleep(systemClock, connectTimeoutMs, { signal: over.signal }).then(() => 'late' as const)
  try {
    if ((await Promise.race([work, late])) === 'late') throw new Error(`no answer within ${connectTimeoutMs} ms`)
  } finally {
    over.abort()
    work.catch(() => undefined)
  }
}

/** From beside this file, or else from the folder the command was started in. */
export async function driver<Module>(
  name: string,
  load: () => Promise<Module>,
  specifier: string = name,
): Promise<Module> {
  try {
    return await load()
  } catch (error) {
    if (!isMissing(error)) throw error
  }
  try {
    const path = createRequire(join(process.cwd(), 'package.json')).resolve(specifier)
    return (await import(pathToFileURL(path).href)) as Module
  } catch (error) {
    if (!isMissing(error)) throw error
    const message = `This store needs the driver "${name}", which is not installed here: npm install ${name}`
    throw new OnceError('UNSUPPORTED', { message, cause: error })
  }
}

function isMissing(error: unknown): boolean {
  const { code } = error as { code?: unknown }
  return code === 'ERR_MODULE_NOT_FOUND' || code === 'MODULE_NOT_FOUND'
}

export function unreachable(what: string, url: string, cause: unknown): OnceError {
  const message = `${what} at ${withoutPassword(url)} cannot be reached: ${messageOf(cause)}`
  return new OnceError('STORE_UNAVAILABLE', { message, cause })
}

/** Several addresses of one name fail with an AggregateError, whose own message is empty. */
export function messageOf(error: unknown): string {
  if (error instanceof AggregateError) return error.errors.map(messageOf).join(', ')
  return error instanceof Error ? error.message : String(error)
}
