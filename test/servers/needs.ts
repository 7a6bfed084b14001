// How a test file says which stores, programs and devices it needs. Where one is missing, its tests are skipped with the reason
// and the cure, or fail if ONCEONLY_REQUIRE=all, unless the server says that it may not be had anywhere. Invariant: every skip is in
// the summary of the run, with its reason.
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
  test(name: string, body: () => Promise<void> | void): void
}

export function needs(names: StoreName | StoreName[], options: NeedOptions = {}): Need {
  const skips = [names].flat().flatMap((name) => skipFor(name, options, process.env) ?? [])
  return needOf(skips)
}

/** The same for what is no store: a program, a device, a limit of the system. */
export function needsTool(name: string, lack: Omit<Skip, 'store'> | undefined): Need {
  return needOf(lack ? [{ store: name, ...lack }] : [])
}

function needOf(skips: Skip[]): Need {
  if (skips.length === 0)
    return {
      missing: undefined,
      describe: (name, body) => void describe(name, body),
      test: (name, body) => void test(name, body),
    }
  const missing = skips.map(textOf).join('; ')
  if (mustFail(skips, process.env)) return failInstead(missing)
  skips.forEach(record)
  return {
    missing,
    describe: (name, body) => void describe.skip(`${name} [skipped: ${missing}]`, body),
    test: (name, body) => void test.skip(`${name} [skipped: ${missing}]`, body),
  }
}

// A server that may not be had anywhere is skipped even where all are required.
export function mustFail(skips: readonly Skip[], env: NodeJS.ProcessEnv): boolean {
  return env['ONCEONLY_REQUIRE'] === 'all' && skips.some(({ optional }) => optional === undefined)
}

function failInstead(missing: string): Need {
  const fail = (): void => {
    throw new Error(`${missing} (a skip is a failure because ONCEONLY_REQUIRE=all)`)
  }
  return {
    missing,
    describe: (name) => void describe(name, () => test('has what it needs', fail)),
    test: (name) => void test(name, fail),
  }
}

// For the summary that the global set-up prints; without one there is nobody to print it.
function record(skip: Skip): void {
  const run = process.env['ONCEONLY_RUN_DIR']
  if (!run) return
  const text = JSON.stringify(skip)
  mkdirSync(join(run, 'skipped'), { recursive: true })
  writeFileSync(join(run, 'skipped', createHash('sha256').update(text).digest('hex')), text)
}
