// The inbox on a store that cannot commit together with the effect (Redis, MongoDB, memory): each message is a key, claimed before its
// handler runs and settled after it, as `once.run` does. A crash in between runs the handler again. DynamoDB collects what the handler
// writes and settles with it.

import type { OnceRunner } from '../../core/once.ts'
import { hasTransactions } from '../../core/once.ts'
import { backoffMs, backoffs } from '../../core/backoff.ts'
import { FinalError, OnceError } from '../../core/errors.ts'
import type { Op } from '../../core/call.ts'
import type { RunOptions } from '../../core/settings.ts'
import type { Handled, InboxGround, InboxSettings, Run } from './ground.ts'
import { deadlineOf, refused } from './ground.ts'
import type { Read } from './message.ts'
import type { ParkedCode } from './parked.ts'

/** What a message leaves that was tried too often: the answer to every later delivery. */
const exhausted = 'onceonly: the message was tried too often'

interface Transactions {
  transaction(
    id: unknown,
    effect: (tx: unknown, op: Op) => unknown,
    options: RunOptions,
  ): Promise<{ replayed: boolean }>
}

interface ClaimContext<M> {
  readonly once: OnceRunner
  readonly settings: InboxSettings<M>
}

export function byClaim<M>(once: OnceRunner, settings: InboxSettings<M>): InboxGround<M> {
  const context: ClaimContext<M> = { once, settings }
  return {
    guarantee: 'claim-and-settle',
    async handle(messages, run) {
      const results: Handled[] = []
      const held = new Set<string>()
      for (const message of messages) {
        const isHeld = message.key !== undefined && held.has(message.key)
        const handled = isHeld ? busy() : await handleOne(context, message, run)
        if ((handled.is === 'failed' || handled.is === 'busy') && message.key !== undefined) held.add(message.key)
        results.push(handled)
      }
      return results
    },
    mark: (message) => handleOne(context, message, () => undefined),
    async run(messages, run) {
      const given = messages.map(({ message }) => message)
      await deadlineOf(settings, () => run(undefined, given))
    },
    park: (message, code, detail) => park(context, message, code, detail),
    sweep: async () => {}, // the store expires its own entries
  }
}

const busy = (): Handled => ({ is: 'busy', retryAfterMs: backoffs.message.firstMs })

async function handleOne<M>(context: ClaimContext<M>, message: Read<M>, run: Run<M>): Promise<Handled> {
  const { settings } = context
  const trying = { attempts: 1, isInHandler: false }
  const deadLetter = async (detail: string): Promise<never> => {
    await settings.deadLetter?.(message.message, { code: 'ATTEMPTS', detail })
    throw new FinalError(exhausted)
  }
  try {
    const { replayed } = await ask(context, message, async (tx, { attempt }) => {
      trying.attempts = attempt
      if (attempt > settings.attempts) return deadLetter(neverEnded)
      try {
        trying.isInHandler = true
        await run(tx, [message.message])
        trying.isInHandler = false
      } catch (error) {
        if (attempt < settings.attempts) throw error
        return deadLetter(error instanceof Error ? error.message : String(error))
      }
      return null
    })
    return replayed ? { is: 'duplicate' } : { is: 'handled' }
  } catch (error) {
    return answerTo(context, message, error, trying)
  }
}

/** `tx` is undefined unless the store collects. */
async function ask<M>(
  { once, settings }: ClaimContext<M>,
  { id, fingerprint }: Read<M>,
  effect: (tx: unknown, op: Op) => unknown,
): Promise<{ replayed: boolean }> {
  const key = { scope: settings.scope, id }
  const options = { fingerprint, keepMs: settings.windowMs, waitMs: 0, attemptMs: settings.attemptMs }
  if (hasTransactions(once.store)) return (once as unknown as Transactions).transaction(key, effect, options)
  return once.run(key, (op) => effect(undefined, op) as null, options)
}

async function answerTo<M>(
  context: ClaimContext<M>,
  message: Read<M>,
  error: unknown,
  { attempts, isInHandler }: { readonly attempts: number; readonly isInHandler: boolean },
): Promise<Handled> {
  if (error instanceof Error && error.message === exhausted) return refused('PARKED', neverEnded)
  switch (!isInHandler && error instanceof OnceError ? error.code : undefined) {
    case 'MISMATCH':
      return park(context, message, 'MISMATCH', 'another message with the same id and another body came before')
    case 'EXPIRED':
      return park(context, message, 'TOO_OLD', 'its mark has expired')
    case 'IN_FLIGHT':
      return busy()
    default:
  }
  const { random } = context.settings
  return { is: 'failed', error, attempts, retryAfterMs: backoffMs(backoffs.message, attempts - 1, random) }
}

async function park<M>(
  { settings }: ClaimContext<M>,
  message: Read<M>,
  code: ParkedCode,
  detail: string,
): Promise<Handled> {
  await settings.deadLetter?.(message.message, { code, detail })
  return refused(code === 'ATTEMPTS' ? 'PARKED' : code, detail)
}

const neverEnded = 'it was tried as often as attempts says, and never ended'
