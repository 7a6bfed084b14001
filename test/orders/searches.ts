// What `npm run orders -- --record` searched, by store, as test/simulation/searches.ts keeps what was simulated.

import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { withSearch } from '../simulation/searches.ts'
import type { Search, Searches } from '../simulation/searches.ts'

const file = join(import.meta.dirname, 'searches.json')

export function readOrders(): Searches {
  return JSON.parse(readFileSync(file, 'utf8')) as Searches
}

export function recordOrders(store: string, search: Search): void {
  writeFileSync(file, `${JSON.stringify(withSearch(readOrders(), store, search), null, 2)}\n`)
}
