// A vitest that stays, in a separate process: to start one costs five times what a test does. It is asked for named tests and
// returns what became of each. Whatever hangs or breaks it is ended with all that it has started, and the next question is put to
// a new one.

import { fork } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { join } from 'node:path'
import type { Copy } from './copy.ts'
import type { TestAnswer, TestQuestion } from './standing-tests/process.ts'

export interface StandingTests {
  ask(question: TestQuestion): Promise<TestAnswer>
  close(): void
}

export function standTests({ path }: Copy, limitMs: number): StandingTests {
  let child: ChildProcess | undefined
  const start = (): ChildProcess => {
    const env = { ...process.env, NODE_NO_WARNINGS: '1' }
    // In a separate process group, which can be ended as a whole.
    const program = join(path, 'test/seeded-bugs/standing-tests/process.ts')
    return fork(program, { cwd: path, env, detached: true, silent: true, execArgv: [] })
  }
  const close = (): void => {
    if (child?.pid !== undefined) endGroup(child.pid)
    child = undefined
  }
  const askOnce = async (question: TestQuestion): Promise<TestAnswer> => {
    child ??= start()
    const answer = await answerOf(child, question, limitMs)
    if (answer) return answer
    close()
    return { tests: [], said: `it was ended, as it had no answer within ${limitMs} ms` }
  }
  return {
    close,
    async ask(question) {
      const answer = await askOnce(question)
      // vitest itself can get stuck when it starts its workers on a machine that is very busy.
      return answer.tests.length > 0 ? answer : askOnce(question)
    },
  }
}

/** Undefined when there is none: it has ended, or takes too long. */
function answerOf(child: ChildProcess, question: TestQuestion, limitMs: number): Promise<TestAnswer | undefined> {
  const { promise, resolve } = Promise.withResolvers<TestAnswer | undefined>()
  const timer = setTimeout(resolve, limitMs, undefined)
  const onMessage = (answer: unknown): void => resolve(answer as TestAnswer)
  const onExit = (): void => resolve(undefined)
  child.on('message', onMessage).on('exit', onExit)
  // What it says is not asked for, and must not fill the pipe.
  child.stdout?.resume()
  child.stderr?.resume()
  child.send(question)
  return promise.finally(() => {
    clearTimeout(timer)
    child.off('message', onMessage).off('exit', onExit)
  })
}

function endGroup(pid: number): void {
  try {
    process.kill(-pid, 'SIGKILL')
  } catch {
    // It has ended by itself, and took its group along.
  }
}
