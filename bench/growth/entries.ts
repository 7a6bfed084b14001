// A fresh call beside 10 thousand remembered entries, 1 million and (in a huge run) 10 million; and of one tenant beside 1,000.

import { key, newId } from '../../src/core/key.ts'
import { compareAll, ratioIn } from '../measure.ts'
import type { Variant } from '../measure.ts'
import { effort, size } from '../plan.ts'
import { report, reportComparison } from '../report.ts'
import { fresh, outcome, places } from './places.ts'
import type { Database, Place } from './places.ts'

const few = 10_000
const tenants = 1_000

export async function benchEntries(): Promise<void> {
  for (const on of ['PostgreSQL', 'Redis', 'SQLite'] as const) {
    const { open, close } = places()
    try {
      const small = await open(on)
      await small.fill(few)
      await byEntries(on, small, open)
      await byTenants(on, small)
    } finally {
      await close()
    }
  }
}

async function byEntries(on: Database, small: Place, open: (on: Database) => Promise<Place>): Promise<void> {
  // PostgreSQL with 10 million entries is P6 in the part retention, in four layouts.
  const many = effort() === 'quick' ? 100_000 : effort() === 'huge' && on !== 'PostgreSQL' ? 10_000_000 : 1_000_000
  const large = await open(on)
  const emptyBytes = await large.storedBytes()
  await large.fill(many)
  const entryBytes = ((await large.storedBytes()) - emptyBytes) / many
  report({
    id: 'growth',
    what: `${on}, an entry with a result of 300 bytes and its indexes`,
    measured: entryBytes,
    unit: 'B',
  })
  const title = `${on}, fresh call beside ${many.toLocaleString('en')} entries`
  const variants: Variant[] = [
    { name: `${few.toLocaleString('en')} entries`, work: () => fresh(small.once) },
    { name: `${many.toLocaleString('en')} entries`, work: () => fresh(large.once) },
  ]
  const compared = await compareAll(variants, { concurrency: 1, operations: 600, rounds: 9 })
  const p50 = ratioIn(compared, 'p50Ms', variants[1]!.name, variants[0]!.name)
  report({ id: 'P6', what: `${title}: p50 to ${few.toLocaleString('en')}`, ...p50, atMost: 1.3 })
  reportComparison(title, compared)
  await logOf(on, large)
}

/** What a fresh call writes into the log of the database: a claim and a settle. */
async function logOf(on: Database, { once, loggedBytes }: Place): Promise<void> {
  if (!loggedBytes) return
  const calls = size(10_000, 2_000)
  const before = await loggedBytes()
  for (let left = calls; left > 0; left -= 100) await Promise.all(Array.from({ length: 100 }, () => fresh(once)))
  const measured = ((await loggedBytes()) - before) / calls
  report({ id: 'growth', what: `${on}, log of a fresh call, c=100`, measured, unit: 'B' })
}

/** A tenant is part of the scope of a key. */
async function byTenants(on: Database, { once }: Place): Promise<void> {
  const of = (count: number): Variant => ({
    name: `${count.toLocaleString('en')} tenant${count === 1 ? '' : 's'}`,
    work: (index) => once.run(key(`tenant-${index % count}`, newId()), () => outcome, { fingerprint: 'bench' }),
  })
  const [one, all] = [of(1), of(tenants)]
  const compared = await compareAll([one, all], { concurrency: 64, operations: 4_000, rounds: 7 })
  const title = `${on}, keys of ${tenants.toLocaleString('en')} tenants, c=64`
  const ratio = ratioIn(compared, 'perSecond', all.name, one.name)
  report({ id: 'growth', what: `${title}: throughput to 1 tenant`, ...ratio, atLeast: 0.9 })
  reportComparison(title, compared)
}
