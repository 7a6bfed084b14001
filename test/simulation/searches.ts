// Every search with fresh seeds that was recorded (`npm run simulate -- --fresh --record`), added up by the commit that it ran on. The file is
// tracked: a search lasts longer than the machine that it runs on.

import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

export interface Search {
  readonly commit: string
  readonly schedules: number
  /** How many of them had a violation. */
  readonly found: number
}

/** By what was simulated, in the order of the commits' first searches. */
export type Searches = Readonly<Record<string, readonly Search[]>>

const file = join(import.meta.dirname, 'searches.json')

export function readSearches(): Searches {
  return JSON.parse(readFileSync(file, 'utf8')) as Searches
}

export function recordSearch(what: string, search: Search): void {
  writeFileSync(file, `${JSON.stringify(withSearch(readSearches(), what, search), null, 2)}\n`)
}

export function withSearch(searches: Searches, what: string, search: Search): Searches {
  const own = searches[what] ?? []
  const earlier = own.find(({ commit }) => commit === search.commit)
  if (!earlier) return { ...searches, [what]: [...own, search] }
  const sum = {
    commit: search.commit,
    schedules: earlier.schedules + search.schedules,
    found: earlier.found + search.found,
  }
  return { ...searches, [what]: own.map((each) => (each === earlier ? sum : each)) }
}
