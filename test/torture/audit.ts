// The audit trail: triggers in the store's own database write down every accepted change of an entry, before and after. The
// library cannot pass them by. Keys of these tests have no character that SQL would have to escape.
import { keyString } from '../../src/core/key.ts'
import type { HistoryRow, RowChange } from '../../src/testing/history-checker.ts'
import type { OpenedStore, StoreName } from './place.ts'

const columns = ['state', 'token', 'attempt', 'fence', 'fingerprint', 'lease', 'keep', 'tombstone', 'outcome'] as const

/** The names of the store's own columns, where they differ from ours. */
const named: Readonly<Record<'sqlite' | 'server', Partial<Record<(typeof columns)[number], string>>>> = {
  sqlite: { lease: 'lease_until', keep: 'keep_ms', tombstone: 'tombstone_ms' },
  server: { lease: 'lease_until_ms', keep: 'keep_ms', tombstone: 'tombstone_ms' },
}

function values(row: 'old' | 'new' | undefined, names: Partial<Record<string, string>>): string {
  return columns.map((column) => (row ? `${row}.${names[column] ?? column}` : 'null')).join(', ')
}

function table(number: string, text: string, bytes: string): string {
  const side = (prefix: string): string =>
    columns
      .map((column) => {
        const kind = column === 'outcome' ? bytes : ['state', 'token', 'fingerprint'].includes(column) ? text : 'bigint'
        return `${prefix}_${column} ${kind}`
      })
      .join(', ')
  return `create table torture_audit (number ${number}, at_ms double precision, store_ms double precision,
    scope ${text}, id ${text}, ${side('before')}, ${side('after')})`
}

function insert(event: Event, at: string, names: Partial<Record<string, string>>): string {
  const key = event === 'delete' ? 'old' : 'new'
  const before = values(event === 'insert' ? undefined : 'old', names)
  const after = values(event === 'delete' ? undefined : 'new', names)
  return `insert into torture_audit (at_ms, store_ms, scope, id, ${side('before')}, ${side('after')})
    values (${at}, ${key}.scope, ${key}.id, ${before}, ${after});`
}

const side = (prefix: string): string => columns.map((column) => `${prefix}_${column}`).join(', ')
const events = ['insert', 'update', 'delete'] as const
type Event = (typeof events)[number]

/** The time of the machine, and the time of the file, which counts on by itself: see sqlite/time.ts. */
const sqliteTimes = `unixepoch('subsec') * 1000.0, (select at from onceonly_clock)`
const mysqlTime = `timestampdiff(microsecond, '1970-01-01', sysdate(6)) / 1000.0`
const postgresTime = 'extract(epoch from clock_timestamp()) * 1000'

function statements(store: StoreName): string[] {
  if (store === 'sqlite') {
    const trigger = (event: Event): string =>
      `create trigger torture_${event} after ${event} on onceonly begin ${insert(event, sqliteTimes, named.sqlite)} end`
    return [table('integer primary key', 'text', 'blob'), ...events.map(trigger)]
  }
  if (store === 'mysql') {
    const trigger = (event: Event): string =>
      `create trigger torture_${event} after ${event} on onceonly for each row
       begin ${insert(event, `${mysqlTime}, null`, named.server)} end`
    const made = table('bigint not null auto_increment primary key', 'varbinary(255)', 'longblob')
    return [made, ...events.map(trigger)]
  }
  const branch = (event: Event): string =>
    `if tg_op = '${event.toUpperCase()}' then ${insert(event, `${postgresTime}, null`, named.server)} end if;`
  return [
    table('bigint generated always as identity', 'text', 'bytea'),
    `create function torture_audited() returns trigger language plpgsql as $$
     begin ${events.map(branch).join('\n')} return null; end $$`,
    `create trigger torture_audited after insert or update or delete on onceonly
     for each row execute function torture_audited()`,
  ]
}

export async function installAudit(store: StoreName, opened: OpenedStore): Promise<void> {
  for (const statement of statements(store)) await opened.sql(statement)
}

const states: Readonly<Record<string, HistoryRow['wrote']>> = { r: 'claim', o: 'release', s: 'settle' }

/** Changes as the store made them, each key's in its order. `by` is filled in by the code that knows the operations. */
export async function readAudit(opened: OpenedStore): Promise<Change[]> {
  const rows = await opened.sql('select * from torture_audit order by number')
  const changes = rows.filter(isChange).map((row) => ({
    key: keyString({ scope: text(row['scope']), id: text(row['id']) }),
    atMs: Number(row['at_ms']),
    storeMs: row['store_ms'] === null ? undefined : Number(row['store_ms']),
    before: rowOf(row, 'before'),
    after: rowOf(row, 'after'),
    by: undefined,
  }))
  return withWholeGrants(changes)
}

type Change = RowChange & { readonly storeMs: number | undefined }

// MySQL inserts an entry to have its lock, and reads the clock for its fence under it, in one transaction: what others can see
// is one change.
function withWholeGrants(changes: readonly Change[]): Change[] {
  const whole: Change[] = []
  const last = new Map<string, number>()
  for (const change of changes) {
    const index = last.get(change.key)
    const grant = index === undefined ? undefined : whole[index]
    if (index !== undefined && grant && grant.before?.token !== grant.after?.token && isFenceOnly(change)) {
      whole[index] = { ...change, before: grant.before }
    } else last.set(change.key, whole.push(change) - 1)
  }
  return whole
}

function isFenceOnly({ before, after }: Change): boolean {
  if (!before || !after || before.fence === after.fence) return false
  const rest = ({ token, attempt, wrote, fingerprint }: HistoryRow): string =>
    [token, attempt, wrote, fingerprint].join()
  return rest(before) === rest(after) && before.wrote === 'claim'
}

// A store may touch a row twice in one transaction (its input, its index), which no other client can see.
function isChange(row: Record<string, unknown>): boolean {
  return columns.some((column) => String(row[`before_${column}`]) !== String(row[`after_${column}`]))
}

function rowOf(row: Record<string, unknown>, prefix: 'before' | 'after'): HistoryRow | undefined {
  const of = (column: (typeof columns)[number]): unknown => row[`${prefix}_${column}`]
  if (of('state') === null) return undefined
  const outcome = of('outcome') as Uint8Array | null
  return {
    token: text(of('token')),
    attempt: Number(of('attempt')),
    fence: Number(of('fence')),
    fingerprint: text(of('fingerprint')),
    wrote: states[text(of('state'))[0]!]!,
    leaseUntilMs: Number(of('lease')),
    keepMs: Number(of('keep')),
    tombstoneMs: Number(of('tombstone')),
    ...(outcome && { outcome: new Uint8Array(outcome) }),
  }
}

function text(value: unknown): string {
  return value instanceof Uint8Array ? Buffer.from(value).toString() : String(value)
}
