// npm run seeded-bugs -- [--quick | --rotating [--part P]] [--only TEXT] [--workers W] [--json FILE]
//
// Puts each bug of the table into a copy of the source and sees whether its named assertion notices. First the same assertions
// must hold on the sound source: one that always fails would catch everything. Exit code 1 when a bug was missed.
// --quick leaves out what needs a server, or time. --rotating runs what is quick, and of the rest the third whose turn it is
// today, and names those that it leaves out. --part 0, 1 or 2 asks for one of the thirds. --only runs the rows whose id, group
// or file has the text.

import { writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { parseArgs } from 'node:util'
import { makeRunFolder } from '../servers/run-folder.ts'
import { describeCaughtBy } from './bug.ts'
import type { SeededBug } from './bug.ts'
import { makeCopy } from './copy.ts'
import { hunterIn } from './hunt.ts'
import { isSlow, partOfDay, parts, rotate } from './rotation.ts'
import type { Hunted, Hunter } from './hunt.ts'
import type { RunTest } from './standing-tests/process.ts'
import { seededBugs } from './table.ts'

const usage = `npm run seeded-bugs -- [--quick | --rotating [--part 0|1|2]] [--only TEXT] [--workers W] [--json FILE]

  --quick     leaves out what needs a server, or time
  --rotating  runs what is quick, and of the rest the third whose turn it is today
  --part      one of the thirds
  --only      the rows whose id, group or file has the text`

interface Wanted {
  readonly bugs: readonly SeededBug[]
  readonly workers: number
  readonly json: string | undefined
}

function readWanted(): Wanted {
  const { values } = parseArgs({
    options: {
      quick: { type: 'boolean', default: false },
      rotating: { type: 'boolean', default: false },
      part: { type: 'string' },
      only: { type: 'string', default: '' },
      workers: { type: 'string', default: String(availableParallelism()) },
      json: { type: 'string' },
      help: { type: 'boolean', default: false },
    },
  })
  if (values.help) {
    say(usage)
    process.exit()
  }
  const workers = Number(values.workers)
  if (!Number.isSafeInteger(workers) || workers < 1)
    throw new Error(`expected --workers to be a positive integer, got "${values.workers}"`)
  const named = seededBugs.filter((bug) => [bug.id, bug.group, bug.file].some((text) => text.includes(values.only)))
  if (values.quick) return { bugs: named.filter((bug) => !isSlow(bug)), workers, json: values.json }
  if (!values.rotating) return { bugs: named, workers, json: values.json }
  const part = values.part === undefined ? partOfDay(Date.now()) : Number(values.part)
  const { bugs, left } = rotate(named, part)
  say(`seeded bugs, part ${part} of ${parts} (again: npm run seeded-bugs -- --rotating --part ${part})`)
  for (const { id } of left) say(`left to another day: ${id}`)
  return { bugs, workers, json: values.json }
}

/** Says why a row's assertion does not hold on the sound source already: then nothing that it catches would count. */
type Unsound = (bug: SeededBug) => string | undefined

async function runOnSoundSource(hunters: readonly Hunter[], bugs: readonly SeededBug[]): Promise<Unsound> {
  const broken = await simulateSound(hunters[0]!, bugs)
  const tests = await runSoundTests(hunters, bugs)
  return ({ caughtBy }) => {
    if ('simulation' in caughtBy) return broken.get(caughtBy.of)
    const named = tests.filter(({ file, title }) => file === caughtBy.file && title.includes(caughtBy.test))
    if (named.length === 0) return 'it could not be run on the sound source'
    const failed = named.find(({ status }) => status === 'failed')
    return failed && `it fails on the sound source, too: ${failed.message.split('\n', 1)[0]}`
  }
}

/** What is broken, in the simulations that a row relies on. Nearly all rows are caught within this many schedules. */
async function simulateSound(hunter: Hunter, bugs: readonly SeededBug[]): Promise<ReadonlyMap<string, string>> {
  const broken = new Map<string, string>()
  for (const what of new Set(bugs.flatMap(({ caughtBy }) => ('simulation' in caughtBy ? [caughtBy.of] : [])))) {
    // No assertion has this name, so this runs to its end and reports all that is broken.
    const simulated = await hunter.simulate(what, 'none', 500)
    if (simulated.is === 'missed' && simulated.why.includes('broke')) broken.set(what, simulated.why)
  }
  return broken
}

async function runSoundTests(hunters: readonly Hunter[], bugs: readonly SeededBug[]): Promise<readonly RunTest[]> {
  const named = bugs.flatMap(({ caughtBy }) => ('test' in caughtBy ? [caughtBy] : []))
  const found: RunTest[] = []
  await share(hunters, [...Map.groupBy(named, ({ file }) => file)], async (hunter, [file, rows]) => {
    found.push(...(await hunter.runTests(file, [...new Set(rows.map(({ test }) => test))])))
  })
  return found
}

/** Each takes the next as soon as it is free. */
async function share<Task>(
  hunters: readonly Hunter[],
  tasks: readonly Task[],
  work: (hunter: Hunter, task: Task) => Promise<void>,
): Promise<void> {
  const waiting = tasks.values()
  await Promise.all(
    hunters.map(async (hunter) => {
      for (const task of waiting) await work(hunter, task)
    }),
  )
}

interface Row {
  readonly bug: SeededBug
  readonly hunted: Hunted
  readonly seconds: number
}

async function huntAll(hunters: readonly Hunter[], bugs: readonly SeededBug[], unsound: Unsound): Promise<Row[]> {
  const rows: Row[] = []
  await share(hunters, bugs, async (hunter, bug) => {
    const beganMs = performance.now()
    const why = unsound(bug)
    const hunted = why === undefined ? await hunter.hunt(bug) : ({ is: 'missed', why } as const)
    const row = { bug, hunted, seconds: (performance.now() - beganMs) / 1_000 }
    rows.push(row)
    say(describeRow(row))
  })
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
  process.env['ONCEONLY_RUN_DIR'] = folder.path
  const hunters = Array.from({ length: workers }, () => hunterIn(makeCopy(folder.path)))
  try {
    const unsound = await runOnSoundSource(hunters, bugs)
    say(`the sound source has been gone through (${((performance.now() - beganMs) / 1_000).toFixed(1)} s)`)
    const rows = await huntAll(hunters, bugs, unsound)
    report(rows, (performance.now() - beganMs) / 1_000, json)
  } finally {
    for (const hunter of hunters) hunter.close()
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
