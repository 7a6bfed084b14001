// npm run seeded-bugs -- [--quick] [--only TEXT] [--workers W] [--json FILE]
//
// Puts each bug of the table into a copy of the source and sees whether its named assertion notices. First the same assertions
// must hold on the sound source: one that always fails would catch everything. Exit code 1 when a bug was missed.
// --quick leaves out what needs a server; --only runs the rows whose id, group or file has the text.

import { writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { parseArgs } from 'node:util'
import { makeRunFolder } from '../servers/run-folder.ts'
import { describeCaughtBy } from './bug.ts'
import type { SeededBug } from './bug.ts'
import { makeCopy } from './copy.ts'
import type { Copy } from './copy.ts'
import { hunt, runTests, simulate } from './hunt.ts'
import type { Hunted } from './hunt.ts'
import { seededBugs } from './table.ts'

interface Wanted {
  readonly bugs: readonly SeededBug[]
  readonly workers: number
  readonly json: string | undefined
}

function readWanted(): Wanted {
  const { values } = parseArgs({
    options: {
      quick: { type: 'boolean', default: false },
      only: { type: 'string', default: '' },
      workers: { type: 'string', default: String(availableParallelism()) },
      json: { type: 'string' },
    },
  })
  const workers = Number(values.workers)
  if (!Number.isSafeInteger(workers) || workers < 1)
    throw new Error(`expected --workers to be a positive integer, got "${values.workers}"`)
  const needsServer = ({ caughtBy }: SeededBug): boolean => 'server' in caughtBy && caughtBy.server !== undefined
  const bugs = seededBugs.filter(
    (bug) =>
      (!values.quick || !needsServer(bug)) && [bug.id, bug.group, bug.file].some((text) => text.includes(values.only)),
  )
  return { bugs, workers, json: values.json }
}

/** Says why a row's assertion does not hold on the sound source already: then nothing that it catches would count. */
type Unsound = (bug: SeededBug) => string | undefined

// All tests of the table in one run, some ten servers among them.
const soundMsMax = 900_000

async function runOnSoundSource(copy: Copy, bugs: readonly SeededBug[]): Promise<Unsound> {
  const named = bugs.flatMap(({ caughtBy }) => ('test' in caughtBy ? [caughtBy] : []))
  const isSimulated = bugs.some(({ caughtBy }) => 'simulation' in caughtBy)
  const unique = (texts: readonly string[]): string[] => [...new Set(texts)]
  const [files, names] = [unique(named.map(({ file }) => file)), unique(named.map(({ test }) => test))]
  // Without a name, vitest would run everything.
  const { tests, said } = names.length > 0 ? await runTests(copy, files, names, soundMsMax) : { tests: [], said: '' }
  if (tests.length < names.length) throw new Error(`the tests of the sound source were not run: ${said}`)
  // No assertion has this name, so this runs to its end and tells all that is broken.
  const simulated = isSimulated ? await simulate(copy, 'none', 1_000) : undefined
  return ({ caughtBy }) => {
    if ('simulation' in caughtBy) {
      return simulated?.is === 'missed' && simulated.why.includes('broke') ? simulated.why : undefined
    }
    const failed = tests.find(
      ({ file, title, status }) => file === caughtBy.file && title.includes(caughtBy.test) && status === 'failed',
    )
    return failed && `it fails on the sound source, too: ${failed.message.split('\n', 1)[0]}`
  }
}

interface Row {
  readonly bug: SeededBug
  readonly hunted: Hunted
  readonly seconds: number
}

async function huntAll(copies: readonly Copy[], bugs: readonly SeededBug[], unsound: Unsound): Promise<Row[]> {
  const rows: Row[] = []
  const waiting = [...bugs]
  await Promise.all(
    copies.map(async (copy) => {
      for (let bug = waiting.shift(); bug; bug = waiting.shift()) {
        const beganMs = performance.now()
        const why = unsound(bug)
        const hunted = why === undefined ? await hunt(copy, bug) : ({ is: 'missed', why } as const)
        const row = { bug, hunted, seconds: (performance.now() - beganMs) / 1_000 }
        rows.push(row)
        say(describeRow(row))
      }
    }),
  )
  return rows
}

const words = { caught: 'caught ', missed: 'MISSED ', skipped: 'skipped' } as const

function describeRow({ bug, hunted, seconds }: Row): string {
  const found = hunted.is === 'caught' ? `after ${hunted.after}` : hunted.why
  return `${words[hunted.is]}  ${bug.id}\n         ${describeCaughtBy(bug.caughtBy)}\n         ${found} (${seconds.toFixed(1)} s)`
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}

async function main(): Promise<void> {
  const { bugs, workers, json } = readWanted()
  const beganMs = performance.now()
  // One for all runs of the tests: a data folder of a server is made once, and not once for each row. It goes with this
  // process, however that ends.
  const folder = await makeRunFolder()
  const copies = Array.from({ length: workers }, () => makeCopy(folder.path))
  process.env['ONCEONLY_RUN_DIR'] = folder.path
  try {
    const unsound = await runOnSoundSource(copies[0]!, bugs)
    say(`the sound source has been gone through (${((performance.now() - beganMs) / 1_000).toFixed(1)} s)`)
    const rows = await huntAll(copies, bugs, unsound)
    report(rows, (performance.now() - beganMs) / 1_000, json)
  } finally {
    await folder.remove()
  }
}

function report(rows: readonly Row[], seconds: number, json: string | undefined): void {
  const count = (is: Hunted['is']): number => rows.filter(({ hunted }) => hunted.is === is).length
  const [caught, missed, skipped] = [count('caught'), count('missed'), count('skipped')]
  for (const row of rows) if (row.hunted.is !== 'caught') say(describeRow(row))
  const without = skipped > 0 ? `, ${skipped} skipped for want of a server` : ''
  say(`${caught} of ${caught + missed} caught${without}, in ${seconds.toFixed(0)} s`)
  if (json) {
    const bugs = rows.map(({ bug, hunted, seconds: took }) => ({
      ...bug,
      caughtBy: describeCaughtBy(bug.caughtBy),
      ...hunted,
      seconds: took,
    }))
    writeFileSync(json, JSON.stringify({ caught, missed, skipped, seconds, bugs }, null, 2))
  }
  const isStrict = process.env['ONCEONLY_REQUIRE'] === 'all'
  process.exitCode = missed > 0 || (isStrict && skipped > 0) ? 1 : 0
}

await main()
