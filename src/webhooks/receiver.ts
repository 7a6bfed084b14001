// The idempotent receiver of webhooks. In this order: verify the raw bytes, then the inbox marks the id in the transaction of the effect,
// then the sender is answered. Invariants: what is not authenticated reaches neither the inbox nor the handler; a handler that fails
// leaves the id free; and a 2xx is said only of what is durable.
//
// An id is remembered for longer than its sender retries. Standard Webhooks speaks of 5 minutes, which is the tolerance of the signature:
// its own schedule of retries ends after 75 hours, and every attempt is signed anew.

import { channel } from 'node:diagnostics_channel'
import { span } from '../core/clock.ts'
import type { Clock, Random } from '../core/clock.ts'
import { invalidArgument, OnceError } from '../core/errors.ts'
import { checkOptions, oneOf, optional, positiveInteger, positiveMs, withMethods } from '../core/options.ts'
import type { Codec } from '../core/outcome.ts'
import type { OnceRunner, TxOf } from '../core/once.ts'
import type { Recovery, RecoveryOptions } from '../core/operations.ts'
import type { Store } from '../core/store.ts'
import type { Answer } from '../http/exchange.ts'
import { createInbox } from '../messages/inbox.ts'
import type { DeadLetterReason, Handled, Inbox } from '../messages/inbox.ts'
import { answerTo } from './receiver/answers.ts'
import type { WebhookReceived } from './receiver/answers.ts'
import { eventOf, messageOf } from './receiver/message.ts'
import type { ReceivedMessage, WebhookEvent } from './receiver/message.ts'
import { onFastify, onKoa, onNode } from './receiver/on-node.ts'
import type { FastifyWebhookPlugin, KoaWebhookContext, NodeWebhookListener } from './receiver/on-node.ts'
import { onFetch, onHono } from './receiver/on-web.ts'
import type { HonoWebhookContext } from './receiver/on-web.ts'
import { webhookQueue } from './receiver/queue.ts'
import type { WebhookQueue } from './receiver/queue.ts'
import type { VerifiedWebhook, WebhookRequest, WebhookScheme } from './request.ts'

export type { WebhookReceived } from './receiver/answers.ts'
export type { WebhookEvent } from './receiver/message.ts'
export type {
  FastifyWebhookPlugin,
  KoaWebhookContext,
  NodeWebhookListener,
  NodeWebhookRequest,
} from './receiver/on-node.ts'
export type { HonoWebhookContext } from './receiver/on-web.ts'

export interface WebhookReceiverOptions {
  /** Names this receiver. Each has its own marks: two receivers of one event have an effect each. */
  readonly consumer: string
  /** How the sender signs. */
  readonly scheme: WebhookScheme
  /**
   * 'after-effect' unless given: the sender is answered when mark and effect are committed. 'when-queued': it is answered as soon as the
   * event is stored, for senders that wait for seconds only. `work` then handles what is queued.
   */
  readonly acknowledge?: 'after-effect' | 'when-queued'
  /** For how long the sender sends an event again. 4 days unless given. */
  readonly horizonMs?: number
  /** For how long an event is remembered. 7 days unless given. It must not be shorter than `horizonMs`. */
  readonly windowMs?: number
  /** How often an event is tried before it is parked. 10 unless given. */
  readonly attempts?: number
  /** How long a handler may run. The `attemptMs` of `once` unless given. */
  readonly attemptMs?: number
  /** The largest body that is read. 1 MiB unless given. */
  readonly bodyBytesMax?: number
  /** Encodes what is kept of a parked event. Give it the codec of `once` where that encrypts. */
  readonly codec?: Codec
  /** Called for an event that is not run, before its sender is answered. A store without SQL keeps such an event nowhere else. */
  deadLetter?(event: WebhookEvent, reason: DeadLetterReason): unknown
  readonly clock?: Clock
  readonly random?: Random
}

/** Writes with `tx`, which is undefined on a store without transactions. What it throws makes the sender send the event again. */
export type WebhookHandler<Tx> = (tx: Tx, event: WebhookEvent) => unknown

export interface WebhookReceiver<Tx = unknown> {
  /** What is parked, redriven and discarded. */
  readonly inbox: Inbox<Tx>
  /** Creates the tables of the inbox. Does nothing on a store without SQL. */
  migrate(): Promise<void>
  /** Verify and handle a request of any framework. Throws only if it is not given the raw bytes. */
  receive(request: WebhookRequest): Promise<WebhookReceived>
  /** The same, as the response to send. */
  respond(request: WebhookRequest): Promise<Answer>
  /** With acknowledge 'when-queued': handles what is queued, also by processes that have died. */
  work(options?: RecoveryOptions): Recovery
  /** Run the parked events that a person has redriven, each once. Returns how many were done. */
  runRedriven(): Promise<number>
  /** For `http.createServer`, for a route of Express, and for `app.use(path, …)` of Nest. */
  readonly node: NodeWebhookListener
  /** Middleware of Koa that answers the request. */
  koa(ctx: KoaWebhookContext): Promise<void>
  /** A plugin of Fastify with one route: `app.register(receiver.fastify, { url: '/hooks' })`. */
  readonly fastify: FastifyWebhookPlugin
  /** A handler of a route of Hono. */
  hono(c: HonoWebhookContext): Promise<Response>
  /** A handler from Request to Response: Next.js, Bun, Deno, workers. */
  fetch(request: Request): Promise<Response>
}

const dayMs = 86_400_000

// The library never logs. It publishes what a handler threw on this channel, as the adapters of HTTP do.
const handlerFailed = channel('onceonly:handler-failed')

const rules = {
  // Checked by createInbox.
  consumer: () => undefined,
  scheme: withMethods('verify'),
  acknowledge: optional(oneOf('after-effect', 'when-queued')),
  horizonMs: optional(positiveMs),
  windowMs: optional(positiveMs),
  attempts: optional(positiveInteger),
  attemptMs: optional(positiveMs),
  bodyBytesMax: optional(positiveInteger),
  codec: optional(withMethods('encode', 'decode')),
  deadLetter: () => undefined,
  clock: optional(withMethods('now', 'elapsed', 'schedule')),
  random: optional(withMethods('uuid', 'fraction')),
}

/**
 * A receiver of webhooks on the store of `once`: verifies each request, and gives an event one effect however often its sender sends it.
 *
 * @example
 * import express from 'express'
 * import pg from 'pg'
 * import { createOnce } from 'onceonly'
 * import { postgresStore } from 'onceonly/postgres'
 * import { createWebhookReceiver, stripeWebhooks } from 'onceonly/webhooks'
 *
 * const once = createOnce({ store: postgresStore({ pool: new pg.Pool() }), scope: 'shop' })
 * const scheme = stripeWebhooks({ secrets: 'the secret of the endpoint' })
 * const receiver = createWebhookReceiver(once, { consumer: 'stripe', scheme }, (tx, event) =>
 *   tx.query('insert into payments (event) values ($1)', [event.id]),
 * )
 * await receiver.migrate()
 * express().post('/hooks/stripe', receiver.node)
 */
export function createWebhookReceiver<S extends Store>(
  once: OnceRunner<S>,
  options: WebhookReceiverOptions,
  handler: WebhookHandler<[TxOf<S>] extends [never] ? undefined : TxOf<S>>,
): WebhookReceiver<[TxOf<S>] extends [never] ? undefined : TxOf<S>>
export function createWebhookReceiver(
  once: OnceRunner,
  options: WebhookReceiverOptions,
  handler: WebhookHandler<never>,
): WebhookReceiver<unknown> {
  checkOptions('createWebhookReceiver', options, rules)
  if (typeof handler !== 'function')
    throw invalidArgument('createWebhookReceiver: expected a handler as the third argument')
  const { consumer, windowMs = 7 * dayMs } = options
  checkWindow(options.horizonMs ?? 4 * dayMs, windowMs)
  const inbox = inboxOf(once, options, windowMs)
  const run = (tx: unknown, message: ReceivedMessage): unknown => handler(tx as never, eventOf(message))
  const handle = (message: ReceivedMessage): Promise<Handled> => inbox.handle(message, run)
  const attemptMs = options.attemptMs ?? once.settings.attemptMs
  const queue =
    options.acknowledge === 'when-queued' ? webhookQueue(once, { consumer, windowMs, attemptMs, handle }) : undefined
  const context: ReceivingContext = {
    consumer,
    scheme: options.scheme,
    queue,
    handle,
    isKept: inbox.guarantee === 'one-transaction' || options.deadLetter !== undefined,
  }
  const respond = async (request: WebhookRequest): Promise<Answer> => {
    const became = await receive(context, request)
    if (became.is === 'failed' && !isUnauthenticated(became.error)) handlerFailed.publish({ error: became.error })
    return answerTo(became)
  }
  const responding = { bodyBytesMax: options.bodyBytesMax ?? 1_048_576, respond }
  return {
    inbox: inbox as unknown as Inbox<unknown>,
    migrate: () => inbox.migrate(),
    receive: (request) => receive(context, request),
    respond,
    work(given) {
      if (queue) return queue.work(given)
      throw invalidArgument(
        "receiver.work: nothing is queued with acknowledge 'after-effect'. Give createWebhookReceiver acknowledge: 'when-queued'.",
      )
    },
    runRedriven: () => inbox.runRedriven(run),
    node: onNode(responding),
    koa: onKoa(responding),
    fastify: onFastify(responding),
    hono: onHono(responding),
    fetch: onFetch(responding),
  }
}

/** A mark that goes before the last retry comes lets the event run a second time. */
function checkWindow(horizonMs: number, windowMs: number): void {
  if (windowMs >= horizonMs) return
  throw invalidArgument(
    `createWebhookReceiver: an event is remembered for windowMs ${windowMs} (${span(windowMs)}), and its sender may send it again for ` +
      `horizonMs ${horizonMs} (${span(horizonMs)}): the last retry would run a second time. Raise windowMs, or lower horizonMs to what ` +
      'the sender says of its retries.',
  )
}

function inboxOf(once: OnceRunner, options: WebhookReceiverOptions, windowMs: number): Inbox<unknown, ReceivedMessage> {
  const { consumer, attempts, attemptMs, codec, deadLetter, clock, random } = options
  return createInbox<Store, ReceivedMessage>(once, {
    consumer,
    windowMs,
    // Never a header of the request: none but those of the scheme is signed.
    idOf: ({ id }) => id,
    bodyOf: ({ body, content }) => content ?? body,
    ...(attempts !== undefined && { attempts }),
    ...(attemptMs !== undefined && { attemptMs }),
    ...(codec && { codec }),
    ...(deadLetter && { deadLetter: (message, reason) => deadLetter(eventOf(message), reason) }),
    ...(clock && { clock }),
    ...(random && { random }),
  })
}

interface ReceivingContext extends Pick<WebhookReceiverOptions, 'consumer' | 'scheme'> {
  readonly queue: WebhookQueue | undefined
  /** What the inbox refuses is kept by it, or by the dead-letter function. */
  readonly isKept: boolean
  handle(message: ReceivedMessage): Promise<Handled>
}

async function receive(context: ReceivingContext, request: WebhookRequest): Promise<WebhookReceived> {
  let verified: VerifiedWebhook
  try {
    verified = context.scheme.verify(request)
  } catch (error) {
    if (isUnauthenticated(error)) return { is: 'failed', error }
    throw error
  }
  if (verified.handshake !== undefined) return { is: 'handshake', body: verified.handshake }
  const message = messageOf(context.consumer, request, verified)
  try {
    if (context.queue) {
      await context.queue.put(message)
      return { is: 'queued' }
    }
    return received(await context.handle(message), context.isKept)
  } catch (error) {
    if (error instanceof OnceError && error.code === 'IN_FLIGHT') {
      return { is: 'busy', retryAfterMs: error.retryAfterMs ?? 0 }
    }
    return { is: 'failed', error }
  }
}

function isUnauthenticated(error: unknown): boolean {
  return error instanceof OnceError && error.code === 'UNAUTHENTICATED'
}

/** The inbox throws what failed, so it is none of these. */
function received(handled: Handled, isKept: boolean): WebhookReceived {
  if (handled.is === 'failed') return { is: 'failed', error: handled.error }
  return handled.is === 'refused' ? { ...handled, isKept } : handled
}
