// A model of the SQL database under the inbox: rows, transactions, row locks, and the statements that the inbox sends, read from their
// text. A statement that it does not know is an error, so the model cannot fall behind the source. What the two functions on PostgreSQL do
// is written again here, as nothing here can run plpgsql. As on the servers, a locked row is
// waited for and looked at again, or passed over; a circle of waiting transactions ends with a conflict; SQLite has one writer.
import type { SqlDialect } from '../../../src/clients/sql-database.ts'
import { type SqlStatement, type SqlValue, textOf } from '../../../src/clients/sql-statement.ts'

export type Cell = string | number | null
export type Row = Readonly<Record<string, Cell>>
type TableName = keyof typeof keysOf

const keysOf = {
  inbox: ['scope', 'id'],
  inbox_parked: ['scope', 'id', 'fingerprint'],
  inbox_versions: ['scope', 'entity'],
} as const

/** Rolled back because of others: all of it may run again. */
export class ModelConflict extends Error {}

export interface ModelTransaction {
  isOpen: boolean
  /** By the name of the row. Undefined: deleted. */
  readonly writes: Map<string, Row | undefined>
  readonly locks: Set<string>
  waitsFor: ModelTransaction | undefined
  /** What is to be done when it commits, in the order of commits. */
  readonly onCommit: (() => void)[]
}

export interface SqlModel {
  /** Resolves when it is open: on SQLite when every other has ended. */
  begin(): Promise<ModelTransaction>
  execute(tx: ModelTransaction, statement: SqlStatement): Promise<readonly string[]>
  commit(tx: ModelTransaction): void
  rollback(tx: ModelTransaction): void
  /** The server restarts: what is open is rolled back, and what was committed without waiting for the disk may be lost. */
  crash(): void
  /** What is committed. */
  rows(table: TableName): readonly Row[]
  find(table: TableName, ...key: readonly string[]): Row | undefined
  /** How many rows of a name were lost by crashes. */
  lost(table: TableName, ...key: readonly string[]): number
}

/** `now_ms` in a statement is the time of the server. */
export const nowText = 'now_ms'

interface Server {
  readonly dialect: SqlDialect
  nowMs(): number
  /** While a statement is under way others take place. */
  pause(): Promise<void>
  readonly committed: Readonly<Record<TableName, Map<string, Row>>>
  readonly locks: Map<string, ModelTransaction>
  /** Each end of a transaction lets all look again. */
  waiting: (() => void)[]
  readonly open: Set<ModelTransaction>
}

const nameOf = (table: string, key: readonly unknown[]): string => JSON.stringify([table, ...key])
const keyOf = (table: string, row: Row): readonly Cell[] => keysOf[table as TableName].map((column) => row[column]!)
const tableOf = (name: string): TableName => name.slice(2, name.indexOf('"', 2)) as TableName

export function sqlModel({ dialect, nowMs, pause }: Pick<Server, 'dialect' | 'nowMs' | 'pause'>): SqlModel {
  const server: Server = {
    dialect,
    nowMs,
    pause,
    committed: { inbox: new Map(), inbox_parked: new Map(), inbox_versions: new Map() },
    locks: new Map(),
    waiting: [],
    open: new Set(),
  }
  const { committed } = server
  const lost = new Map<string, number>()
  let unsynced: string[] = []
  return {
    async begin() {
      const tx = newTransaction()
      server.open.add(tx)
      if (dialect === 'sqlite') await lock(server, tx, 'the database', 'wait')
      return tx
    },
    async execute(tx, statement) {
      const answers = await execute(server, tx, statement)
      // The inbox counts a first attempt without waiting for the disk.
      if (statement.texts[0]!.includes('inbox_receive')) {
        const fresh = [...tx.writes.keys()]
        tx.onCommit.push(() => unsynced.push(...fresh))
      } else if (tx.writes.size > 0) tx.onCommit.push(() => (unsynced = []))
      return answers
    },
    commit(tx) {
      if (!tx.isOpen) throw new Error('the transaction has ended')
      for (const [name, row] of tx.writes) {
        if (row) committed[tableOf(name)].set(name, row)
        else committed[tableOf(name)].delete(name)
      }
      for (const done of tx.onCommit) done()
      end(server, tx)
    },
    rollback: (tx) => end(server, tx),
    crash() {
      for (const tx of server.open) end(server, tx)
      for (const name of unsynced) {
        committed.inbox.delete(name)
        lost.set(name, (lost.get(name) ?? 0) + 1)
      }
      unsynced = []
    },
    rows: (table) => [...committed[table].values()],
    find: (table, ...key) => committed[table].get(nameOf(table, key)),
    lost: (table, ...key) => lost.get(nameOf(table, key)) ?? 0,
  }
}

function newTransaction(): ModelTransaction {
  return { isOpen: true, writes: new Map(), locks: new Set(), waitsFor: undefined, onCommit: [] }
}

function end(server: Server, tx: ModelTransaction): void {
  if (!tx.isOpen) return
  tx.isOpen = false
  server.open.delete(tx)
  for (const name of tx.locks) server.locks.delete(name)
  const { waiting } = server
  server.waiting = []
  for (const wake of waiting) wake()
}

async function lock(server: Server, tx: ModelTransaction, name: string, busy: 'wait' | 'skip'): Promise<boolean> {
  for (;;) {
    if (!tx.isOpen) throw new Error('the transaction has ended')
    const holder = server.locks.get(name)
    if (!holder || holder === tx) break
    if (busy === 'skip') return false
    for (let at: ModelTransaction | undefined = holder; at; at = at.waitsFor) {
      if (at !== tx) continue
      end(server, tx)
      throw new ModelConflict('deadlock')
    }
    tx.waitsFor = holder
    await new Promise<void>((wake) => server.waiting.push(wake))
    tx.waitsFor = undefined
  }
  server.locks.set(name, tx)
  tx.locks.add(name)
  return true
}

function view({ committed }: Server, tx: ModelTransaction, name: string): Row | undefined {
  return tx.writes.has(name) ? tx.writes.get(name) : committed[tableOf(name)].get(name)
}

function scan(
  { committed }: Server,
  tx: ModelTransaction,
  table: TableName,
  matches: (row: Row) => boolean,
): [name: string, row: Row][] {
  const found: [string, Row][] = []
  for (const [name, row] of committed[table]) if (!tx.writes.has(name) && matches(row)) found.push([name, row])
  for (const [name, row] of tx.writes) if (row && tableOf(name) === table && matches(row)) found.push([name, row])
  return found
}

const shapes = {
  receive: /^select inbox_receive_v1\((?<scope>\$\d+), (?<ids>\$\d+), (?<prints>\$\d+), (?<at>\w+)\) as answer$/,
  take: /^select inbox_take_v1\((?<scope>\$\d+), (?<ids>\$\d+)\) as answer$/,
  insert:
    /^insert (?:ignore )?into (?<table>\w+) \((?<columns>[\w, ]+)\) values (?<tuples>\(.+?\))(?<greater> on (?:conflict \(scope, entity\) do update set|duplicate key update) version = .+)?(?: on conflict do nothing)?$/,
  update:
    /^update (?<table>\w+) set (?<set>.+?) where (?<where>.+?)(?: returning (?<returning>\w+)(?:::text)? as answer)?$/,
  remove: /^delete from (?<table>\w+) where (?<where>.+?)(?: order by (?<order>at_ms) limit (?<limit>\d+))?$/,
  select:
    /^select (?<columns>.+?) from (?<table>\w+) where (?<where>.+?)(?: order by (?<order>[\w, ]+?))?(?: limit (?<limit>\d+))?(?<lock> for update(?: skip locked)?)?$/,
}

type Parts = Readonly<Record<string, string | undefined>>

/** A statement that is being carried out. */
interface Running {
  readonly server: Server
  readonly tx: ModelTransaction
  readonly values: readonly SqlValue[]
}

interface Parsed {
  readonly shape: keyof typeof shapes
  readonly parts: Parts
}

/** The inbox sends the same texts again and again. */
const parsed = new Map<string, Parsed>()

function parse(statement: SqlStatement): Parsed {
  const raw = statement.texts.join('$')
  const known = parsed.get(raw)
  if (known) return known
  const text = textOf(statement, (position) => `$${position}`)
    .replaceAll(/\s+/g, ' ')
    .trim()
  for (const shape of Object.keys(shapes) as (keyof typeof shapes)[]) {
    const parts = shapes[shape].exec(text)?.groups
    if (!parts) continue
    parsed.set(raw, { shape, parts })
    return { shape, parts }
  }
  const bug = new Error(`Bug! The model does not know this statement: ${text}`)
  // The inbox would take it for a database that is down, and try again for ever.
  queueMicrotask(() => {
    throw bug
  })
  throw bug
}

async function execute(server: Server, tx: ModelTransaction, statement: SqlStatement): Promise<readonly string[]> {
  if (!tx.isOpen) throw new Error('the transaction has ended')
  const { shape, parts } = parse(statement)
  const running: Running = { server, tx, values: statement.values }
  switch (shape) {
    case 'receive':
      return receive(running, parts)
    case 'take':
      return take(running, parts)
    case 'insert':
      return insert(running, parts)
    case 'update':
      return update(running, parts)
    case 'remove':
      for (const [name] of await chosen(running, { ...parts, lock: ' for update' })) tx.writes.set(name, undefined)
      return []
    case 'select':
      return select(running, parts)
  }
}

async function select(running: Running, parts: Parts): Promise<readonly string[]> {
  const columns = /^(?:json_build_array|json_array|cast\(json_array)\((.+?)\)(?:::text| as char\))? as answer$/.exec(
    parts['columns']!,
  )
  if (!columns) throw new Error(`Bug! The model does not know these columns: ${parts['columns']}`)
  const expressions = columns[1]!.split(/, (?![^(]*\))/)
  const rows = await chosen(running, parts)
  return rows.map(([, row]) => JSON.stringify(expressions.map((expression) => cellOf(row, expression))))
}

function cellOf(row: Row, expression: string): Cell {
  const column = /^(?:hex\(|cast\()?(\w+)/.exec(expression)![1]!
  const cell = row[column] ?? null
  if (expression.startsWith('hex(')) return Buffer.from(String(cell)).toString('hex')
  return expression.startsWith('cast(') ? String(cell) : cell
}

function termOf({ server, values }: Running, text: string): Cell {
  const bare = text.trim().replace(/::text$/, '')
  if (bare === nowText) return server.nowMs()
  if (bare === 'null') return null
  if (bare.startsWith("'")) return bare.slice(1, -1)
  if (!bare.startsWith('$')) return Number(bare)
  const value = values[Number(bare.slice(1)) - 1]!
  return value instanceof Uint8Array ? Buffer.from(value).toString() : (value as Cell)
}

function matcherOf(running: Running, where: string): (row: Row) => boolean {
  const conditions = where.split(' and ').map((text) => conditionOf(running, text))
  return (row) => conditions.every((condition) => condition(row))
}

function conditionOf(running: Running, text: string): (row: Row) => boolean {
  const [, column, operator, rest] = /^(\w+) (=|<>|<|in|is not null|is null) ?(.*)$/.exec(text) ?? []
  const term = (each: string): string => String(termOf(running, each))
  switch (operator) {
    case '=': {
      const value = term(rest!)
      return column === '1' ? () => true : (row) => String(row[column!]) === value
    }
    case '<>': {
      const value = term(rest!)
      return (row) => String(row[column!]) !== value
    }
    case '<': {
      const value = Number(term(rest!))
      return (row) => Number(row[column!]) < value
    }
    case 'is not null':
      return (row) => row[column!] !== null && row[column!] !== undefined
    case 'is null':
      return (row) => row[column!] === null || row[column!] === undefined
    case 'in': {
      const among = new Set(rest!.slice(1, -1).split(', ').map(term))
      return (row) => among.has(String(row[column!]))
    }
    default:
      throw new Error(`Bug! The model does not know this condition: ${text}`)
  }
}

/** The rows that a statement is about. A locked one is looked at again, as it may have changed meanwhile. */
async function chosen(running: Running, parts: Parts): Promise<readonly [name: string, row: Row][]> {
  const { server, tx } = running
  const { table, where, order, limit = 'Infinity', lock: locking } = parts
  const nested = /^\(scope, id\) in \((select .+)\)$/.exec(where!)
  if (nested) {
    const inner = shapes.select.exec(nested[1]!)!.groups!
    const found = await chosen(running, inner)
    if (locking !== undefined) for (const [name] of found) await lock(server, tx, name, 'wait')
    return found
  }
  const matches = matcherOf(running, where!)
  const candidates = scan(server, tx, table as TableName, matches)
  const by = order?.split(', ') ?? []
  candidates.sort(([, a], [, b]) => by.reduce((sign, column) => sign || compare(a[column]!, b[column]!), 0))
  const rows: [string, Row][] = []
  for (const [name, row] of candidates) {
    if (rows.length >= Number(limit)) break
    if (locking === undefined) rows.push([name, row])
    else if (await lock(server, tx, name, locking.includes('skip') ? 'skip' : 'wait')) {
      const now = view(server, tx, name)
      if (now && matches(now)) rows.push([name, now])
    }
  }
  return rows
}

function compare(a: Cell, b: Cell): number {
  if (typeof a === 'number' && typeof b === 'number') return a - b
  return String(a) < String(b) ? -1 : String(a) > String(b) ? 1 : 0
}

async function update(running: Running, parts: Parts): Promise<readonly string[]> {
  const { tx } = running
  const rows = await chosen(running, { ...parts, lock: ' for update' })
  const answers: string[] = []
  for (const [name, row] of rows) {
    const changed: Record<string, Cell> = { ...row }
    for (const each of parts['set']!.split(', ')) {
      const [column, value] = each.split(' = ') as [string, string]
      const more = /^(\w+) \+ (\d+)$/.exec(value)
      changed[column] = more ? Number(row[more[1]!]) + Number(more[2]) : termOf(running, value)
    }
    tx.writes.set(name, changed)
    if (parts['returning']) answers.push(String(changed[parts['returning']]))
  }
  return answers
}

async function insert(running: Running, { table, columns, tuples, greater }: Parts): Promise<readonly string[]> {
  const { server, tx } = running
  const names = columns!.split(', ')
  for (const tuple of tuples!.slice(1, -1).split('), (')) {
    const cells = tuple.split(', ').map((text) => termOf(running, text))
    const row = Object.fromEntries(names.map((column, index) => [column, cells[index]!]))
    const name = nameOf(table!, keyOf(table!, row))
    // MySQL waits for a row that is there and locked; PostgreSQL only for one that is not committed yet.
    const mustWait = greater !== undefined || server.dialect === 'mysql' || !server.committed[tableOf(name)].has(name)
    if (mustWait) await lock(server, tx, name, 'wait')
    const found = view(server, tx, name)
    if (!found) tx.writes.set(name, row)
    else if (greater && Number(row['version']) > Number(found['version'])) tx.writes.set(name, row)
  }
  return []
}

const linesOf = (running: Running, text: string | undefined): readonly string[] =>
  String(termOf(running, text!)).split('\n')

/**
 * `receive`: all that is not seen is inserted. When another was first with one of them, nothing is, and once more without it. Then what became
 * of those that are not fresh.
 */
async function receive(running: Running, { scope, ids, prints, at }: Parts): Promise<readonly string[]> {
  const { server, tx } = running
  const fingerprints = linesOf(running, prints)
  const given = linesOf(running, ids).map((id, index) => {
    const row: Row = {
      scope: termOf(running, scope!),
      id,
      fingerprint: fingerprints[index]!,
      state: 'r',
      attempts: 1,
      at_ms: termOf(running, at!),
    }
    return { id, name: nameOf('inbox', keyOf('inbox', row)), row }
  })
  const inOrder = given.toSorted((a, b) => compare(a.id, b.id))
  const fresh = (await insertUnseen(running, inOrder, 'fail')) ?? (await insertUnseen(running, inOrder, 'skip'))!
  if (fresh.size === given.length) return []
  await server.pause()
  return given
    .filter(({ name }) => !fresh.has(name))
    .map(({ id, name }) => {
      const known = view(server, tx, name)
      return JSON.stringify([id, known?.['state'] ?? null, known?.['attempts'] ?? null, known?.['fingerprint'] ?? null])
    })
}

/** One statement: what it sees is from before it began. Undefined, and nothing inserted, when one is there that it does not see. */
async function insertUnseen(
  { server, tx }: Running,
  given: readonly { readonly name: string; readonly row: Row }[],
  onConflict: 'fail' | 'skip',
): Promise<ReadonlySet<string> | undefined> {
  const { inbox } = server.committed
  const seen = new Set(inbox.keys())
  await server.pause()
  const inserted = new Set<string>()
  for (const { name, row } of given) {
    // What was there when the statement began is not inserted, and so not waited for.
    if (seen.has(name)) continue
    if (!inbox.has(name)) await lock(server, tx, name, 'wait')
    if (!inbox.has(name)) {
      tx.writes.set(name, row)
      inserted.add(name)
    } else if (onConflict === 'fail') {
      for (const each of inserted) tx.writes.delete(each)
      return undefined
    }
  }
  return inserted
}

/** `take`: what is received and locked by nobody else is done. Tells the others. */
async function take(running: Running, { scope, ids }: Parts): Promise<readonly string[]> {
  const { server, tx } = running
  await server.pause()
  const left: string[] = []
  for (const id of linesOf(running, ids)) {
    const name = nameOf('inbox', [termOf(running, scope!), id])
    const isFree = view(server, tx, name)?.['state'] === 'r' && (await lock(server, tx, name, 'skip'))
    const row = view(server, tx, name)
    if (isFree && row?.['state'] === 'r') tx.writes.set(name, { ...row, state: 'd' })
    else left.push(id)
  }
  return left
}
