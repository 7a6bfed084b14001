// One attempt to deliver: signed at this moment with every secret that is valid, sent, judged and recorded under the epoch of the endpoint.

import type { Agent } from 'undici'
import type { Clock, Random } from '../../core/clock.ts'
import { publish } from '../../core/events.ts'
import type { Codec } from '../../core/outcome.ts'
import { asError } from '../../messages/failures.ts'
import { createWebhookSigner } from '../signatures.ts'
import type { SignedWebhookHeaders } from '../signatures.ts'
import { secretsIn } from './endpoints.ts'
import type { DueDelivery, HeldEndpoint, Holding, HoldingCalls } from './holdings.ts'
import { post } from './posting.ts'
import type { Posted, PostLimits } from './posting.ts'
import { verdictOf } from './verdicts.ts'
import type { DeliveryVerdict } from './verdicts.ts'

export interface SendingContext {
  readonly calls: HoldingCalls
  readonly agent: Agent
  readonly limits: PostLimits
  readonly scheduleMs: readonly number[]
  readonly disableAfterMs: number
  readonly leaseMs: number
  /** How many endpoints are worked on at once. */
  readonly endpointsMax: number
  readonly codec: Codec | undefined
  readonly clock: Clock
  readonly random: Random
}

export type AttemptEnd = DeliveryVerdict['is'] | 'lost'

/** Throws when the database fails: then nothing is known of what was recorded. */
export async function attempt(
  context: SendingContext,
  holding: Holding,
  endpoint: HeldEndpoint,
  delivery: DueDelivery,
): Promise<AttemptEnd> {
  const { calls, scheduleMs, disableAfterMs, random } = context
  const { position, eventId, topic } = delivery
  const posted = await send(context, endpoint, delivery)
  const tries = delivery.tries + 1
  const verdict = verdictOf(posted, tries, scheduleMs, random)
  const recorded = await calls.record(holding, { position, posted, verdict, disableAfterMs })
  const is = recorded === 'lost' ? recorded : verdict.is
  const { status, durationMs } = posted
  const answered = status === undefined ? {} : { status }
  const key = { scope: topic, id: eventId }
  publish('webhook-sent', key, { endpoint: holding.endpoint, is, ...answered, tries, durationMs })
  if (recorded === 'disabled') {
    publish('webhook-disabled', undefined, {
      endpoint: holding.endpoint,
      why: verdict.is === 'gone' ? 'gone' : 'failing',
    })
  }
  return is
}

/** The id is that of the event in every attempt. The time is that of the attempt, so that a receiver does not take it for a replay. */
function signed(
  { codec, clock }: SendingContext,
  { secrets, nowMs }: HeldEndpoint,
  { eventId, body }: DueDelivery,
): SignedWebhookHeaders {
  const valid = secretsIn(codec, secrets, nowMs).map(({ secret }) => secret)
  return createWebhookSigner({ secrets: valid }).sign({ id: eventId, sentAtMs: clock.now(), body })
}

/** Secrets that cannot be read are a failure of their endpoint, and hold up no other one. */
async function send(context: SendingContext, endpoint: HeldEndpoint, delivery: DueDelivery): Promise<Posted> {
  let signature: SignedWebhookHeaders
  try {
    signature = signed(context, endpoint, delivery)
  } catch (error) {
    return { failure: `It could not be signed: ${asError(error).message}`.slice(0, 500), durationMs: 0, response: '' }
  }
  const headers = {
    'content-type': 'application/json',
    ...delivery.headers,
    ...signature,
    'user-agent': 'onceonly-webhooks',
    // The first bytes of the answer are for people.
    'accept-encoding': 'identity',
  }
  return post(context.agent, { url: endpoint.url, headers, body: delivery.body }, context.limits, context.clock)
}
