// Asks a server until there is an answer, always with the same key and the same bytes. It stops at the answer, at an error that no
// retry can cure, at the time limit of the call, at the end of the retry budget, and before the server may have forgotten the key.

import { clientBackoff, fullJitterMs } from '../../core/backoff.ts'
import { follow, sleep, span } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import type { ErrorCode, Executed } from '../../core/errors.ts'
import { lastRetryAtMs } from '../pending.ts'
import type { PendingRecord } from '../pending.ts'
import { keepAnswer, keptResponse, liveResponse, readAnswer } from './answer.ts'
import type { Arrived } from './answer.ts'
import { bodyBytes } from './request.ts'
import { judge, judgeFailure } from './rules.ts'
import type { Ruling } from './rules.ts'
import type { ClientSettings } from './settings.ts'
import type { Windows } from './window.ts'

export interface Asking {
  readonly settings: ClientSettings
  readonly windows: Windows
  readonly record: PendingRecord
  /** This call has opened the record, so no other attempt came before. */
  readonly isFresh: boolean
  readonly secrets: readonly (readonly [name: string, value: string])[]
  readonly init: RequestInit
  readonly signal: AbortSignal | undefined
}

/** One call: what it has learnt so far. */
interface Progress {
  record: PendingRecord
  attempt: number
  readonly startedMs: number
  /** 'no' while every attempt was refused by a server that says so. */
  executed: Executed
}

type Tried = { readonly arrived?: Arrived; readonly ruling: Ruling }

export async function ask(asking: Asking): Promise<Response> {
  const { settings, record, isFresh } = asking
  const { clock, keys, report } = settings
  const { operation, key } = record
  const progress: Progress = {
    record,
    attempt: 0,
    startedMs: clock.elapsed(),
    executed: isFresh ? 'no' : 'unknown',
  }
  settings.budget.request()
  for (;;) {
    if (progress.record.answer) return keptResponse(progress.record.answer)
    refuseLate(asking, progress, clock.now())
    progress.attempt++
    report({ operation, key, attempt: progress.attempt, state: 'sending' })
    const { arrived, ruling } = await attempt(asking, progress)
    if (arrived) learnWindow(asking, progress, arrived)
    if (ruling.is === 'answer') return await answered(asking, progress, arrived!)
    if (ruling.is === 'error') throw await refused(asking, progress, ruling)
    if (ruling.executed !== 'no') progress.executed = 'unknown'
    await pause(asking, progress, ruling)
    // Another tab or process may have got the answer meanwhile.
    const standing = await keys.get(operation)
    if (standing?.key === key) progress.record = standing
  }
}

async function attempt(asking: Asking, progress: Progress): Promise<Tried> {
  const { settings, signal, init } = asking
  const { clock, retry, server, answerBytesMax } = settings
  const { request } = progress.record
  const headers = await headersOf(asking, progress.record.key)
  const leftMs = retry.totalMs - (clock.elapsed() - progress.startedMs)
  const limitMs = Math.max(1, Math.ceil(Math.min(retry.attemptMs, leftMs)))
  const following = signal ? follow(signal) : { controller: new AbortController(), unfollow: () => {} }
  const timeOut = (): void => following.controller.abort(new Error(`no response within ${limitMs} ms`))
  const cancel = clock.schedule(timeOut, limitMs)
  let passesThrough = false
  try {
    signal?.throwIfAborted()
    const response = await settings.fetch(request.url, {
      ...request.init,
      ...init,
      method: request.method,
      headers,
      body: bodyBytes(request),
      signal: following.controller.signal,
    })
    const arrived = await readAnswer(response, answerBytesMax)
    passesThrough = arrived.bytes === undefined
    return { arrived, ruling: judge(arrived, server.replayHeader, clock.now()) }
  } catch (error) {
    // The caller gave up: the record stays, and the next call goes on.
    if (signal?.aborted) throw signal.reason
    return { ruling: judgeFailure(error) }
  } finally {
    cancel()
    if (!passesThrough) following.unfollow()
  }
}

async function headersOf({ settings, record, secrets }: Asking, key: string): Promise<Headers> {
  const headers = new Headers(record.request.headers.map(([name, value]) => [name, value]))
  for (const [name, value] of secrets) headers.set(name, value)
  new Headers((await settings.headers()) as Headers).forEach((value, name) => headers.set(name, value))
  const { header, quoted, inBody } = settings.server
  if (!inBody) headers.set(header, quoted ? `"${key}"` : key)
  return headers
}

function learnWindow({ windows }: Asking, progress: Progress, { response }: Arrived): void {
  const windowMs = windows.learn(progress.record.request.url, response.headers)
  if (windowMs !== undefined) progress.record = { ...progress.record, windowMs }
}

async function answered(asking: Asking, progress: Progress, arrived: Arrived): Promise<Response> {
  const { keys, report } = asking.settings
  const { operation, key } = progress.record
  if (arrived.bytes !== undefined) await saved(keys.save({ ...progress.record, answer: keepAnswer(arrived) }))
  report({ operation, key, attempt: progress.attempt, state: 'answered', status: arrived.response.status })
  return liveResponse(arrived)
}

// The answer is here, and the key is still kept: to throw now would hide what is known. `settled` throws if the store stays broken.
async function saved(saving: Promise<void>): Promise<void> {
  await saving.catch(() => {})
}

/** What no retry can cure. A request that nobody has run, and that nobody will, leaves nothing behind. */
async function refused(
  asking: Asking,
  progress: Progress,
  ruling: Extract<Ruling, { is: 'error' }>,
): Promise<OnceError> {
  const { keys } = asking.settings
  const { record } = progress
  const executed = ruling.executed === 'no' ? progress.executed : ruling.executed
  if (executed === 'no') await saved(keys.remove(record.operation, record.key))
  // Whatever is asked again later, the server has forgotten the answer.
  if (ruling.code === 'EXPIRED') await saved(keys.save({ ...record, windowMs: 0 }))
  const next =
    ruling.code === 'EXPIRED' ? askAPerson(record) : `Retries cannot change that. See ${ruling.code} in docs/errors.md.`
  return failure(asking, progress, ruling.code, { executed, why: ruling.why, next })
}

function askAPerson({ operation }: PendingRecord): string {
  return `It is unknown whether it took effect, and a new key could run it twice: ask a person to look at the server, then client.forget('${operation}').`
}

/** Throws when the server may have forgotten the key by then. */
function refuseLate(asking: Asking, progress: Progress, atMs: number, why = 'no attempt was made now'): void {
  const { horizonMs } = asking.settings.retry
  const { record } = progress
  if (atMs < lastRetryAtMs(record, horizonMs)) return
  const window = record.windowMs === undefined ? 'unknown' : span(record.windowMs)
  const next = `The first attempt was ${span(atMs - record.sentAtMs!)} before the next one, the server's window is ${window}, the client's horizon ${span(horizonMs)}. ${askAPerson(record)}`
  throw failure(asking, progress, 'EXPIRED', { executed: 'unknown', why, next })
}

/** Waits before the next attempt, or throws when there is to be none. */
async function pause(asking: Asking, progress: Progress, ruling: Extract<Ruling, { is: 'retry' }>): Promise<void> {
  const { settings, signal } = asking
  const { clock, retry, random, report, keys, budget } = settings
  const { record, attempt: tried } = progress
  const { operation, key } = record
  const { why, retryAfterMs } = ruling
  const pauseMs = Math.ceil((retryAfterMs ?? 0) + fullJitterMs(clientBackoff, tried - 1, random))
  refuseLate(asking, progress, clock.now() + pauseMs, why)
  const spentMs = clock.elapsed() - progress.startedMs
  const stop = (next: string): OnceError =>
    failure(asking, progress, 'NO_ANSWER', { executed: progress.executed, why, next, retryAfterMs })
  if (spentMs + pauseMs >= retry.totalMs) {
    throw stop(
      `The next attempt in ${span(pauseMs)} would be beyond retry.totalMs (${span(retry.totalMs)}, of which ${span(spentMs)} are used). ${again(operation)}`,
    )
  }
  if (!budget.retry()) throw stop(`The retry budget is used up, as too many requests fail. ${again(operation)}`)
  await keys.save(record)
  report({ operation, key, attempt: tried, state: 'waiting', retryInMs: pauseMs, why })
  await sleep(clock, pauseMs, signal ? { signal } : {})
  signal?.throwIfAborted()
}

function again(operation: string): string {
  return `The key is kept: call client.fetch with operation '${operation}' again, or client.resume.`
}

function failure(
  asking: Asking,
  progress: Progress,
  code: ErrorCode,
  details: { executed: Executed; why: string; next: string; retryAfterMs?: number | undefined },
): OnceError {
  const { record, attempt: tried } = progress
  const { operation, key, request } = record
  const { origin, pathname } = new URL(request.url)
  const { executed, why, next, retryAfterMs } = details
  asking.settings.report({ operation, key, attempt: tried, state: 'failed', why })
  return new OnceError(code, {
    executed,
    message: `${request.method} ${origin}${pathname} for ${operation} (key ${key}) has no answer after ${tried} attempts: ${why}. ${next}`,
    ...(retryAfterMs !== undefined && { retryAfterMs }),
  })
}
