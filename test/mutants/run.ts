// npm run mutants -- FILE… [--tests GLOB,GLOB]
//
// Changes one thing at a time in the named files (StrykerJS), runs the tests that reach it, and counts the changes that no test
// notices. The tests are those that need no server (vitest.config.ts). What came of it goes to test/mutants/score.json, and from
// there to docs/guarantees.md (npm run guarantees). Minutes for each file: an audit, and no part of npm test.

import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { installStryker } from './install.ts'
import { percent, writeScore } from './score.ts'
import type { Report } from './score.ts'

const root = join(import.meta.dirname, '../..')
const reports = join(root, 'reports')

function readFiles(): { readonly files: readonly string[]; readonly tests: string | undefined } {
  const { values, positionals } = parseArgs({ options: { tests: { type: 'string' } }, allowPositionals: true })
  const missing = positionals.filter((file) => !existsSync(join(root, file)))
  if (positionals.length === 0 || missing.length > 0)
    throw new Error(`expected files to mutate, such as src/core/key.ts, got ${missing.join(', ') || 'none'}`)
  return { files: positionals, tests: values.tests }
}

function configure(files: readonly string[], report: string): object {
  return {
    mutate: files,
    testRunner: 'vitest',
    vitest: { configFile: 'test/mutants/vitest.config.ts' },
    plugins: ['@stryker-mutator/*', './test/mutants/messages.ts'],
    ignorers: ['messages'],
    // What a file makes once when it is loaded would need all tests again, in a new process.
    ignoreStatic: true,
    coverageAnalysis: 'perTest',
    concurrency: 1,
    // Generous, since a mutant that runs too long counts as killed: a busy machine must not raise the score.
    timeoutMS: 15_000,
    timeoutFactor: 3,
    reporters: ['json'],
    jsonReporter: { fileName: report },
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

function main(): void {
  const { files, tests } = readFiles()
  const program = installStryker()
  mkdirSync(reports, { recursive: true })
  const [config, report] = [
    join(reports, `mutants-${process.pid}.config.json`),
    join(reports, `mutants-${process.pid}.json`),
  ]
  writeFileSync(config, JSON.stringify(configure(files, report)))
  const env = { ...process.env, ...(tests !== undefined && { ONCEONLY_MUTANT_TESTS: tests }) }
  const { status } = spawnSync(process.execPath, [program, 'run', config], { cwd: root, env, stdio: 'inherit' })
  if (!existsSync(report)) throw new Error(`StrykerJS ended with ${status} and wrote no report`)
  const score = writeScore(JSON.parse(readFileSync(report, 'utf8')) as Report)
  for (const file of files) {
    const found = score[file]
    if (!found) continue
    for (const { line, from, to } of found.survived)
      process.stdout.write(`  survived: ${from}  ->  ${to}\n    in ${line}\n`)
    const { killed, equivalent, survived } = found
    process.stdout.write(
      `${file}: ${percent([found])} % (${killed} killed, ${survived.length} survived, ${equivalent} equivalent)\n`,
    )
  }
}

main()
