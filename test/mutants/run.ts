// npm run mutants -- FILE|FOLDER… [--sample SHARE [--seed N]] [--tests GLOB,GLOB]
//
// Changes one thing at a time in the named files (StrykerJS), runs the tests that reach it, and counts the changes that no test
// notices. tests.ts says which tests judge which files. The files of one store are judged on its real server: its tests start one with
// every mutant, and what takes longest to make (a pristine database) is made once, in the folder of the run. What came of it goes to
// test/mutants/score.json, and from there to docs/guarantees.md (npm run guarantees). Minutes for each file: an audit, and no part of
// npm test. With --sample 0.15 only that share of the mutants is tried, drawn by the seed (sample.ts).

import { spawn } from 'node:child_process'
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, globSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import prepareServers from '../servers/global-setup.ts'
import { installStryker } from './install.ts'
import { sampleVariable } from './sample.ts'
import type { Sample } from './sample.ts'
import { percent, writeScore } from './score.ts'
import type { Report } from './score.ts'
import { mutatedVariable, testsFor, testsVariable } from './tests.ts'

const root = join(import.meta.dirname, '../..')
const reports = join(root, 'reports')

interface Asked {
  readonly files: readonly string[]
  readonly sample: Sample | undefined
  readonly tests: readonly string[]
}

/** A comma in braces is part of its glob. */
const betweenGlobs = /,(?![^{]*\})/

function readArguments(): Asked {
  const { values, positionals } = parseArgs({
    options: { tests: { type: 'string' }, sample: { type: 'string' }, seed: { type: 'string' } },
    allowPositionals: true,
  })
  const missing = positionals.filter((path) => !existsSync(join(root, path)))
  if (positionals.length === 0 || missing.length > 0)
    throw new Error(`expected files or folders to mutate, such as src/core/key.ts, got ${missing.join(', ') || 'none'}`)
  const files = positionals.flatMap(sourcesOf)
  return { files, sample: readSample(values), tests: values.tests?.split(betweenGlobs) ?? testsFor(files) }
}

function sourcesOf(path: string): readonly string[] {
  if (!statSync(join(root, path)).isDirectory()) return [path]
  return globSync('**/*.ts', { cwd: join(root, path) })
    .filter((file) => !/\.(test|sql|lua)\.ts$/.test(file))
    .map((file) => join(path, file))
    .toSorted()
}

function readSample(given: { readonly sample?: string; readonly seed?: string }): Sample | undefined {
  if (given.sample === undefined) return undefined
  const [share, seed] = [Number(given.sample), Number(given.seed ?? randomInt(1_000_000))]
  if (!(share > 0 && share <= 1) || !Number.isSafeInteger(seed))
    throw new Error(`expected --sample above 0 and up to 1, and --seed whole, got ${given.sample} and ${seed}`)
  process.stdout.write(`sample of ${share}, seed ${seed} (again: --sample ${share} --seed ${seed})\n`)
  return { share, seed }
}

function configure({ files, sample }: Asked, report: string): object {
  return {
    mutate: files,
    testRunner: 'vitest',
    // It knows from the first run which tests reach a mutant, and need not look for the files that are related.
    vitest: { configFile: 'test/mutants/vitest.config.ts', related: false },
    plugins: ['@stryker-mutator/*', './test/mutants/messages.ts', './test/mutants/sample.ts'],
    ignorers: ['messages'],
    checkers: sample ? ['sample'] : [],
    // What a file makes once when it is loaded would need all tests again, in a new process. It is told from what tests reach because
    // load.ts loads all files before the first test. What runs at load and in tests is judged by those tests.
    ignoreStatic: true,
    coverageAnalysis: 'perTest',
    // Half of them begin with the sampling. Each compiles all tests for itself, so more of them than cores cost more than they gain.
    concurrency: 4,
    // Generous, since a mutant that runs too long counts as killed: a busy machine must not raise the score. A loop without an end is told
    // by its count, unless it is one of promises that go on after an error: of a store some in a hundred are.
    timeoutMS: 180_000,
    // Of a store: its whole contract, on a server that is started for it. Five minutes, the default, are too few beside anything else.
    dryRunTimeoutMinutes: 30,
    timeoutFactor: 2,
    reporters: ['json', 'progress-append-only'],
    jsonReporter: { fileName: report },
    // The copy that is mutated finds the servers where the tests look for them.
    ...(existsSync(join(root, '.servers')) && { buildCommand: `ln -s ${join(root, '.servers')} .servers` }),
    tempDirName: join(tmpdir(), `onceonly-mutants-${process.pid}`),
    ignorePatterns: [
      '*',
      '!src',
      '!src/**',
      '!test',
      '!test/**',
      '!docs',
      '!docs/**',
      'test/mutants/node_modules',
      'test/servers/packages',
      '!package.json',
    ],
    // It would be read with an API that TypeScript 7 no longer has. Vitest needs none.
    tsconfigFile: 'none.json',
    allowConsoleColors: false,
  }
}

async function main(): Promise<void> {
  const asked = readArguments()
  const { files, sample, tests } = asked
  const program = installStryker()
  mkdirSync(reports, { recursive: true })
  const [config, report] = [
    join(reports, `mutants-${process.pid}.config.json`),
    join(reports, `mutants-${process.pid}.json`),
  ]
  writeFileSync(config, JSON.stringify(configure(asked, report)))
  const endServers = await prepareServers()
  const env = {
    ...process.env,
    [testsVariable]: JSON.stringify(tests),
    [mutatedVariable]: JSON.stringify(files),
    ...(sample && { [sampleVariable]: JSON.stringify(sample) }),
  }
  const stryker = spawn(process.execPath, [program, 'run', config], { cwd: root, env, stdio: 'inherit' })
  const [status] = (await once(stryker, 'close')) as [number | null]
  await endServers?.()
  if (!existsSync(report)) throw new Error(`StrykerJS ended with ${status} and wrote no report`)
  const score = writeScore(JSON.parse(readFileSync(report, 'utf8')) as Report, sample)
  for (const file of files) {
    const found = score[file]
    if (!found) continue
    for (const { line, from, to } of found.survived)
      process.stdout.write(`  survived: ${from}  ->  ${to}\n    in ${line}\n`)
    const { killed, timedOut, equivalent, survived } = found
    process.stdout.write(
      `${file}: ${percent([found])} % (${killed} killed, ${timedOut} of them by time-out, ${survived.length} survived, ${equivalent} equivalent)\n`,
    )
  }
}

await main()
