// Webhooks as the dashboard shows them: endpoints with what waits for them, deliveries with their attempts, sending one again, and
// disabling an endpoint. Secrets are in none of it. What was sent and what came back is given out by `reveal` alone.

import { invalidArgument } from '../../core/errors.ts'
import type { Once } from '../../core/once.ts'
import { webhooksByHand } from '../../webhooks.ts'
import type {
  DeliveryFilter,
  EndpointFilter,
  WebhookAttempt,
  WebhookDelivery,
  WebhookEndpoint,
} from '../../webhooks.ts'
import { askingOf, checkFilter, pageOf, thereOf } from './asking.ts'
import type { AskedStore, InspectedStore, NothingKept } from './asking.ts'
import { checkReason, countMax, cut, pageRows } from './entries.ts'

export interface EndpointRow extends WebhookEndpoint {
  /** Deliveries that are pending, counted up to 1,000. */
  readonly waiting: number
  readonly moreWaiting: boolean
}

export interface EndpointsPage {
  readonly rows: readonly EndpointRow[]
  readonly more: boolean
}

export interface DeliveriesPage {
  readonly rows: readonly WebhookDelivery[]
  readonly more: boolean
}

/** One event for one endpoint. */
export interface DeliveryName {
  readonly id: string
  readonly endpoint: string
}

export interface DeliveryInFull {
  readonly delivery: WebhookDelivery
  /** The latest ones, without what the endpoint answered. */
  readonly attempts: readonly Omit<WebhookAttempt, 'response'>[]
}

export interface RevealedDelivery {
  readonly text: string
  readonly cut: boolean
  /** What the endpoint answered, by the number of the attempt. */
  readonly responses: readonly Pick<WebhookAttempt, 'number' | 'response'>[]
}

type Choices = 'id' | 'endpoint' | 'topic' | 'state' | 'after'

export interface WebhooksView {
  endpoints(filter: Omit<EndpointFilter, 'limit'>): Promise<EndpointsPage | NothingKept>
  endpoint(id: string): Promise<EndpointRow | undefined>
  deliveries(filter: Pick<DeliveryFilter, Choices>): Promise<DeliveriesPage | NothingKept>
  delivery(name: DeliveryName): Promise<DeliveryInFull | undefined>
  reveal(name: DeliveryName): Promise<RevealedDelivery | undefined>
  replay(name: DeliveryName, reason: string): Promise<void>
  switch(id: string, to: 'disable' | 'enable', reason: string): Promise<void>
}

// A schedule has ten. More come only by replays.
const attemptsShownMax = 50

export function webhooksOf(once: Once, store: InspectedStore): WebhooksView {
  const asking = askingOf(once, store, {
    none: `The ${store.name} store keeps no webhooks. A sender keeps them on PostgreSQL, MySQL and SQLite.`,
    tables: 'This store has no tables for webhooks. onceonly migrate --webhooks --store URL creates them.',
  })
  return { ...endpointsOf(asking, store), ...deliveriesOf(asking, store) }
}

function endpointsOf(
  { change, where }: AskedStore,
  store: InspectedStore,
): Pick<WebhooksView, 'endpoints' | 'endpoint' | 'switch'> {
  const withWaiting = async (endpoint: WebhookEndpoint): Promise<EndpointRow> => {
    const pending = { endpoint: endpoint.id, state: 'pending', limit: countMax + 1 } as const
    const waiting = await webhooksByHand(store).deliveries.count(pending)
    return { ...endpoint, waiting: Math.min(waiting, countMax), moreWaiting: waiting > countMax }
  }
  return {
    endpoints: (filter) => {
      checkFilter(filter)
      return where(async () => {
        const found = await webhooksByHand(store).endpoints.list({ ...filter, limit: pageRows + 1 })
        const rows: EndpointRow[] = []
        // One after the other: a dashboard leaves the connections of the pool to the service.
        for (const endpoint of found.slice(0, pageRows)) rows.push(await withWaiting(endpoint))
        return { rows, more: found.length > pageRows }
      })
    },
    endpoint: async (id) => {
      checkFilter({ id })
      const found = await where(async () => {
        const endpoint = await webhooksByHand(store).endpoints.get(id)
        return endpoint && withWaiting(endpoint)
      })
      return thereOf(found)
    },
    async switch(id, to, reason) {
      checkReason(reason)
      checkFilter({ id })
      const changed = await change(() => webhooksByHand(store).endpoints[to](id, reason))
      if (!changed) throw invalidArgument('There is no such endpoint: nothing was changed.')
    },
  }
}

function deliveriesOf(
  { change, where }: AskedStore,
  store: InspectedStore,
): Pick<WebhooksView, 'deliveries' | 'delivery' | 'reveal' | 'replay'> {
  const attemptsOf = async ({ id, endpoint }: DeliveryName): Promise<readonly WebhookAttempt[]> =>
    (await webhooksByHand(store).deliveries.attempts(id, endpoint)).slice(-attemptsShownMax)
  return {
    deliveries: ({ after, ...filter }) => {
      checkFilter(filter)
      const wanted = { ...filter, ...(after !== undefined && { after }), limit: pageRows + 1 }
      return where(async () => pageOf(await webhooksByHand(store).deliveries.list(wanted), (delivery) => delivery))
    },
    delivery: async ({ id, endpoint }) => {
      checkFilter({ id, endpoint })
      const found = await where(async () => {
        const [delivery] = await webhooksByHand(store).deliveries.list({ id, endpoint, limit: 1 })
        return delivery && { delivery, attempts: (await attemptsOf({ id, endpoint })).map(withoutAnswer) }
      })
      return thereOf(found)
    },
    reveal: async ({ id, endpoint }) => {
      checkFilter({ id, endpoint })
      const found = await where(async () => {
        const body = await webhooksByHand(store).deliveries.body(id)
        const responses = (await attemptsOf({ id, endpoint })).map(({ number, response }) => ({ number, response }))
        return body && { ...cut(Buffer.from(body).toString()), responses }
      })
      return thereOf(found)
    },
    async replay({ id, endpoint }, reason) {
      checkReason(reason)
      checkFilter({ id, endpoint })
      const replayed = await change(() => webhooksByHand(store).deliveries.replay({ id, endpoint }, reason))
      if (replayed === 0) throw invalidArgument('There is no such delivery: nothing was changed.')
    },
  }
}

/** What an endpoint said can be a customer's secret. */
function withoutAnswer({ response: _response, ...rest }: WebhookAttempt): Omit<WebhookAttempt, 'response'> {
  return rest
}
