// Asks a server until there is an answer, always with the same key and the same bytes. It stops at the answer, at an error that no
// retry can cure, at the time limit of the call, at the end of the retry budget, and before the server may have forgotten the key.

import { clientBackoff, fullJitterMs } from '../../core/backoff.ts'
import { follow, sleep } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import type { ErrorCode, Executed } from '../../core/errors.ts'
import { lastRetryAtMs } from '../pending.ts'
import type { PendingRecord } from '../pending.ts'
import { keepAnswer, keptResponse, readAnswer, responseOf } from './answer.ts'
import type { Arrived } from './answer.ts'
import { fromBase64 } from './bytes.ts'
import type { SerialisedRequest } from './request.ts'
import { judge, judgeFailure } from './rules.ts'
import type { Ruling } from './rules.ts'
import type { AttemptReport, ClientSettings } from './settings.ts'
import type { ReadWindow } from './window.ts'

/** What the caller gave for this call only. */
export type AskedBy = Pick<SerialisedRequest, 'secrets' | 'init' | 'signal'>

/** One call, and what it has learnt so far. */
export interface ClientCall extends ClientSettings {
  readonly readWindow: ReadWindow
  readonly asked: AskedBy
  record: PendingRecord
  /** 'no' while no attempt can have run the effect: this call has opened the record, and the server said so each time. */
  executed: Executed
  attempt: number
  readonly startedMs: number
}

export async function ask(asking: ClientCall): Promise<Response> {
  const { keys, budget, clock } = asking
  const { operation, key } = asking.record
  budget.request()
  for (;;) {
    const { answer } = asking.record
    if (answer) return keptResponse(answer)
    refuseLate(asking, clock.now(), 'nothing was sent')
    asking.attempt++
    tell(asking, { state: 'sending' })
    const { arrived, ruling } = await attempt(asking)
    if (ruling.is === 'answer') {
      const kept = keepAnswer(arrived!)
      if (kept) await quietly(keys.save({ ...asking.record, answer: kept }))
      tell(asking, { state: 'answered', status: arrived!.status })
      return responseOf(arrived!)
    }
    if (ruling.is !== 'retry') throw await refused(asking, ruling.is, ruling)
    if (ruling.executed !== 'no') asking.executed = 'unknown'
    await pause(asking, ruling)
    // Another tab or process may have got the answer meanwhile.
    const standing = await keys.get(operation)
    if (standing?.key === key) asking.record = standing
  }
}

async function attempt(asking: ClientCall): Promise<{ readonly arrived?: Arrived; readonly ruling: Ruling }> {
  const { asked, record, clock, retry, server, answerBytesMax, startedMs } = asking
  const { url, method, body, init } = record.request
  const { signal } = asked
  const headers = await headersOf(asking)
  const limitMs = Math.max(1, Math.ceil(Math.min(retry.attemptMs, retry.totalMs + startedMs - clock.elapsed())))
  const { controller, unfollow } = follow(signal)
  const cancel = clock.schedule(() => controller.abort(new Error(`no response within ${limitMs} ms`)), limitMs)
  let passes = false
  try {
    signal.throwIfAborted()
    const sent = { ...init, ...asked.init, method, headers, body: fromBase64(body), signal: controller.signal }
    const arrived = await readAnswer(await asking.fetch(url, sent), answerBytesMax)
    const windowMs = asking.readWindow(url, arrived.headers)
    if (windowMs < Infinity) asking.record = { ...record, windowMs }
    const ruling = judge(arrived, server, clock.now())
    passes = ruling.is === 'answer' && arrived.body instanceof ReadableStream
    return { arrived, ruling }
  } catch (error) {
    // The caller gave up: the record stays, and the next call goes on.
    signal.throwIfAborted()
    return { ruling: judgeFailure(error) }
  } finally {
    cancel()
    // A body that passes through is still the caller's to abort. One that nobody will read must not keep its connection.
    if (!passes) {
      unfollow()
      controller.abort()
    }
  }
}

async function headersOf({ headers: toAdd, server, asked, record }: ClientCall): Promise<Headers> {
  const headers = new Headers(record.request.headers as [string, string][])
  const added = new Headers((await toAdd()) as Headers)
  for (const [name, value] of [...asked.secrets, ...added]) headers.set(name, value)
  if (server.header) headers.set(server.header, server.quoted ? `"${record.key}"` : record.key)
  return headers
}

// What is known now matters more than a key store that fails, and the key is still kept: to throw would hide it. `settled` throws if
// the store stays broken.
function quietly(saving: Promise<void>): Promise<void> {
  return saving.catch(() => {})
}

/** What no retry can cure. A request that nobody has run, and that nobody will, leaves nothing behind. */
async function refused(asking: ClientCall, code: ErrorCode, ruling: Ruling): Promise<OnceError> {
  const { keys, record } = asking
  const executed = ruling.executed === 'no' ? asking.executed : ruling.executed
  if (executed === 'no') await quietly(keys.remove(record.operation, record.key))
  // Whatever is asked again later, the server has forgotten the answer.
  if (code === 'EXPIRED') await quietly(keys.save({ ...record, windowMs: 0 }))
  return failure(asking, code, { ...ruling, executed }, code === 'EXPIRED' ? askAPerson : 'It is not retried.')
}

const askAPerson = 'It may have taken effect: ask a person, then client.forget().'

/** Throws when the server may have forgotten the key by then. */
function refuseLate(asking: ClientCall, atMs: number, why: string): void {
  const { record, retry } = asking
  const { horizonMs } = retry
  if (atMs < lastRetryAtMs(record, horizonMs)) return
  const { windowMs = Infinity, sentAtMs } = record
  const ages = `${(atMs - sentAtMs!) / 1_000} s after its first attempt (window ${windowMs / 1_000} s, horizon ${horizonMs / 1_000} s).`
  throw failure(asking, 'EXPIRED', { why, executed: 'unknown' }, `It is not retried ${ages} ${askAPerson}`)
}

/** Waits before the next attempt, or throws when there is to be none. */
async function pause(asking: ClientCall, ruling: Ruling): Promise<void> {
  const { record, asked, executed, clock, retry, random, keys, budget } = asking
  const { why, retryAfterMs = 0 } = ruling
  const pauseMs = Math.ceil(retryAfterMs + fullJitterMs(clientBackoff, asking.attempt - 1, random))
  refuseLate(asking, clock.now() + pauseMs, why)
  const isOver = clock.elapsed() - asking.startedMs + pauseMs >= retry.totalMs
  if (isOver || !budget.retry()) {
    const limit = isOver ? `retry.totalMs is ${retry.totalMs}` : 'The retry budget is used up'
    throw failure(
      asking,
      'NO_ANSWER',
      { ...ruling, executed },
      `${limit}. The key is kept: call client.fetch again, or client.resume().`,
    )
  }
  await keys.save(record)
  tell(asking, { state: 'waiting', retryInMs: pauseMs, why })
  await sleep(clock, pauseMs, asked)
  asked.signal.throwIfAborted()
}

function tell(
  { onAttempt, record, attempt: tried }: ClientCall,
  report: Omit<AttemptReport, 'operation' | 'key' | 'attempt'>,
): void {
  onAttempt({ operation: record.operation, key: record.key, attempt: tried, ...report })
}

function failure(asking: ClientCall, code: ErrorCode, told: Omit<Ruling, 'is'>, next: string): OnceError {
  const { operation, key, request } = asking.record
  const { why } = told
  tell(asking, { state: 'failed', why })
  // Without its query, which may hold secrets.
  const address = request.url.split('?')[0]
  const message = `${operation} (${request.method} ${address}, key ${key}) has no answer after ${asking.attempt} attempts: ${why}. ${next}`
  return new OnceError(code, { ...told, message })
}
