// From what one machine was measured to do, to what a million requests a second need: arithmetic, hour by hour over the days for which
// entries are remembered. Every number that goes in is an input with a name: measured by the bench where there is a record, assumed where
// there is none. docs/scaling.md is written from it.

import type { ComparisonRow, Results, VariantRow } from './report.ts'

export type System = 'DynamoDB' | 'Redis Cluster' | 'PostgreSQL'

export interface Load {
  /** At the busiest hour of the day. */
  readonly peakPerSecond: number
  /** The busiest hour to the mean of the day. */
  readonly peakToMean: number
  /** Of all requests, those that are retries of a settled one. */
  readonly replayShare: number
  /** How long a result is replayed, and for how long after that its key is still refused. */
  readonly keepHours: number
  readonly tombstoneHours: number
}

/**
 * What one request costs on one system. Microseconds of processor time, bytes. Application and server are charged alike: in calls that
 * carry b rows a request costs clientUs + clientCallUs / b and rowUs + callUs / b, so that a plan without batches has neither of them
 * at the price of a large batch.
 */
export interface Costs {
  readonly clientUs: number
  readonly clientCallUs: number
  readonly rowUs: number
  readonly callUs: number
  readonly replayUs: number
  readonly logBytes: number
  readonly entryBytes: number
  readonly tombstoneBytes: number
}

export interface Machine {
  /** Part of a processor that is planned with. The rest is for vacuums, failovers and the neighbours. */
  readonly use: number
  readonly coresPerServer: number
  readonly logMbPerSecond: number
  readonly storageGbPerServer: number
  readonly serversMax: number
  /** Each server and its copies. */
  readonly copies: number
  readonly batchMax: number
  /** How many calls to one server a process has under way, each on a connection. */
  readonly callsInFlight: number
}

/** In dollars. Put in your own: these are round figures of public price lists, and no offer. */
export interface Prices {
  readonly coreMonth: number
  readonly storageGbMonth: number
  readonly writeUnitsMillion: number
}

export interface Planned {
  readonly system: System
  readonly peakPerSecond: number
  readonly appCores: number
  readonly servers: number
  readonly limitedBy: string
  /** Rows that share a call, where all processes talk to all servers. */
  readonly batch: number
  readonly connectionsPerServer: number
  readonly storageTb: number
  readonly logMbPerSecond: number
  readonly dollarsMonth: number
  readonly dollarsPerMillion: number
}

export interface Hour {
  readonly perSecond: number
  readonly entries: number
  readonly tombstones: number
  readonly logBytes: number
}

export const load: Load = {
  peakPerSecond: 1_000_000,
  peakToMean: 1.5,
  replayShare: 0.02,
  keepHours: 24,
  tombstoneHours: 7 * 24,
}

const hourS = 3_600
const monthHours = 730
const roundTripS = 0.002

/** The days of a retention, hour by hour: what is remembered grows until as much expires as is added. */
export function simulate(asked: Load, costs: Costs): Hour[] {
  const { keepHours, tombstoneHours } = asked
  const hours: Hour[] = []
  const added: number[] = []
  let [entries, tombstones] = [0, 0]
  for (let hour = 0; hour < 24 + keepHours + tombstoneHours; hour++) {
    const perSecond = perSecondAt(hour, asked)
    const fresh = perSecond * hourS * (1 - asked.replayShare)
    added.push(fresh)
    const settledEarlier = added[hour - keepHours] ?? 0
    entries += fresh - settledEarlier
    tombstones += settledEarlier - (added[hour - keepHours - tombstoneHours] ?? 0)
    hours.push({ perSecond, entries, tombstones, logBytes: fresh * costs.logBytes })
  }
  return hours
}

/** A day is a wave with its top in the afternoon. */
export function perSecondAt(hour: number, { peakPerSecond, peakToMean }: Load): number {
  const mean = peakPerSecond / peakToMean
  return mean + (peakPerSecond - mean) * Math.sin(((hour % 24) - 9) * (Math.PI / 12))
}

/** How many of everything. */
export function planFor(system: System, asked: Load, inputs: Inputs): Planned {
  const { costs, machine, prices } = inputs[system]
  const hours = simulate(asked, costs)
  const { peakPerSecond, replayShare } = asked
  const most = (of: (hour: Hour) => number): number => Math.max(...hours.map(of))
  const storedBytes = most(({ entries, tombstones }) => entries * costs.entryBytes + tombstones * costs.tombstoneBytes)
  const logPerSecond = most(({ logBytes }) => logBytes / hourS)
  const byLog = logPerSecond / 1e6 / machine.logMbPerSecond
  const byStorage = storedBytes / 1e9 / machine.storageGbPerServer
  // More servers share the load of each process, batches are smaller, and a row costs more: until it no longer changes.
  const coresFor = (requestUs: number): number => (peakPerSecond * requestUs) / 1e6 / machine.use
  let [appCores, servers, batch, byProcessor] = [1, 1, machine.batchMax, 1]
  for (let round = 0; round < 50; round++) {
    appCores = Math.ceil(coresFor(costs.clientUs + costs.clientCallUs / batch))
    const perLane = peakPerSecond / appCores / servers / machine.callsInFlight
    batch = Math.min(machine.batchMax, Math.max(1, perLane * roundTripS))
    const rowUs = costs.rowUs * (1 - replayShare) + costs.replayUs * replayShare + costs.callUs / batch
    byProcessor = coresFor(rowUs) / machine.coresPerServer
    servers = Math.max(1, Math.ceil(Math.max(byLog, byStorage, byProcessor)))
  }
  const [, limitedBy] = [
    [byLog, 'log'],
    [byStorage, 'storage'],
    [byProcessor, 'processor'],
  ].toSorted((a, b) => Number(b[0]) - Number(a[0]))[0] as [number, string]
  const dollarsMonth = dollarsOf({ system, asked, servers, storedBytes, machine, prices, appCores })
  const requestsMonth = (peakPerSecond / asked.peakToMean) * hourS * monthHours
  return {
    system,
    peakPerSecond,
    appCores,
    servers: servers * machine.copies,
    limitedBy:
      system === 'DynamoDB' ? 'price' : servers > machine.serversMax ? `${limitedBy}, above the limit` : limitedBy,
    batch,
    connectionsPerServer: appCores * machine.callsInFlight,
    storageTb: storedBytes / 1e12,
    logMbPerSecond: logPerSecond / 1e6,
    dollarsMonth,
    dollarsPerMillion: (dollarsMonth / requestsMonth) * 1e6,
  }
}

interface Bill {
  readonly system: System
  readonly asked: Load
  readonly servers: number
  readonly storedBytes: number
  readonly machine: Machine
  readonly prices: Prices
  readonly appCores: number
}

function dollarsOf({ system, asked, servers, storedBytes, machine, prices, appCores }: Bill): number {
  const app = appCores * prices.coreMonth
  const storage = (storedBytes / 1e9) * prices.storageGbMonth * machine.copies
  if (system !== 'DynamoDB') return app + storage + servers * machine.copies * machine.coresPerServer * prices.coreMonth
  // A claim and a settle write, and a replay is a refused write.
  const units = (asked.peakPerSecond / asked.peakToMean) * hourS * monthHours * (2 - asked.replayShare)
  return app + storage + (units / 1e6) * prices.writeUnitsMillion
}

export type Inputs = Readonly<
  Record<
    System,
    { readonly costs: Costs; readonly machine: Machine; readonly prices: Prices; readonly measured: readonly string[] }
  >
>

const assumed: Readonly<Record<System, { costs: Costs; machine: Machine; prices: Prices }>> = {
  DynamoDB: {
    costs: {
      clientUs: 300,
      clientCallUs: 0,
      rowUs: 0,
      callUs: 0,
      replayUs: 0,
      logBytes: 0,
      entryBytes: 700,
      tombstoneBytes: 700,
    },
    machine: {
      use: 0.6,
      coresPerServer: 1,
      logMbPerSecond: 1e9,
      storageGbPerServer: 1e12,
      serversMax: 1,
      copies: 1,
      batchMax: 1,
      callsInFlight: 64,
    },
    prices: { coreMonth: 30, storageGbMonth: 0.25, writeUnitsMillion: 0.625 },
  },
  'Redis Cluster': {
    costs: {
      clientUs: 30,
      clientCallUs: 290,
      rowUs: 12,
      callUs: 150,
      replayUs: 2,
      logBytes: 700,
      entryBytes: 700,
      tombstoneBytes: 350,
    },
    machine: {
      use: 0.6,
      coresPerServer: 1,
      logMbPerSecond: 100,
      storageGbPerServer: 50,
      serversMax: 200,
      copies: 2,
      // A call carries keys of one bucket of 1,024, so hardly two requests of a moment share theirs.
      batchMax: 1,
      callsInFlight: 1,
    },
    prices: { coreMonth: 30, storageGbMonth: 4, writeUnitsMillion: 0 },
  },
  PostgreSQL: {
    costs: {
      clientUs: 30,
      clientCallUs: 280,
      rowUs: 33,
      callUs: 350,
      replayUs: 15,
      logBytes: 1_100,
      entryBytes: 700,
      tombstoneBytes: 700,
    },
    machine: {
      use: 0.6,
      coresPerServer: 16,
      logMbPerSecond: 150,
      storageGbPerServer: 4_000,
      serversMax: 500,
      copies: 2,
      batchMax: 256,
      callsInFlight: 2,
    },
    prices: { coreMonth: 30, storageGbMonth: 0.1, writeUnitsMillion: 0 },
  },
}

/** What goes in: measured where the record has it, assumed where not. */
export function inputsFrom(results: Results): Inputs {
  const postgres = costsFrom(results, {
    part: 'postgres',
    title: /fresh, c=256/,
    alone: /fresh, c=1$/,
    replay: /replay, c=256/,
  })
  const redis = costsFrom(results, {
    part: 'redis',
    title: /fresh, c=256/,
    alone: /fresh, c=1$/,
    replay: /replay, c=256/,
  })
  const sizes = (on: string): Partial<Costs> => ({
    ...bytesFrom(results, new RegExp(`^${on}, an entry`), 'entryBytes'),
    ...bytesFrom(results, new RegExp(`^${on}, log of a fresh call`), 'logBytes'),
  })
  const pg = { ...postgres, ...sizes('PostgreSQL') }
  // In periods the contents of a tombstone are on disk until its table is emptied.
  const asLarge = pg.entryBytes === undefined ? {} : { tombstoneBytes: pg.entryBytes }
  return {
    DynamoDB: { ...assumed.DynamoDB, measured: [] },
    'Redis Cluster': withMeasured('Redis Cluster', { ...redis, ...sizes('Redis') }),
    PostgreSQL: withMeasured('PostgreSQL', { ...pg, ...asLarge }),
  }
}

function withMeasured(system: System, measured: Partial<Costs>): Inputs[System] {
  return { ...assumed[system], costs: { ...assumed[system].costs, ...measured }, measured: Object.keys(measured) }
}

interface Where {
  readonly part: string
  readonly title: RegExp
  readonly alone: RegExp
  readonly replay: RegExp
}

function costsFrom(results: Results, { part, title, alone, replay }: Where): Partial<Costs> {
  const ours = (of: RegExp): VariantRow | undefined => {
    const rows: readonly ComparisonRow[] = results[part]?.comparisons ?? []
    const found = rows.find((row) => of.test(row.title))
    return found?.variants.find(({ name }) => name.startsWith('onceonly'))
  }
  const [many, one, again] = [ours(title), ours(alone), ours(replay)]
  if (many?.clientCpuUs === undefined || many.serverCpuUs === undefined) return {}
  return {
    clientUs: many.clientCpuUs,
    rowUs: many.serverCpuUs,
    ...(one?.clientCpuUs !== undefined && { clientCallUs: Math.max(0, one.clientCpuUs - many.clientCpuUs) }),
    ...(one?.serverCpuUs !== undefined && { callUs: Math.max(0, one.serverCpuUs - many.serverCpuUs) }),
    ...(again?.serverCpuUs !== undefined && { replayUs: again.serverCpuUs }),
  }
}

function bytesFrom(results: Results, what: RegExp, as: keyof Costs): Partial<Costs> {
  const found = Object.values(results)
    .flatMap(({ figures }) => figures)
    .find((each) => each.unit === 'B' && what.test(each.what))
  return found === undefined ? {} : { [as]: found.measured }
}

const systems = ['DynamoDB', 'Redis Cluster', 'PostgreSQL'] as const
const rates = [1_000, 10_000, 100_000, 1_000_000] as const

/** The tables of docs/scaling.md. */
export function scalingTables(results: Results): {
  readonly load: string
  readonly inputs: string
  readonly plans: string
  readonly shorter: string
} {
  const inputs = inputsFrom(results)
  return {
    load: loadText(inputs),
    inputs: inputsTable(inputs),
    plans: plansTable(
      rates.flatMap((peakPerSecond) => systems.map((each) => planFor(each, { ...load, peakPerSecond }, inputs))),
    ),
    shorter: plansTable(systems.map((each) => planFor(each, { ...load, keepHours: 1, tombstoneHours: 23 }, inputs))),
  }
}

function loadText(inputs: Inputs): string {
  const { peakToMean, replayShare, keepHours, tombstoneHours } = load
  const [postgres, redis, dynamodb] = [inputs.PostgreSQL, inputs['Redis Cluster'], inputs.DynamoDB]
  return [
    `- The load is a day that rises to its peak in the afternoon (${peakToMean} times its mean), with ${replayShare * 100} % of retries, results of 300 bytes, \`keepMs\` of ${keepHours} hours and \`tombstoneMs\` of ${tombstoneHours / 24} days, which are the defaults.`,
    `- Processors are planned at ${postgres.machine.use * 100} %. A round trip takes ${roundTripS * 1_000} ms.`,
    `- A server of PostgreSQL has ${postgres.machine.coresPerServer} cores, ${postgres.machine.storageGbPerServer / 1_000} TB of disk and a log of ${postgres.machine.logMbPerSecond} MB/s. A primary of Redis has one core and ${redis.machine.storageGbPerServer} GB of memory. Each has one copy.`,
    `- $${postgres.prices.coreMonth} per core and month, $${postgres.prices.storageGbMonth} per GB and month of disk, $${redis.prices.storageGbMonth} of memory. DynamoDB: $${dynamodb.prices.writeUnitsMillion} per million write units, $${dynamodb.prices.storageGbMonth} per GB and month.`,
  ].join('\n')
}

function inputsTable(inputs: Inputs): string {
  const words: Readonly<Record<keyof Costs, string>> = {
    clientUs: 'processor time of the application per request, in the largest batches, µs',
    clientCallUs: 'the same, more for a request that shares its calls with no other, µs',
    rowUs: 'processor time of the server per fresh request, in the largest batches, µs',
    callUs: 'the same, more for a request that shares its calls with no other, µs',
    replayUs: 'processor time of the server per replay, in the largest batches, µs',
    logBytes: 'WAL or append-only file per fresh request, B',
    entryBytes: 'an entry with its indexes, B',
    tombstoneBytes: 'a tombstone, B',
  }
  const cell = (system: System, name: keyof Costs): string => {
    const { costs, measured } = inputs[system]
    return `${costs[name].toFixed(0)}${measured.includes(name) ? '' : ' (assumed)'}`
  }
  const rows = (Object.keys(words) as (keyof Costs)[]).map(
    (name) => `| ${words[name]} | ${systems.map((system) => cell(system, name)).join(' | ')} |`,
  )
  return [`| | ${systems.join(' | ')} |`, '|---|---:|---:|---:|', ...rows].join('\n')
}

function plansTable(plans: readonly Planned[]): string {
  const heads = [
    'requests/s',
    '',
    'cores of the application',
    'servers, with copies',
    'limited by',
    'rows per call',
    'connections per server',
    'storage',
    'log',
    '$ per month',
    '$ per million',
  ]
  const rows = plans.map((plan) => {
    const isTheirs = plan.system === 'DynamoDB'
    return [
      plan.peakPerSecond.toLocaleString('en'),
      plan.system,
      plan.appCores.toLocaleString('en'),
      isTheirs ? '–' : plan.servers.toLocaleString('en'),
      plan.limitedBy,
      isTheirs ? '1' : plan.batch.toFixed(plan.batch < 10 ? 1 : 0),
      isTheirs ? '–' : plan.connectionsPerServer.toLocaleString('en'),
      plan.storageTb < 1 ? `${(plan.storageTb * 1_000).toFixed(0)} GB` : `${plan.storageTb.toFixed(1)} TB`,
      isTheirs ? '–' : `${plan.logMbPerSecond.toFixed(0)} MB/s`,
      Number(plan.dollarsMonth.toPrecision(2)).toLocaleString('en'),
      plan.dollarsPerMillion.toFixed(3),
    ]
  })
  return [heads, heads.map((_, at) => (at === 1 || at === 4 ? '---' : '---:')), ...rows]
    .map((row) => `| ${row.join(' | ')} |`)
    .join('\n')
}

if (import.meta.main) {
  const { readResults } = await import('./report.ts')
  const { inputs, plans, shorter } = scalingTables(readResults())
  process.stdout.write(`${inputs}\n\n${plans}\n\nKept for one hour, refused for the rest of a day:\n\n${shorter}\n`)
}
