// What each database lends to the contract of the writes: its tables, a way to run a write in a transaction, and a look at rows.
import type { Writes } from '../../src/writes/index.ts'

export interface WritesGround extends AsyncDisposable {
  // Runs the work in a transaction of its own where there are any, and commits it; rolls back what throws.
  run<T>(work: (writes: Writes) => Promise<T>): Promise<T>
  // The committed row as texts, null where there is none in a column; undefined where there is no row.
  row(table: string, key: Record<string, string>): Promise<Record<string, string | null> | undefined>
  // Empty tables.
  reset(): Promise<void>
}

// What the tables are, in words: each ground makes them in its own.
//   things  id (key), name, note: text; visits, version: whole numbers of 64 bits; unique email: text, may be left out
//   marks   event_id (key)
//   events  event_id (unique), stream, version (unique together), body
export const tables = ['things', 'marks', 'events'] as const

export function asTexts(row: object): Record<string, string | null> {
  const entries = Object.entries(row).map(([name, value]) => [name, textOf(value)] as const)
  return Object.fromEntries(entries)
}

function textOf(value: unknown): string | null {
  if (value === null || value === undefined) return null
  if (value instanceof Uint8Array) return Buffer.from(value).toString('utf8')
  return Array.isArray(value) ? value.join(',') : String(value as string | number | bigint)
}
