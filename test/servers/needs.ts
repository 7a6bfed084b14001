// How a test file says which stores it needs. Where one is missing, its tests are skipped with the reason and the cure, or
// fail if ONCEONLY_REQUIRE=all. Invariant: nothing is left out in silence; what is skipped is in the summary of the run.
import { createHash } from 'node:crypto'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, test } from 'vitest'
import type { StoreName } from './index.ts'
import { type NeedOptions, type Skip, skipFor, textOf } from './skip.ts'

export interface Need {
  // Why the tests are skipped, with the cure; undefined where everything is there.
  missing: string | undefined
  describe(name: string, body: () => void): void
}

export function needs(names: StoreName | StoreName[], options: NeedOptions = {}): Need {
  const skips = [names].flat().flatMap((name) => skipFor(name, options, process.env) ?? [])
  if (skips.length === 0) return { missing: undefined, describe: (name, body) => void describe(name, body) }
  const missing = skips.map(textOf).join('; ')
  if (process.env['ONCEONLY_REQUIRE'] === 'all') return { missing, describe: (name) => failInstead(name, missing) }
  skips.forEach(record)
  return { missing, describe: (name, body) => void describe.skip(`${name} [skipped: ${missing}]`, body) }
}

function failInstead(name: string, missing: string): void {
  describe(name, () => {
    test('has the servers that it needs', () => {
      throw new Error(`${missing} (a skip is a failure because ONCEONLY_REQUIRE=all)`)
    })
  })
}

// For the summary that the global set-up prints; without one there is nobody to print it.
function record(skip: Skip): void {
  const run = process.env['ONCEONLY_RUN_DIR']
  if (!run) return
  const text = JSON.stringify(skip)
  mkdirSync(join(run, 'skipped'), { recursive: true })
  writeFileSync(join(run, 'skipped', createHash('sha256').update(text).digest('hex')), text)
}
