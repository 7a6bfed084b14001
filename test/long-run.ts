// Tests that kill processes do it a few times in every run, and many times with ONCEONLY_LONG=1, which is how docs/guarantees.md gets its
// figures: each leaves a line in reports/, and `npm run guarantees` writes them into the page.
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

export const isLong: boolean = process.env['ONCEONLY_LONG'] === '1'

/** Prints what a run came to. A long one is kept as reports/long-NAME.json. */
export function tellRun(name: string, line: string): void {
  process.stdout.write(`${name}: ${line}\n`)
  if (!isLong) return
  const reports = join(import.meta.dirname, '../reports')
  mkdirSync(reports, { recursive: true })
  writeFileSync(join(reports, `long-${name.replaceAll(/\W+/g, '-')}.json`), JSON.stringify({ line }, null, 2))
}
