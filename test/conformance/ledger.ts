// Counts what really happened, apart from everything that is under test: it has no unique constraint and dedupes nothing.
import { appendFileSync, existsSync, readFileSync } from 'node:fs'

export interface Ledger {
  /** A handler was entered. */
  invoke(tag: string): void
  /** A side effect was committed. */
  commit(tag: string): void
  counts(): Promise<ReadonlyMap<string, Counts>>
}

export interface Counts {
  readonly effects: number
  readonly invocations: number
}

export function memoryLedger(): Ledger {
  const lines: string[] = []
  return {
    invoke: (tag) => void lines.push(`invocations ${tag}`),
    commit: (tag) => void lines.push(`effects ${tag}`),
    counts: async () => count(lines),
  }
}

/** One line for each, written through before the handler goes on: it outlives a process that is killed. */
export function fileLedger(path: string): Ledger {
  return {
    invoke: (tag) => appendFileSync(path, `invocations ${tag}\n`),
    commit: (tag) => appendFileSync(path, `effects ${tag}\n`),
    counts: async () => count(existsSync(path) ? readFileSync(path, 'utf8').trimEnd().split('\n') : []),
  }
}

export function sum(counts: ReadonlyMap<string, Counts>, of: keyof Counts): number {
  return [...counts.values()].reduce((total, each) => total + each[of], 0)
}

function count(lines: readonly string[]): Map<string, Counts> {
  const counts = new Map<string, { effects: number; invocations: number }>()
  for (const line of lines) {
    const [what, tag] = line.split(' ', 2) as [keyof Counts, string]
    if (!tag) continue
    const entry = counts.get(tag) ?? { effects: 0, invocations: 0 }
    entry[what]++
    counts.set(tag, entry)
  }
  return counts
}
