// Is this table fit to hold entries, and is the clock of this machine fit to judge leases by? Both are judged here, for two
// readers: the store, which refuses a claim where the promise would not hold, and `onceonly doctor`, which prints every check.

import type { Clock } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import { check, judge } from '../../core/fitness.ts'
import type { Fitness, FitnessQuestion, Judgement } from '../../core/fitness.ts'
import { errorNameOf } from '../../clients/dynamodb.ts'
import type { DynamodbClient, DynamodbTable, DynamodbTimeToLive } from '../../clients/dynamodb.ts'
import { hasOurKeys, timeToLiveAttribute } from './schema.ts'

const tableQuestion: Omit<FitnessQuestion, 'lookedAt'> = {
  name: 'dynamodb-table',
  why:
    'Entries need the keys of a table of ours. And a global table is written in several regions at once, and the last writer wins: a key ' +
    'can be claimed in each of them.',
}

function judgeTable(table: DynamodbTable): Judgement {
  const { TableStatus: status, Replicas: replicas = [], MultiRegionConsistency: consistency } = table
  if (!hasOurKeys(table)) {
    return judge('violated', `other keys: ${JSON.stringify(table.KeySchema)}`, 'Give the store a table of its own.')
  }
  if (replicas.length > 0 && consistency !== 'STRONG') {
    const mend = 'Use a table of one region, or one table per region.'
    return judge('violated', `a global table, replicas: ${replicas.length}`, mend)
  }
  // Conditions hold in all regions there. DynamoDB has neither transactions nor time to live on such a table.
  if (replicas.length > 0) {
    const mend =
      'Nothing runs twice there, but once.transaction and mending by hand fail. Run onceonly sweep from cron.'
    return judge('warning', `a global table with strong consistency, replicas: ${replicas.length}`, mend)
  }
  const isReady = status === 'ACTIVE' || status === 'UPDATING'
  return judge(isReady ? 'ok' : 'warning', `${status}, in one region`, 'Wait until it is ACTIVE.')
}

const timeToLiveQuestion: Omit<FitnessQuestion, 'lookedAt'> = {
  name: 'dynamodb-time-to-live',
  why: 'What has expired is deleted by DynamoDB itself, free of charge; without that it stays until it is swept.',
}

function judgeTimeToLive({ TimeToLiveStatus: status, AttributeName: attribute }: DynamodbTimeToLive): Judgement {
  const isOn =
    (status === 'ENABLED' || status === 'ENABLING') && (attribute ?? timeToLiveAttribute) === timeToLiveAttribute
  const found = `${status ?? 'not told'}${attribute === undefined ? '' : ` on ${attribute}`}`
  const isOther = attribute !== undefined && attribute !== timeToLiveAttribute
  const first = isOther ? `Switch it off for ${attribute}; then ` : ''
  return judge(
    isOn ? 'ok' : 'warning',
    found,
    `${first}onceonly migrate switches it on (attribute ${timeToLiveAttribute}).`,
  )
}

/**
 * Why the table breaks the promise, if it does. The store asks this before its first effect. It does not refuse a table that it
 * cannot look at (a missing right, no reply): the claim itself says what is wrong with the table.
 */
export function tableCheck(
  name: string,
  describe: () => Promise<{ Table?: DynamodbTable | undefined }>,
): () => Promise<OnceError | undefined> {
  let known: Promise<OnceError | undefined> | undefined
  const look = async (): Promise<OnceError | undefined> => {
    try {
      const { Table: table } = await describe()
      if (!table) throw new Error('the reply has no Table')
      const { verdict, found, mend } = judgeTable(table)
      if (verdict !== 'violated') return undefined
      const message = `The table ${name} is not fit (${found}). ${tableQuestion.why} The effect was not run. ${mend}`
      known = undefined
      return new OnceError('STORE_UNSAFE', { message })
    } catch (error) {
      // A right that is missing will be missing next time.
      if (errorNameOf(error) !== 'AccessDeniedException') known = undefined
      return undefined
    }
  }
  return () => (known ??= look())
}

// A check without a reply in this time is "unknown".
const answerMs = 10_000

export function fitness(client: DynamodbClient, table: string, clock: Clock): Fitness {
  const heard = watched.get(client) ?? watch(client, clock)
  const limit = (): { abortSignal: AbortSignal } => ({ abortSignal: AbortSignal.timeout(answerMs) })
  const describeTable = async (): Promise<DynamodbTable> => {
    const { Table: found } = await client.describeTable({ TableName: table }, limit())
    if (!found) throw new Error('the reply has no Table')
    return found
  }
  return {
    /** In whole seconds, rounded down. */
    async timeMs() {
      heard.serverMs = Number.NaN
      await describeTable()
      if (Number.isNaN(heard.serverMs)) throw new Error('the reply has no Date')
      return heard.serverMs
    },
    checks: async () => [
      await check({ ...tableQuestion, lookedAt: `DescribeTable ${table}` }, async () =>
        judgeTable(await describeTable()),
      ),
      await check({ ...timeToLiveQuestion, lookedAt: `DescribeTimeToLive ${table}` }, async () =>
        judgeTimeToLive((await client.describeTimeToLive({ TableName: table }, limit())).TimeToLiveDescription ?? {}),
      ),
    ],
  }
}

// Every reply of DynamoDB carries DynamoDB's time. That time is too coarse to judge leases by (whole seconds, and as old as the
// way back was long). It does show that a machine's clock is wrong, before that machine takes over a lease that is alive.

/** The time that the last reply carried. */
interface Heard {
  serverMs: number
  /** By how much our clock is ahead of DynamoDB's. */
  atLeastMs: number
  atMostMs: number
}

interface Reply {
  readonly response?: { readonly headers?: Readonly<Record<string, string>> }
}

type Next = (request: unknown) => Promise<Reply>

/** The SDK's own way to listen to replies. */
interface MiddlewareStack {
  add(middleware: (next: Next) => Next, options: { step: 'deserialize'; priority: 'low' }): void
}

// One watch for each client, however many stores use it.
const watched = new WeakMap<DynamodbClient, Heard>()

/** Returns a check that throws STORE_UNSAFE when the clock of this machine is known to be wrong. */
export function clockCheck(client: DynamodbClient, clock: Clock, clockSkewMs: number): () => void {
  const heard = watched.get(client) ?? watch(client, clock)
  // When each machine is within half of clockSkewMs of DynamoDB's time, no two machines are further apart than clockSkewMs.
  const allowedMs = clockSkewMs / 2
  return () => {
    if (heard.atLeastMs <= allowedMs && heard.atMostMs >= -allowedMs) return
    const off = heard.atLeastMs > 0 ? `${heard.atLeastMs} ms ahead of` : `${-heard.atMostMs} ms behind`
    throw new OnceError('STORE_UNSAFE', {
      message:
        `The clock of this machine is at least ${off} DynamoDB's, and leases are judged by it (clockSkewMs is ${clockSkewMs}). ` +
        'The effect was not run. Set the clock (NTP), or allow more with clockSkewMs on every machine.',
    })
  }
}

function watch(client: DynamodbClient, clock: Clock): Heard {
  const heard: Heard = { serverMs: Number.NaN, atLeastMs: 0, atMostMs: 0 }
  watched.set(client, heard)
  const stack = client.middlewareStack as MiddlewareStack | undefined
  stack?.add(
    (next) => async (request) => {
      const sentAtMs = clock.now()
      const reply = await next(request)
      const serverMs = Date.parse(reply.response?.headers?.['date'] ?? '')
      if (!Number.isNaN(serverMs)) {
        heard.serverMs = serverMs
        // The server wrote its time between our two moments, and rounded it down to the second.
        heard.atLeastMs = sentAtMs - serverMs - 1_000
        heard.atMostMs = clock.now() - serverMs
      }
      return reply
    },
    { step: 'deserialize', priority: 'low' },
  )
  return heard
}
