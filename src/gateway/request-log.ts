// What is known of a request when it has ended, and how it is written: one line of JSON. The line has the key as a hash, the
// same as in the events. It never has the key itself, the query, headers or bodies.

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import type { Clock } from '../core/clock.ts'
import type { EventName } from '../core/events.ts'

/** What became of a request. */
export type RequestResult =
  /** Had no key, or is not protected. */
  | 'passed'
  /** The upstream was asked, and its answer given. */
  | 'executed'
  /** The store was down, and the upstream was asked all the same (`onStoreDown: 'run'`). */
  | 'unprotected'
  | 'replayed'
  /** Answered by the rules: no key, a wrong one, in progress, gone, store down, … */
  | 'refused'
  /** The upstream could not be reached: nothing was sent, and the key is free. */
  | 'unreachable'
  /** The upstream was asked with a key, and what it did is not known. */
  | 'in-doubt'
  /** The upstream broke off a request without a key. */
  | 'failed'

export interface RequestRecord {
  readonly method: string
  /** Without the query, which may contain secrets. */
  readonly path: string
  readonly status: number
  readonly result: RequestResult
  readonly durationMs: number
  readonly keyHash?: string
  readonly attempt?: number
  /** Why the upstream did not answer: the driver's own code. */
  readonly cause?: string
  /** The client left before the end. */
  readonly clientGone?: true
}

export const logLevels = ['silent', 'error', 'warn', 'info'] as const
export type LogLevel = (typeof logLevels)[number]

export interface LogOptions {
  readonly level: LogLevel
  readonly clock: Clock
  /** One line, without its end. */
  readonly write: (line: string) => void
}

export interface Log {
  request(record: RequestRecord): void
  say(level: Exclude<LogLevel, 'silent'>, event: string, fields: object): void
  /** Writes failures of the store and of claims, until the returned function is called. */
  followEvents(): () => void
}

export function createLog({ level, clock, write }: LogOptions): Log {
  const loudest = logLevels.indexOf(level)
  const say: Log['say'] = (lineLevel, event, fields) => {
    if (logLevels.indexOf(lineLevel) > loudest) return
    write(JSON.stringify({ time: new Date(clock.now()).toISOString(), level: lineLevel, event, ...fields }))
  }
  return {
    say,
    request: (record) =>
      say(levelOf(record), 'request', { ...record, durationMs: Math.round(record.durationMs * 10) / 10 }),
    followEvents() {
      const follow = followed.map(([name, eventLevel]) => {
        const listener = (event: unknown): void => say(eventLevel, name, event as object)
        subscribe(`onceonly:${name}`, listener)
        return () => unsubscribe(`onceonly:${name}`, listener)
      })
      return () => follow.forEach((stop) => void stop())
    },
  }
}

const followed: readonly (readonly [EventName, 'warn' | 'error'])[] = [
  ['store-failed', 'error'],
  ['store-unfit', 'error'],
  ['data-loss', 'error'],
  ['lost', 'warn'],
  ['taken-over', 'warn'],
  ['mended', 'warn'],
]

function levelOf({ result, status }: RequestRecord): Exclude<LogLevel, 'silent'> {
  if (result === 'in-doubt') return 'error'
  return result === 'unreachable' || result === 'unprotected' || status >= 500 ? 'warn' : 'info'
}
