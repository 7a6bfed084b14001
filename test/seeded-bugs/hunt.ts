// Runs the assertion that must notice a bug, in a copy of the project, in a separate process: a bug may hang or crash it. Caught
// means that the named assertion failed, not that anything did.

import { spawn } from 'node:child_process'
import { join } from 'node:path'
import type { CaughtBy, Needs, SeededBug, Simulated } from './bug.ts'
import type { Copy } from './copy.ts'
import type { Found } from './simulate.ts'
import { standTests } from './standing-tests.ts'
import type { RunTest, TestAnswer } from './standing-tests/process.ts'

export type Hunted =
  | { readonly is: 'caught'; readonly after: string }
  | { readonly is: 'missed'; readonly why: string }
  /** The test needs a server that this machine does not have. */
  | { readonly is: 'skipped'; readonly why: string }

export interface Hunter {
  /** Puts the bug in, and says whether its assertion noticed. */
  hunt(bug: SeededBug): Promise<Hunted>
  /** Tests of a file on the source as it is. */
  runTests(file: string, names: readonly string[]): Promise<readonly RunTest[]>
  simulate(what: Simulated, assertion: string, schedulesMax: number): Promise<Hunted>
  close(): void
}

// The slowest row takes half a minute (a server that starts on a busy machine). After this something hangs.
const huntMsMax = 180_000

export function hunterIn(copy: Copy): Hunter {
  const tests = standTests(copy, huntMsMax)
  const check = async (bug: SeededBug, caughtBy: CaughtBy): Promise<Hunted> => {
    if ('simulation' in caughtBy) return simulate(copy, caughtBy.of, caughtBy.simulation, caughtBy.schedulesMax)
    const { file, test, needs } = caughtBy
    return judge(await tests.ask({ file, names: [test], changed: bug.file }), needs)
  }
  return {
    async hunt(bug) {
      let mend = (): void => {}
      try {
        mend = copy.seed(bug)
        return await check(bug, bug.caughtBy)
      } catch (error) {
        return { is: 'missed', why: String(error) }
      } finally {
        mend()
      }
    },
    runTests: async (file, names) => (await tests.ask({ file, names })).tests,
    simulate: (...asked) => simulate(copy, ...asked),
    close: () => tests.close(),
  }
}

const timedOut = /^(Error: )?(Test|Hook) timed out in \d+ms/

export function judge({ tests, said }: TestAnswer, needs: Needs | undefined): Hunted {
  const failed = tests.find(({ status }) => status === 'failed')
  // A test that runs out of time has asserted nothing, and a slow machine would catch every bug.
  if (failed && timedOut.test(failed.message))
    return { is: 'missed', why: `no assertion: ${firstLine(failed.message)}` }
  if (failed) return { is: 'caught', after: firstLine(failed.message) }
  if (tests.length === 0) return { is: 'missed', why: `the test was not run: ${firstLine(said)}` }
  if (tests.some(({ status }) => status === 'passed')) return { is: 'missed', why: 'the test passed' }
  return { is: needs ? 'skipped' : 'missed', why: 'the test was skipped, as its server is not here' }
}

async function simulate(copy: Copy, what: string, assertion: string, schedulesMax: number): Promise<Hunted> {
  const program = join(copy.path, 'test/seeded-bugs/simulate.ts')
  const { output, errors } = await run(copy, [program, what, assertion, String(schedulesMax)])
  if (!output.startsWith('{')) return { is: 'missed', why: `the simulation broke down: ${lastLine(errors)}` }
  const found = JSON.parse(output) as Found
  if (found.after !== undefined)
    return { is: 'caught', after: `${found.after} schedule${found.after === 1 ? '' : 's'}` }
  const others = found.alsoBroken.length > 0 ? `, though it broke ${found.alsoBroken.join(', ')}` : ''
  return { is: 'missed', why: `not found in ${schedulesMax} schedules${others}` }
}

interface Ran {
  readonly output: string
  readonly errors: string
}

/** In a separate process group, so that whatever hangs goes with all that it has started. */
function run(copy: Copy, args: readonly string[]): Promise<Ran> {
  // The types are taken out of the source once, and not by every process anew.
  const env = { ...process.env, NODE_NO_WARNINGS: '1', NODE_COMPILE_CACHE: join(copy.path, 'compiled') }
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
    errors += `\nit was ended after ${huntMsMax} ms`
    process.kill(-child.pid!, 'SIGKILL')
  }, huntMsMax)
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
  return (text.replaceAll(colours, '').trim().split('\n', 1)[0] ?? '').slice(0, 160)
}

function lastLine(text: string): string {
  return (text.replaceAll(colours, '').trim().split('\n').at(-1) ?? '').slice(0, 160)
}
