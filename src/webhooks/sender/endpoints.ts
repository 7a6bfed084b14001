// Endpoints: where webhooks go. Each belongs to one topic of the outbox, which is mostly a customer's account, so that no event can reach the
// endpoint of another customer by a filter that was forgotten.

import { jsonRow } from '../../clients/sql-columns.ts'
import type { SqlSession } from '../../clients/sql-database.ts'
import { integer, join, piece, sql } from '../../clients/sql-statement.ts'
import type { SqlStatement } from '../../clients/sql-statement.ts'
import { systemRandom } from '../../core/clock.ts'
import { invalidArgument } from '../../core/errors.ts'
import { newId } from '../../core/key.ts'
import { checkRecordedReason, onRecord } from '../../core/once.ts'
import {
  aString,
  checkGiven,
  checkOptions,
  nonNegativeMs,
  oneOf,
  optional,
  positiveInteger,
} from '../../core/options.ts'
import type { Rule } from '../../core/options.ts'
import type { Codec } from '../../core/outcome.ts'
import type { Store } from '../../core/store.ts'
import { decodeText, encodeText } from '../../messages/stored-text.ts'
import { createWebhookSigner, newWebhookSecret } from '../signatures.ts'
import type { AddressGuard } from './addresses.ts'
import { checkedUrl } from './guard.ts'
import type { WebhookTables } from './tables.ts'
import { typesRule } from './wanted-types.ts'

/** `key`: events of one ordering key arrive in their order, and one that fails holds back those behind it. */
export type EndpointOrder = 'none' | 'key'

export interface WebhookEndpoint {
  readonly id: string
  /** It gets the events of this topic of the outbox. */
  readonly topic: string
  readonly url: string
  /** Only events of these types: `order.placed`, `order.*`. Empty for all. */
  readonly types: readonly string[]
  readonly order: EndpointOrder
  /** How many requests are sent to it at once, at the most. */
  readonly concurrency: number
  readonly state: 'active' | 'disabled'
  /** `gone`: it answered 410. `failing`: no attempt succeeded for `disableAfterMs`. Else what a person said. */
  readonly disabledReason: string | undefined
  readonly disabledAtMs: number | undefined
  /** Every attempt since then has failed. */
  readonly failingSinceMs: number | undefined
  readonly addedAtMs: number
}

export interface NewWebhookEndpoint {
  readonly topic: string
  readonly url: string
  readonly types?: readonly string[]
  readonly order?: EndpointOrder
  readonly concurrency?: number
  /** `whsec_…`, or `whsk_…` for ed25519. A new `whsec_` unless given. */
  readonly secret?: string
}

export type WebhookEndpointChange = Partial<Pick<NewWebhookEndpoint, 'url' | 'types' | 'order' | 'concurrency'>>

/** A secret that signs, and until when. Without a time it is the current one. */
export interface EndpointSecret {
  readonly secret: string
  readonly untilMs?: number
}

export interface EndpointFilter {
  readonly topic?: string
  readonly state?: WebhookEndpoint['state']
  /** Endpoints come in the order of their ids. The one with this id and all before it are passed over. */
  readonly after?: string
  /** 100 unless given. */
  readonly limit?: number
}

export interface EndpointCalls {
  /** Returns the secret, too: the receiver needs it. */
  add(endpoint: NewWebhookEndpoint): Promise<WebhookEndpoint & { readonly secret: string }>
  get(id: string): Promise<WebhookEndpoint | undefined>
  list(filter?: EndpointFilter): Promise<readonly WebhookEndpoint[]>
  /** False when there is no such endpoint. */
  change(id: string, change: WebhookEndpointChange): Promise<boolean>
  /** Those that sign now, the newest first. */
  secrets(id: string): Promise<readonly EndpointSecret[]>
  /** Signs with a new secret from now on, and with the old ones for `keepOldMs`, 24 hours unless given. Returns the new one. */
  rotate(id: string, options?: { readonly secret?: string; readonly keepOldMs?: number }): Promise<string>
  /** Nothing is sent to it until it is enabled. Its events wait for four days. False when there is no such endpoint. Audited. */
  disable(id: string, reason: string): Promise<boolean>
  enable(id: string, reason: string): Promise<boolean>
  /** What has not been delivered to it is never sent. */
  remove(id: string): Promise<boolean>
}

export interface EndpointContext {
  readonly tables: WebhookTables
  /** Where reasons are audited. */
  readonly store: Store
  readonly guard: AddressGuard
  readonly httpsOnly: boolean
  readonly codec: Codec | undefined
}

const topicRule: Rule = (value) =>
  aString(value) ?? (Buffer.byteLength(value as string) <= 255 ? undefined : 'a string of at most 255 bytes')

const changeRules: Readonly<Record<string, Rule>> = {
  url: optional(aString),
  types: optional(typesRule),
  order: optional(oneOf('none', 'key')),
  concurrency: optional(positiveInteger),
}

const addRules: Readonly<Record<string, Rule>> = {
  ...changeRules,
  topic: topicRule,
  url: aString,
  secret: optional(aString),
}

// Enough for an endpoint that answers in a second to take 300,000 webhooks per day, and few enough for a small server.
const concurrencyUsual = 4
const dayMs = 86_400_000

export function endpointCalls(context: EndpointContext): EndpointCalls {
  const { tables, store } = context
  const { database, endpoints } = tables
  const select = async (where: SqlStatement, limit = 100): Promise<readonly WebhookEndpoint[]> => {
    const row = jsonRow(database, endpointColumns(tables))
    const answers = await database.query(
      sql`select ${row} from ${endpoints} where ${where} order by id limit ${integer(limit)}`,
    )
    return answers.map(endpointIn)
  }
  const get = async (id: string): Promise<WebhookEndpoint | undefined> => (await select(sql`id = ${id}`))[0]
  const update = async (id: string, set: SqlStatement): Promise<void> =>
    void (await database.query(sql`update ${endpoints} set ${set} where id = ${id}`))
  const onRecordOf = async (
    id: string,
    what: 'disable' | 'enable',
    reason: string,
    set: SqlStatement,
  ): Promise<boolean> => {
    checkRecordedReason(`webhooks.endpoints.${what}`, reason)
    if (!(await get(id))) return false
    return onRecord(store, { scope: 'webhooks', id }, { what, reason }, async () => {
      await update(id, set)
      return true
    })
  }
  return {
    async add(given) {
      const { url, values, secret } = checkedEndpoint(context, given)
      const id = newId()
      const columns = piece('id, topic, url, types, ordering, concurrency, secrets, state, added_at_ms')
      await database.query(
        sql`insert into ${endpoints} (${columns}) values (${id}, ${tables.bytes(given.topic)}, ${url}, ${join(values, ', ')}, ${sealed(context, [{ secret }])}, 'active', ${database.nowMs()})`,
      )
      return { ...(await get(id))!, secret }
    },
    get,
    async list(filter = {}) {
      checkGiven('webhooks.endpoints.list', filter, filterRules)
      return select(wanted(tables, filter), filter.limit)
    },
    async change(id, change) {
      checkGiven('webhooks.endpoints.change', change, changeRules)
      const there = await get(id)
      if (!there) return false
      const url = checkedUrl(change.url ?? there.url, context)
      const [types, ordering, concurrency] = valuesOf({ ...there, ...change })
      await update(id, sql`url = ${url}, types = ${types!}, ordering = ${ordering!}, concurrency = ${concurrency!}`)
      return true
    },
    secrets: (id) => readSecrets(context, id),
    rotate: (id, options) => rotate(context, id, options),
    disable: (id, reason) =>
      onRecordOf(
        id,
        'disable',
        reason,
        sql`state = 'disabled', disabled_reason = ${reason}, disabled_at_ms = ${database.nowMs()}`,
      ),
    enable: (id, reason) =>
      onRecordOf(
        id,
        'enable',
        reason,
        sql`state = 'active', disabled_reason = null, disabled_at_ms = null, failing_since_ms = null`,
      ),
    remove: (id) => remove(tables, id),
  }
}

const filterRules = {
  topic: optional(aString),
  state: optional(oneOf('active', 'disabled')),
  after: optional(aString),
  limit: optional(positiveInteger),
}

function wanted({ bytes }: WebhookTables, { topic, state, after }: EndpointFilter): SqlStatement {
  const conditions = [
    sql`1 = 1`,
    ...(topic === undefined ? [] : [sql`topic = ${bytes(topic)}`]),
    ...(state === undefined ? [] : [sql`state = ${state}`]),
    ...(after === undefined ? [] : [sql`id > ${after}`]),
  ]
  return join(conditions, ' and ')
}

interface CheckedEndpoint {
  readonly url: string
  readonly values: readonly SqlStatement[]
  readonly secret: string
}

function checkedEndpoint(context: EndpointContext, given: NewWebhookEndpoint): CheckedEndpoint {
  checkOptions('webhooks.endpoints.add', given, addRules)
  const { secret = newWebhookSecret(systemRandom) } = given
  createWebhookSigner({ secrets: secret })
  return { url: checkedUrl(given.url, context), values: valuesOf(given), secret }
}

function valuesOf({
  types = [],
  order = 'none',
  concurrency = concurrencyUsual,
}: WebhookEndpointChange): SqlStatement[] {
  return [sql`${JSON.stringify(types)}`, sql`${order}`, integer(concurrency)]
}

async function rotate(
  context: EndpointContext,
  id: string,
  options: { readonly secret?: string; readonly keepOldMs?: number } = {},
): Promise<string> {
  checkGiven('webhooks.endpoints.rotate', options, { secret: optional(aString), keepOldMs: optional(nonNegativeMs) })
  const { secret = newWebhookSecret(systemRandom), keepOldMs = dayMs } = options
  createWebhookSigner({ secrets: secret })
  const { database, endpoints } = context.tables
  // Two people who rotate at once: the second reads what the first has written.
  const open = await database.begin({ scope: 'webhooks', id })
  try {
    const lock = piece(database.dialect === 'sqlite' ? '' : 'for update')
    await open.query(sql`select id as answer from ${endpoints} where id = ${id} ${lock}`)
    const found = await storedSecrets(context.tables, open, id)
    if (!found) throw invalidArgument(`webhooks.endpoints.rotate: there is no endpoint ${id}`)
    const { stored, nowMs } = found
    const old = secretsIn(context.codec, stored, nowMs).map((each) => ({ untilMs: nowMs + keepOldMs, ...each }))
    const kept = old.filter(({ secret: each, untilMs }) => each !== secret && untilMs > nowMs)
    await open.query(sql`update ${endpoints} set secrets = ${sealed(context, [{ secret }, ...kept])} where id = ${id}`)
    await open.commit()
    return secret
  } catch (error) {
    await open.rollback()
    throw error
  }
}

async function readSecrets({ tables, codec }: EndpointContext, id: string): Promise<readonly EndpointSecret[]> {
  const found = await storedSecrets(tables, tables.database, id)
  return found ? secretsIn(codec, found.stored, found.nowMs) : []
}

async function storedSecrets(
  { database, endpoints }: WebhookTables,
  session: SqlSession,
  id: string,
): Promise<{ readonly stored: string; readonly nowMs: number } | undefined> {
  const [found] = await session.query(
    sql`select ${jsonRow(database, 'secrets, now_ms')} from (select e.secrets, ${database.nowMs()} as now_ms from ${endpoints} e where e.id = ${id}) s`,
  )
  if (found === undefined) return undefined
  const [stored, nowMs] = JSON.parse(found) as [string, number]
  return { stored, nowMs }
}

function sealed({ codec }: EndpointContext, secrets: readonly EndpointSecret[]): string {
  return encodeText(codec, JSON.stringify(secrets))
}

/** Those that sign at this moment. */
export function secretsIn(codec: Codec | undefined, stored: string, nowMs: number): readonly EndpointSecret[] {
  const secrets = JSON.parse(decodeText(codec, stored)) as EndpointSecret[]
  return secrets.filter(({ untilMs = Infinity }) => untilMs > nowMs)
}

async function remove({ database, endpoints, deliveries }: WebhookTables, id: string): Promise<boolean> {
  const open = await database.begin({ scope: 'webhooks', id })
  try {
    const found = await open.query(sql`select id as answer from ${endpoints} where id = ${id}`)
    await open.query(sql`delete from ${endpoints} where id = ${id}`)
    await open.query(
      sql`update ${deliveries} set state = 'failed', ended_at_ms = ${database.nowMs()} where endpoint_id = ${id} and state = 'pending'`,
    )
    await open.commit()
    return found.length > 0
  } catch (error) {
    await open.rollback()
    throw error
  }
}

export function endpointColumns({ text }: WebhookTables): string {
  return `id, ${text('topic')}, url, types, ordering, concurrency, state, disabled_reason, disabled_at_ms, failing_since_ms, added_at_ms`
}

type Columns = [
  ...[id: string, topic: string, url: string, types: string, order: EndpointOrder, concurrency: number],
  ...[
    state: WebhookEndpoint['state'],
    reason: string | null,
    disabledAtMs: number | null,
    failingSinceMs: number | null,
  ],
  addedAtMs: number,
]

function endpointIn(answer: string): WebhookEndpoint {
  const [id, topic, url, types, order, concurrency, state, reason, disabledAtMs, failingSinceMs, addedAtMs] =
    JSON.parse(answer) as Columns
  return {
    id,
    topic,
    url,
    types: JSON.parse(types) as string[],
    order,
    concurrency,
    state,
    disabledReason: reason ?? undefined,
    disabledAtMs: disabledAtMs ?? undefined,
    failingSinceMs: failingSinceMs ?? undefined,
    addedAtMs,
  }
}
