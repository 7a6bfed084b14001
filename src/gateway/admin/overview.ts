// The picture that every open dashboard shows: totals and plot from the journal, what waits from the store, and the additional
// sections. The store is queried seldom, whatever the number of dashboards. Counting is a walk over its entries, and a
// dashboard that was left open must not become a load.

import type { Clock } from '../../core/clock.ts'
import type { Key } from '../../core/key.ts'
import type { Once } from '../../core/once.ts'
import type { Store } from '../../core/store.ts'
import { countMax } from './entries.ts'
import type { Entries } from './entries.ts'
import type { EventJournal } from './journal.ts'

/**
 * One more table on the dashboard: operations, outbox, inbox, sessions. The page shows any section without knowing it, so a
 * part of onceonly that has something to show only passes a section to `startAdmin`.
 */
export interface AdminSection {
  /** For the page's anchors: 'operations'. */
  readonly name: string
  readonly title: string
  readonly columns: readonly string[]
  /** Undefined where there is none of it. Then nothing is shown. */
  rows(): Promise<readonly SectionRow[] | undefined>
}

export interface SectionRow {
  readonly cells: readonly string[]
  /** The page leads from the first cell to the life of this key. */
  readonly key?: Key
  /** Which of the numbers at the top count it, beside the entries. */
  readonly counts?: readonly ('inDoubt' | 'parked')[]
}

interface OverviewOptions {
  readonly once: Once
  readonly store: Store
  readonly notReady: () => string | undefined
  readonly degraded?: (() => string | undefined) | undefined
  readonly sections?: readonly AdminSection[] | undefined
  readonly clock: Clock
  readonly entries: Entries
  readonly journal: EventJournal
}

interface FromStore {
  readonly waiting?: Awaited<ReturnType<Entries['waiting']>> & { readonly inDoubt: number; readonly parked: number }
  readonly sections: readonly unknown[]
  readonly problem?: string
}

const storeEveryMs = 2_000
// The next query waits twenty times as long as the last one took: at most 5% of one connection.
const restFactor = 20
const latestEvents = 12
// A table for people. The command line shows longer ones.
const sectionRowsMax = 50

export function overviewOf(options: OverviewOptions): () => Promise<string> {
  const { once, store, journal, clock, notReady, degraded } = options
  let fromStore: FromStore = { sections: [] }
  let nextMs = 0
  // The page does not wait for it: what this process has seen is shown at once, also when the store is slow or down.
  const ask = async (): Promise<void> => {
    const startedMs = clock.elapsed()
    nextMs = Infinity
    fromStore = await askStore(options)
    nextMs = clock.elapsed() + Math.max(storeEveryMs, restFactor * (clock.elapsed() - startedMs))
  }
  return async () => {
    if (clock.elapsed() >= nextMs) void ask()
    return JSON.stringify({
      store: store.name,
      scope: once.scope,
      notReady: notReady(),
      degraded: degraded?.(),
      dataLoss: journal.dataLoss(),
      countMax,
      totals: journal.totals(),
      slices: journal.slices(),
      latest: journal.latest(latestEvents),
      ...fromStore,
    })
  }
}

async function askStore({ entries, sections = [] }: OverviewOptions): Promise<FromStore> {
  try {
    const found = await Promise.all(sections.map(async (section) => ({ section, rows: await section.rows() })))
    const waiting = await entries.waiting()
    const counted = found.flatMap(({ rows = [] }) => rows.flatMap(({ counts = [] }) => counts))
    const count = (what: 'inDoubt' | 'parked'): number => counted.filter((each) => each === what).length
    return {
      waiting: { ...waiting, inDoubt: waiting.abandoned + count('inDoubt'), parked: count('parked') },
      sections: found.flatMap(({ section, rows }) => (rows ? [shown(section, rows)] : [])),
    }
  } catch (error) {
    return { sections: [], problem: error instanceof Error ? error.message : String(error) }
  }
}

function shown({ name, title, columns }: AdminSection, rows: readonly SectionRow[]): object {
  const few = rows.slice(0, sectionRowsMax).map(({ cells, key }) => ({ cells, ...(key && { key }) }))
  return { name, title, columns, rows: few, more: rows.length > sectionRowsMax }
}
