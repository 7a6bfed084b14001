// From messages to answers: what is read in each, which are the same, what the delivery promises, and when a message is acknowledged.

import { backoffs, pausesMs } from '../../core/backoff.ts'
import { publish } from '../../core/events.ts'
import type { Delivered } from '../broker.ts'
import { HandlerError } from './ground.ts'
import type { MessageDelivery, Handled, InboxGround, InboxSettings, Run } from './ground.ts'
import { readMessage } from './message.ts'
import type { Read, Reading } from './message.ts'

export interface Delivering<M> {
  readonly settings: InboxSettings<M>
  readonly delivery: MessageDelivery
  readonly ground: InboxGround<M>
  readonly reading: Reading<M>
  sweepAfterMs: number
}

export async function handleMany<M>(
  delivering: Delivering<M>,
  messages: readonly M[],
  run: Run<M>,
): Promise<readonly Handled[]> {
  const results: (Handled | undefined)[] = messages.map(() => undefined)
  const { settings, ground, delivery } = delivering
  const reads = messages.map((message, position) => {
    try {
      return readMessage(message, settings.scope, delivering.reading)
    } catch (error) {
      // idOf, bodyOf or versionOf of the user's.
      results[position] = { is: 'failed', error, attempts: 0, retryAfterMs: backoffs.message.firstMs }
      return undefined
    }
  })
  const firsts = new Map<string, number>()
  for (const [position, read] of reads.entries()) {
    if (!read) continue
    const notRun = refuseUnread(delivering, read)
    if (notRun) results[position] = await notRun
    else if (!firsts.has(read.id)) firsts.set(read.id, position)
  }
  const positions = [...firsts.values()]
  const handled = await byDelivery(
    delivering,
    positions.map((position) => reads[position]!),
    run,
  )
  positions.forEach((position, index) => (results[position] = handled[index]!))
  for (const [position, read] of reads.entries()) {
    if (!read || results[position]) continue
    const first = firsts.get(read.id)!
    if (read.fingerprint === reads[first]!.fingerprint) results[position] = asFirst(results[first]!)
    else if (delivery === 'at-least-once') results[position] = await ground.park(read, 'MISMATCH', otherBody)
    else if (
      isHeld(results[first]) ||
      reads.some((other, at) => at < position && isOfKey(other, read) && isHeld(results[at]))
    )
      results[position] = { is: 'busy', retryAfterMs: pausesMs.heldKey }
    // The mark tells which of the two was first: it need not be the one that comes first in this batch.
    else results[position] = (await byDelivery(delivering, [read], run))[0]
  }
  results.forEach((result, position) => tell(settings, reads[position]?.id, result!))
  sweepSometimes(delivering)
  return results as Handled[]
}

/** A message that must not be run, whatever is marked. */
function refuseUnread<M>({ settings, ground }: Delivering<M>, read: Read<M>): Promise<Handled> | undefined {
  if (read.isNameless) {
    const detail = 'it has no id, so it cannot be told from others: give createInbox an idOf, or let its sender name it'
    return ground.park(read, 'NO_ID', detail)
  }
  if (read.sentAtMs === undefined) return undefined
  const ageMs = settings.clock.now() - read.sentAtMs
  if (ageMs <= settings.windowMs) return undefined
  return ground.park(
    read,
    'TOO_OLD',
    `it was sent ${ageMs} ms ago, and messages are remembered for ${settings.windowMs} ms`,
  )
}

const otherBody = 'another message with the same id and another body came before'

/** It must come again, and what is behind it waits. */
function isHeld(handled: Handled | undefined): boolean {
  return handled?.is === 'failed' || handled?.is === 'busy'
}

function isOfKey(other: Read<unknown> | undefined, { key }: Read<unknown>): boolean {
  return key !== undefined && other?.key === key
}

/** The second of two equal messages in one batch. */
function asFirst(handled: Handled): Handled {
  if (handled.is === 'handled') return { is: 'duplicate' }
  return handled.is === 'failed' ? { is: 'busy', retryAfterMs: handled.retryAfterMs } : handled
}

async function byDelivery<M>(
  { delivery, ground }: Delivering<M>,
  reads: readonly Read<M>[],
  run: Run<M>,
): Promise<readonly Handled[]> {
  if (reads.length === 0) return []
  if (delivery === 'effectively-once') return ground.handle(reads, run)
  if (delivery === 'at-least-once') return runUnmarked(ground, reads, run)
  const marked: Handled[] = []
  for (const read of reads) marked.push(await ground.mark(read))
  const fresh = reads.filter((_read, position) => marked[position]!.is === 'handled')
  // It is marked, so it never comes again, whatever becomes of the handler: that is the choice.
  const ended = await runUnmarked(ground, fresh, run)
  return marked.map((each, position) => (each.is === 'handled' ? ended[fresh.indexOf(reads[position]!)]! : each))
}

async function runUnmarked<M>(
  ground: InboxGround<M>,
  reads: readonly Read<M>[],
  run: Run<M>,
): Promise<readonly Handled[]> {
  if (reads.length === 0) return []
  try {
    await ground.run(reads, run)
    return reads.map(() => ({ is: 'handled' }))
  } catch (thrown) {
    const error = thrown instanceof HandlerError ? thrown.cause : thrown
    return reads.map(() => ({ is: 'failed', error, attempts: 1, retryAfterMs: backoffs.message.firstMs }))
  }
}

export async function deliverOne<M>(
  delivering: Delivering<M>,
  message: M,
  run: Run<M>,
  acknowledge: () => Promise<void>,
): Promise<Delivered> {
  const [delivered] = await deliverMany(delivering, [message], run, acknowledge)
  return delivered!
}

/** Never throws. */
export async function deliverMany<M>(
  delivering: Delivering<M>,
  messages: readonly M[],
  run: Run<M>,
  acknowledge: (positions: readonly number[]) => Promise<void>,
): Promise<readonly Delivered[]> {
  try {
    if (delivering.delivery === 'at-most-once') return await deliverAtMostOnce(delivering, messages, run, acknowledge)
    const handled = await handleMany(delivering, messages, run)
    const ended = handled.flatMap(({ is }, position) => (is === 'failed' || is === 'busy' ? [] : [position]))
    if (ended.length > 0) await acknowledge(ended)
    return handled.map(deliveredOf)
  } catch (error) {
    return messages.map(() => ({ acknowledged: false, retryAfterMs: backoffs.message.firstMs, error }))
  }
}

// The handler is called when its messages are marked and acknowledged, and not before.
async function deliverAtMostOnce<M>(
  delivering: Delivering<M>,
  messages: readonly M[],
  run: Run<M>,
  acknowledge: (positions: readonly number[]) => Promise<void>,
): Promise<readonly Delivered[]> {
  // What the user's own functions cannot read is not run, so it must come again.
  const positions = messages.flatMap((message, position) => (canRead(delivering, message) ? [position] : []))
  let isAcknowledged = false
  const handled = await handleMany(delivering, messages, async (tx, fresh) => {
    const isFirst = !isAcknowledged
    isAcknowledged = true
    if (isFirst) await acknowledge(positions)
    await run(tx, fresh)
  })
  const isBusy = handled.some(({ is }) => is === 'busy')
  if (!isAcknowledged && !isBusy && positions.length > 0) await acknowledge(positions)
  return handled.map((each, position) => {
    const isLeft = !positions.includes(position) || (each.is === 'busy' && !isAcknowledged)
    return isLeft ? deliveredOf(each) : { acknowledged: true }
  })
}

function canRead<M>({ settings, reading }: Delivering<M>, message: M): boolean {
  try {
    readMessage(message, settings.scope, reading)
    return true
  } catch {
    return false
  }
}

function deliveredOf(handled: Handled): Delivered {
  switch (handled.is) {
    case 'failed':
      return { acknowledged: false, retryAfterMs: handled.retryAfterMs, error: handled.error }
    case 'busy':
      return {
        acknowledged: false,
        retryAfterMs: handled.retryAfterMs,
        error: new Error('the message is in other hands'),
      }
    default:
      return { acknowledged: true }
  }
}

function tell({ scope }: InboxSettings<never>, id: string | undefined, handled: Handled): void {
  const key = id === undefined ? undefined : { scope, id }
  publish('message', key, {
    is: handled.is,
    ...(handled.is === 'refused' && { code: handled.code }),
    ...(handled.is === 'failed' && { attempts: handled.attempts }),
  })
}

/** Marks are kept for this much longer than the window, because the clocks of senders, brokers and databases disagree. */
const clockSkewMs = 3_600_000

const sweepEveryMs = 60_000
const sweepLimit = 1_000

// With the work that makes the marks, so that an inbox needs no timer and nothing has to be closed.
function sweepSometimes<M>(delivering: Delivering<M>): void {
  const { settings, ground } = delivering
  const nowMs = settings.clock.elapsed()
  if (nowMs < delivering.sweepAfterMs) return
  delivering.sweepAfterMs = nowMs + sweepEveryMs * (0.5 + settings.random.fraction())
  void ground.sweep(settings.clock.now() - settings.windowMs - clockSkewMs, sweepLimit).catch(() => {})
}
