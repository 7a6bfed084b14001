// The way out of a relay: a row of the outbox becomes a delivery for each endpoint that wants it. A row that the relay publishes again makes
// no second one, as there is one delivery per event and endpoint. Rows come in the order of their keys, each in a statement of its own, so
// within a key the positions of deliveries are in that order, too, whatever a relay that has lost its shard still does.

import { jsonRow } from '../../clients/sql-columns.ts'
import type { SqlSession } from '../../clients/sql-database.ts'
import { integer, join, piece, sql } from '../../clients/sql-statement.ts'
import { newId } from '../../core/key.ts'
import type { Outgoing, Publisher } from '../../messages/broker.ts'
import type { WebhookTables } from './tables.ts'
import { wants } from './wanted-types.ts'

export function fanOut(tables: WebhookTables, firstPauseMs: number, added: () => void): Publisher {
  return {
    name: 'webhooks',
    async publish(messages) {
      const endpoints = await endpointsOf(tables, [...new Set(messages.map(({ topic }) => topic))])
      const wanted = messages
        .map((message) => ({ message, endpoints: endpoints.filter((each) => isFor(each, message)) }))
        .filter((each) => each.endpoints.length > 0)
      if (wanted.length > 0) {
        await insert(tables, wanted, firstPauseMs)
        added()
      }
      return messages.map(() => undefined)
    },
  }
}

interface Subscribed {
  readonly id: string
  readonly topic: string
  readonly types: readonly string[]
}

interface Wanted {
  readonly message: Outgoing
  readonly endpoints: readonly Subscribed[]
}

function isFor({ topic, types }: Subscribed, message: Outgoing): boolean {
  return topic === message.topic && wants(types, typeOf(message))
}

function typeOf({ headers, topic }: Outgoing): string {
  return headers['ce-type'] ?? topic
}

/** The disabled ones, too: their events wait until a person enables them. */
async function endpointsOf(
  { database, endpoints, bytes, text }: WebhookTables,
  topics: readonly string[],
): Promise<readonly Subscribed[]> {
  const among = join(
    topics.map((topic) => sql`${bytes(topic)}`),
    ', ',
  )
  const row = jsonRow(database, `id, ${text('topic')}, types`)
  const answers = await database.query(sql`select ${row} from ${endpoints} where topic in (${among}) order by id`)
  return answers.map((answer) => {
    const [id, topic, types] = JSON.parse(answer) as [string, string, string]
    return { id, topic, types: JSON.parse(types) as string[] }
  })
}

async function insert(tables: WebhookTables, wanted: readonly Wanted[], firstPauseMs: number): Promise<void> {
  const open = await tables.database.begin({ scope: 'webhooks', id: `fan out ${newId()}` })
  try {
    for (const each of wanted) await insertOne(tables, open, each, firstPauseMs)
    await open.commit()
  } catch (error) {
    await open.rollback()
    throw error
  }
}

async function insertOne(
  { database, events, deliveries, bytes }: WebhookTables,
  session: SqlSession,
  { message, endpoints }: Wanted,
  firstPauseMs: number,
): Promise<void> {
  const isMysql = database.dialect === 'mysql'
  const into = piece(isMysql ? 'insert ignore into' : 'insert into')
  const orNothing = piece(isMysql ? '' : 'on conflict do nothing')
  const { id, topic, key } = message
  const nowMs = database.nowMs()
  const payload = Buffer.from(message.body).toString('base64')
  await session.query(sql`${into} ${events} (id, topic, type, payload, headers, added_at_ms)
values (${id}, ${bytes(topic)}, ${typeOf(message)}, ${payload}, ${JSON.stringify(sentHeaders(message))}, ${nowMs}) ${orNothing}`)
  const orderKey = key === undefined ? piece('null') : sql`${bytes(key)}`
  const rows = endpoints.map(
    (endpoint) => sql`(${id}, ${endpoint.id}, ${orderKey}, 'pending', ${nowMs}, ${nowMs} + ${integer(firstPauseMs)})`,
  )
  await session.query(sql`${into} ${deliveries} (event_id, endpoint_id, order_key, state, since_at_ms, due_at_ms)
values ${join(rows, ', ')} ${orNothing}`)
}

/**
 * What leaves the house: the media type, and the attributes of the CloudEvent as its HTTP binding writes them. Other headers of an event are
 * for our own services.
 */
function sentHeaders({ headers }: Outgoing): Record<string, string> {
  const sent = Object.entries(headers).filter(([name]) => name === 'content-type' || name.startsWith('ce-'))
  return Object.fromEntries(
    sent.map(([name, value]) => [name, name === 'content-type' ? value : percentEncoded(value)]),
  )
}

/** CloudEvents, HTTP binding 3.1.3.2: what is not printable ASCII, a blank, a quotation mark and a percent sign. */
function percentEncoded(value: string): string {
  return value.replace(/[^\x21-\x7e]|["%]/gu, encodeURIComponent)
}
