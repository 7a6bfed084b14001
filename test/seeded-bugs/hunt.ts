// Runs the assertion that must notice a bug, in a copy of the project, in a process of its own: a bug may hang or crash it.
// Caught means that the named assertion failed, not that anything did.

import { spawn } from 'node:child_process'
import { existsSync, readFileSync, realpathSync, rmSync } from 'node:fs'
import { join, relative } from 'node:path'
import type { CaughtBy, SeededBug } from './bug.ts'
import type { Copy } from './copy.ts'
import type { Found } from './simulate.ts'

export type Hunted =
  | { readonly is: 'caught'; readonly after: string }
  | { readonly is: 'missed'; readonly why: string }
  /** The test needs a server that this machine does not have. */
  | { readonly is: 'skipped'; readonly why: string }

// The slowest row takes half a minute (a server that starts on a busy machine); after this something hangs.
const huntMsMax = 180_000
/** A bug that makes a test hang is caught by that, and soon; every test that is named here takes a second on its own. */
const testMsMax = 15_000

export async function hunt(copy: Copy, bug: SeededBug): Promise<Hunted> {
  let mend = (): void => {}
  try {
    mend = copy.seed(bug)
    return await check(copy, bug.caughtBy)
  } catch (error) {
    return { is: 'missed', why: String(error) }
  } finally {
    mend()
  }
}

function check(copy: Copy, caughtBy: CaughtBy): Promise<Hunted> {
  return 'simulation' in caughtBy
    ? simulate(copy, caughtBy.simulation, caughtBy.schedulesMax)
    : runNamedTest(copy, caughtBy.file, caughtBy.test)
}

export async function simulate(copy: Copy, assertion: string, schedulesMax: number): Promise<Hunted> {
  const program = join(copy.path, 'test/seeded-bugs/simulate.ts')
  const { output, errors } = await run(copy, [program, assertion, String(schedulesMax)])
  if (!output.startsWith('{')) return { is: 'missed', why: `the simulation broke down: ${lastLine(errors)}` }
  const found = JSON.parse(output) as Found
  if (found.after !== undefined)
    return { is: 'caught', after: `${found.after} schedule${found.after === 1 ? '' : 's'}` }
  const others = found.alsoBroken.length > 0 ? `, though it broke ${found.alsoBroken.join(', ')}` : ''
  return { is: 'missed', why: `not found in ${schedulesMax} schedules${others}` }
}

async function runNamedTest(copy: Copy, file: string, name: string): Promise<Hunted> {
  const { tests, said } = await runTests(copy, [file], [name])
  const named = tests.filter(({ title }) => title.includes(name))
  const failed = named.find(({ status }) => status === 'failed')
  if (failed) return { is: 'caught', after: firstLine(failed.message) }
  if (named.length === 0) return { is: 'missed', why: `the test was not run: ${said}` }
  if (named.some(({ status }) => status === 'passed')) return { is: 'missed', why: 'the test passed' }
  return { is: 'skipped', why: 'the test was skipped, as its server is not here' }
}

export interface RunTest {
  /** From the root of the project. */
  readonly file: string
  readonly title: string
  readonly status: string
  readonly message: string
}

interface Report {
  readonly testResults: readonly {
    readonly name: string
    readonly message: string
    readonly assertionResults: readonly {
      /** With the names of the groups it stands in. */
      readonly fullName: string
      readonly status: string
      readonly failureMessages?: readonly string[]
    }[]
  }[]
}

/** Runs the tests of these names in these files. */
export async function runTests(
  copy: Copy,
  files: readonly string[],
  names: readonly string[],
  limitMs: number = huntMsMax,
): Promise<{ readonly tests: readonly RunTest[]; readonly said: string }> {
  const report = join(copy.path, 'report.json')
  rmSync(report, { force: true })
  const vitest = join(copy.path, 'node_modules/vitest/vitest.mjs')
  const pattern = names.map((name) => name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')).join('|')
  const flags = [`--testTimeout=${testMsMax}`, '--reporter=json', `--outputFile=${report}`, '-t', pattern]
  const { output, errors } = await run(copy, [vitest, 'run', ...files, ...flags], limitMs)
  const said = lastLine(errors) || lastLine(output)
  if (!existsSync(report)) return { tests: [], said }
  const { testResults } = JSON.parse(readFileSync(report, 'utf8')) as Report
  const broken = testResults.find(({ assertionResults }) => assertionResults.length === 0)
  const tests = testResults.flatMap(({ name: file, assertionResults }) =>
    assertionResults
      .filter(({ fullName }) => names.some((name) => fullName.includes(name)))
      .map(({ fullName, status, failureMessages = [] }) => ({
        file: relative(realpathSync(copy.path), realpathSync(file)),
        title: fullName,
        status,
        message: failureMessages.join('\n'),
      })),
  )
  return { tests, said: broken ? firstLine(broken.message) : said }
}

interface Ran {
  readonly output: string
  readonly errors: string
}

/** In a process group of its own, so that whatever hangs goes with all that it has started. */
function run(copy: Copy, args: readonly string[], limitMs: number = huntMsMax): Promise<Ran> {
  const env = { ...process.env, NODE_NO_WARNINGS: '1' }
  const child = spawn(process.execPath, args, {
    cwd: copy.path,
    env,
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let [output, errors] = ['', '']
  child.stdout.on('data', (chunk: Buffer) => (output += chunk.toString()))
  child.stderr.on('data', (chunk: Buffer) => (errors += chunk.toString()))
  const timer = setTimeout(() => {
    errors += `\nit was ended after ${limitMs} ms`
    process.kill(-child.pid!, 'SIGKILL')
  }, limitMs)
  return new Promise((resolve, reject) => {
    child.on('error', reject)
    child.on('close', () => {
      clearTimeout(timer)
      resolve({ output, errors })
    })
  })
}

const colours = /\u001b\[[0-9;]*m/g // oxlint-disable-line no-control-regex

function firstLine(text: string): string {
  return (text.replaceAll(colours, '').split('\n', 1)[0] ?? '').slice(0, 160)
}

function lastLine(text: string): string {
  return (text.replaceAll(colours, '').trim().split('\n').at(-1) ?? '').slice(0, 160)
}
