// What is said of a table and of this machine's clock in each situation, word for word: at the start of the store, and by the doctor.
// DynamoDB Local has one region and its tables are active at once, so here the replies are documents, and the clock is given. Real
// tables are looked at in fitness.test.ts.

import { describe, expect, test, vi } from 'vitest'
import { createClient } from '../../../test/subjects/dynamodb.ts'
import type { DynamodbTable, DynamodbTimeToLive } from '../../clients/dynamodb.ts'
import { systemClock } from '../../core/clock.ts'
import type { Clock } from '../../core/clock.ts'
import type { FitnessVerdict } from '../../core/fitness.ts'
import type { DynamodbClient } from '../dynamodb.ts'
import { clockCheck, fitness, tableCheck } from './fitness.ts'
import { hasOurKeys } from './schema.ts'

type Words = readonly [verdict: FitnessVerdict, found: string, mend?: string]

const ourKeys = [
  { AttributeName: 'key', KeyType: 'HASH' },
  { AttributeName: 'part', KeyType: 'RANGE' },
]
const ours: DynamodbTable = { TableStatus: 'ACTIVE', KeySchema: ourKeys }
const region = { RegionName: 'eu-west-1' }

const tableWhy =
  'Entries need the keys of a table of ours. And a global table is written in several regions at once, and the last writer wins: a key ' +
  'can be claimed in each of them.'
const timeToLiveWhy =
  'What has expired is deleted by DynamoDB itself, free of charge; without that it stays until it is swept.'
const ownTable = 'Give the store a table of its own.'
const oneRegion = 'Use a table of one region, or one table per region.'
const noTransactions =
  'Nothing runs twice there, but once.transaction and mending by hand fail. Run onceonly sweep from cron.'
const untilActive = 'Wait until it is ACTIVE.'
const switchOn = 'onceonly migrate switches it on (attribute removeAt).'
const readRight = 'Grant this user the right to read it, or run the doctor as a user who has it.'

test('keys of other types, or more of them, are not ours', () => {
  expect(hasOurKeys({ KeySchema: ourKeys })).toBe(true)
  const [key, part] = ourKeys as [object, object]
  const typed = (KeyType: string): object[] => [{ ...key, KeyType }, part]
  for (const KeySchema of [typed('RANGE'), [...ourKeys, { AttributeName: 'third', KeyType: 'RANGE' }], [key], []])
    expect(hasOurKeys({ KeySchema } as DynamodbTable), JSON.stringify(KeySchema)).toBe(false)
})

interface Replies {
  readonly table?: { readonly Table?: DynamodbTable }
  readonly timeToLive?: { readonly TimeToLiveDescription?: DynamodbTimeToLive }
}

type Method = (input: object, options?: { abortSignal: AbortSignal }) => Promise<object>

const unasked = createClient('http://127.0.0.1:1')

function clientWith(methods: Partial<Record<'describeTable' | 'describeTimeToLive', Method>>): DynamodbClient {
  return Object.assign(Object.create(unasked) as DynamodbClient, { middlewareStack: undefined, ...methods })
}

/** Its table is as it should be, but for these replies. */
function clientThat({ table, timeToLive }: Replies): DynamodbClient {
  const onlyOf =
    (reply: object): Method =>
    async (input) => {
      if (JSON.stringify(input) !== '{"TableName":"entries"}') throw new Error(`asked for ${JSON.stringify(input)}`)
      return reply
    }
  const enabled = { TimeToLiveDescription: { TimeToLiveStatus: 'ENABLED', AttributeName: 'removeAt' } }
  return clientWith({
    describeTable: onlyOf(table ?? { Table: ours }),
    describeTimeToLive: onlyOf(timeToLive ?? enabled),
  })
}

const tables: readonly [Replies['table'], ...Words][] = [
  [{ Table: ours }, 'ok', 'ACTIVE, in one region'],
  [{ Table: { ...ours, TableStatus: 'UPDATING' } }, 'ok', 'UPDATING, in one region'],
  [{ Table: { ...ours, TableStatus: 'CREATING' } }, 'warning', 'CREATING, in one region', untilActive],
  [{ Table: { ...ours, TableStatus: 'DELETING' } }, 'warning', 'DELETING, in one region', untilActive],
  [{ Table: { ...ours, KeySchema: ourKeys.toReversed() } }, 'ok', 'ACTIVE, in one region'],
  [
    { Table: { ...ours, KeySchema: [{ AttributeName: 'id', KeyType: 'HASH' }] } },
    'violated',
    'other keys: [{"AttributeName":"id","KeyType":"HASH"}]',
    ownTable,
  ],
  [
    { Table: { ...ours, KeySchema: [ourKeys[0]!], Replicas: [region, region] } },
    'violated',
    'other keys: [{"AttributeName":"key","KeyType":"HASH"}]',
    ownTable,
  ],
  [{}, 'unknown', 'the check failed: the reply has no Table', readRight],
  [{ Table: { ...ours, Replicas: [] } }, 'ok', 'ACTIVE, in one region'],
  [{ Table: { ...ours, Replicas: [], MultiRegionConsistency: 'STRONG' } }, 'ok', 'ACTIVE, in one region'],
  [{ Table: { ...ours, Replicas: [region] } }, 'violated', 'a global table, replicas: 1', oneRegion],
  [
    { Table: { ...ours, Replicas: [region, region], MultiRegionConsistency: 'EVENTUAL' } },
    'violated',
    'a global table, replicas: 2',
    oneRegion,
  ],
  [
    { Table: { ...ours, Replicas: [region], MultiRegionConsistency: 'STRONG' } },
    'warning',
    'a global table with strong consistency, replicas: 1',
    noTransactions,
  ],
]

const timesToLive: readonly [DynamodbTimeToLive | undefined, ...Words][] = [
  [{ TimeToLiveStatus: 'ENABLED', AttributeName: 'removeAt' }, 'ok', 'ENABLED on removeAt'],
  [{ TimeToLiveStatus: 'ENABLING', AttributeName: 'removeAt' }, 'ok', 'ENABLING on removeAt'],
  [{ TimeToLiveStatus: 'ENABLED' }, 'ok', 'ENABLED'],
  [
    { TimeToLiveStatus: 'ENABLED', AttributeName: 'until' },
    'warning',
    'ENABLED on until',
    `Switch it off for until; then ${switchOn}`,
  ],
  [{ TimeToLiveStatus: 'DISABLING', AttributeName: 'removeAt' }, 'warning', 'DISABLING on removeAt', switchOn],
  [{ TimeToLiveStatus: 'DISABLED' }, 'warning', 'DISABLED', switchOn],
  [{}, 'warning', 'not told', switchOn],
  [undefined, 'warning', 'not told', switchOn],
]

const checkOf = ([verdict, found, mend]: Words): object => ({ verdict, found, ...(mend !== undefined && { mend }) })

describe('what the doctor says', () => {
  test.each(tables)('of the table %j', async (table, ...words) => {
    const [told] = await fitness(clientThat({ table: table! }), 'entries', systemClock).checks(0)
    const question = { name: 'dynamodb-table', lookedAt: 'DescribeTable entries', why: tableWhy }
    expect(told).toEqual({ ...question, ...checkOf(words) })
  })

  test.each(timesToLive)('of the time to live %j', async (description, ...words) => {
    const timeToLive = description && { TimeToLiveDescription: description }
    const client = clientThat({ timeToLive: timeToLive ?? {} })
    const [, told] = await fitness(client, 'entries', systemClock).checks(0)
    const question = { name: 'dynamodb-time-to-live', lookedAt: 'DescribeTimeToLive entries', why: timeToLiveWhy }
    expect(told).toEqual({ ...question, ...checkOf(words) })
  })

  test('what has no reply within ten seconds is unknown', async () => {
    using timeout = vi.spyOn(AbortSignal, 'timeout').mockImplementation((ms) => AbortSignal.abort(`${ms} ms`))
    const silent: Method = async (_, options) => {
      throw new Error(`no reply in ${String(options?.abortSignal.reason)}`)
    }
    const client = clientWith({ describeTable: silent, describeTimeToLive: silent })
    const checks = await fitness(client, 'entries', systemClock).checks(0)
    const unknown = { verdict: 'unknown', found: 'the check failed: no reply in 10000 ms', mend: readRight }
    expect(checks).toMatchObject([unknown, unknown])
    expect(timeout).toHaveBeenCalledTimes(2)
  })
})

describe('the look of a store at its table', () => {
  const objectionTo = (table: Replies['table']) => tableCheck('entries', async () => table!)()

  test.each(tables.filter(([, verdict]) => verdict === 'violated'))('objects to %j', async (table, _, found, mend) => {
    expect(await objectionTo(table)).toMatchObject({
      code: 'STORE_UNSAFE',
      executed: 'no',
      retryable: false,
      message: `The table entries is not fit (${found}). ${tableWhy} The effect was not run. ${mend}`,
    })
  })

  test.each(tables.filter(([, verdict]) => verdict !== 'violated'))('objects to nothing at %j', async (table) => {
    expect(await objectionTo(table)).toBeUndefined()
  })

  /** Each look takes the next of these; an error is thrown. */
  function looking(...replies: readonly (DynamodbTable | Error | undefined)[]) {
    let asked = 0
    const check = tableCheck('entries', async () => {
      const reply = replies[asked++]
      if (reply instanceof Error) throw reply
      return { Table: reply }
    })
    return { check, asked: () => asked }
  }
  const failing = (name: string): Error => Object.assign(new Error('no'), { name })

  test('is one for all who ask, while the table is fit', async () => {
    const { check, asked } = looking(ours, { ...ours, Replicas: [region] })
    expect(await Promise.all([check(), check()])).toEqual([undefined, undefined])
    expect(await check()).toBeUndefined()
    expect(asked()).toBe(1)
  })

  test('comes again after an objection', async () => {
    const { check, asked } = looking({ ...ours, Replicas: [region] }, ours)
    expect(await check()).toMatchObject({ code: 'STORE_UNSAFE' })
    expect(await check()).toBeUndefined()
    expect(asked()).toBe(2)
  })

  test('does not come again where the right is missing', async () => {
    const { check, asked } = looking(failing('AccessDeniedException'), { ...ours, Replicas: [region] })
    expect([await check(), await check(), asked()]).toEqual([undefined, undefined, 1])
  })

  test.each([failing('TimeoutError'), undefined])('objects to nothing at %s, and comes again', async (reply) => {
    const { check, asked } = looking(reply, { ...ours, Replicas: [region] })
    expect(await check()).toBeUndefined()
    expect(await check()).toMatchObject({ code: 'STORE_UNSAFE' })
    expect(asked()).toBe(2)
  })
})

interface Reply {
  readonly response?: { readonly headers?: Record<string, string> }
}

type Next = (request: object) => Promise<Reply>

interface Heard {
  readonly client: DynamodbClient
  /** How the SDK was asked to call the listener, each time. */
  readonly added: readonly object[]
  /** What left the SDK. */
  readonly sent: readonly object[]
  /** Past the listener. */
  send(request: object): Promise<Reply>
}

/** A client whose SDK receives these replies, one after the other. */
function hearing(...replies: readonly Reply[]): Heard {
  const added: object[] = []
  const sent: object[] = []
  let left = replies
  let send: Next = async (request) => {
    sent.push(request)
    const [reply = {}, ...later] = left
    left = later
    return reply
  }
  const middlewareStack = {
    add(middleware: (next: Next) => Next, options: object) {
      added.push(options)
      send = middleware(send)
    },
  }
  const describeTable: Method = async (input) => {
    await send(input)
    return { Table: ours }
  }
  return {
    client: Object.assign(clientWith({ describeTable }), { middlewareStack }),
    added,
    sent,
    send: (request) => send(request),
  }
}

const serverMs = Date.parse('2026-03-01T12:00:00Z')
const dated: Reply = { response: { headers: { date: 'Sun, 01 Mar 2026 12:00:00 GMT' } } }
const undated: readonly Reply[] = [
  {},
  { response: {} },
  { response: { headers: {} } },
  { response: { headers: { date: 'soon' } } },
]

/** Off DynamoDB's time by this much, at one reading after the other. */
function clockOff(...offsMs: readonly number[]): Clock {
  let read = 0
  return { ...systemClock, now: () => serverMs + offsMs[read++]! }
}

describe("DynamoDB's time", () => {
  test('is the Date of the last reply', async () => {
    const later = { response: { headers: { date: 'Sun, 01 Mar 2026 12:00:07 GMT' } } }
    const { timeMs } = fitness(hearing(dated, later).client, 'entries', systemClock)
    expect(await timeMs!()).toBe(serverMs)
    expect(await timeMs!()).toBe(serverMs + 7_000)
  })

  test.each(undated)('is not known by the reply %j, whatever an earlier one said', async (reply) => {
    const { timeMs } = fitness(hearing(dated, reply).client, 'entries', systemClock)
    expect(await timeMs!()).toBe(serverMs)
    await expect(timeMs!()).rejects.toThrow(/^the reply has no Date$/)
  })

  test('is not known by a client that nobody can listen to, and its clock is believed', async () => {
    const client = clientThat({})
    await expect(fitness(client, 'entries', systemClock).timeMs!()).rejects.toThrow(/^the reply has no Date$/)
    clockCheck(client, systemClock, 0)()
  })

  test('is listened to once for each client, beside the requests and replies', async () => {
    const { client, added, sent, send } = hearing(dated, dated)
    fitness(client, 'entries', systemClock)
    fitness(client, 'entries', systemClock)
    clockCheck(client, systemClock, 5_000)
    expect(added).toEqual([{ step: 'deserialize', priority: 'low' }])
    const request = { input: {} }
    expect(await send(request)).toBe(dated)
    expect(sent[0]).toBe(request)
    const other = hearing()
    clockCheck(other.client, systemClock, 5_000)
    fitness(other.client, 'entries', systemClock)
    expect(other.added).toHaveLength(1)
  })
})

describe("this machine's clock", () => {
  const message = (off: string, clockSkewMs: number): string =>
    `The clock of this machine is at least ${off} DynamoDB's, and leases are judged by it (clockSkewMs is ${clockSkewMs}). ` +
    'The effect was not run. Set the clock (NTP), or allow more with clockSkewMs on every machine.'

  async function checked(clockSkewMs: number, offsMs: readonly number[], ...replies: readonly Reply[]) {
    const { client, send } = hearing(...replies)
    const check = clockCheck(client, clockOff(...offsMs), clockSkewMs)
    for (const _ of replies) await send({})
    return check
  }

  // Replies have whole seconds: up to one of them was cut off.
  test.each([
    [5_000, 3_500, 3_500],
    [5_000, -2_500, -2_500],
    [5_000, 0, 4_000],
    [5_000, -60_000, -2_500],
    [5_001, 3_500, 3_500],
    [0, 1_000, 1_000],
    [0, 0, 0],
  ])('within %i ms of others is believed at %i ms before and %i ms after the reply', async (skewMs, ...offsMs) => {
    expect(await checked(skewMs, offsMs, dated)).not.toThrow()
  })

  test.each([
    [5_000, 3_501, 3_501, '2501 ms ahead of'],
    [5_000, 3_501, 9_999, '2501 ms ahead of'],
    [5_000, -2_501, -2_501, '2501 ms behind'],
    [5_000, -9_999, -2_501, '2501 ms behind'],
    [0, 1_001, 1_001, '1 ms ahead of'],
    [0, -1, -1, '1 ms behind'],
    // It was set back meanwhile.
    [0, 1_000, -1, '1 ms behind'],
  ])('of %i ms is refused at %i ms before and %i ms after the reply: %s', async (skewMs, sentMs, receivedMs, off) => {
    const check = await checked(skewMs, [sentMs, receivedMs], dated)
    const error = { code: 'STORE_UNSAFE', executed: 'no', retryable: false, message: message(off, skewMs) }
    expect(check).toThrow(expect.objectContaining(error))
  })

  test('is believed before the first reply, and after one that is right', async () => {
    expect(await checked(0, [])).not.toThrow()
    expect(await checked(5_000, [60_000, 60_000, 0, 0], dated, dated)).not.toThrow()
  })

  test.each(undated)('is judged by the reply before %j', async (reply) => {
    expect(await checked(5_000, [0, 0], reply)).not.toThrow()
    const check = await checked(5_000, [3_501, 3_501, 0, 0], dated, reply)
    expect(check).toThrow(message('2501 ms ahead of', 5_000))
  })
})
