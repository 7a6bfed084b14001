// The process of standing-tests.ts. It stands in the copy, so that the tests are those of the source with the bug in it.

import { join } from 'node:path'
import { createVitest } from 'vitest/node'
import type { TestCase, TestModule } from 'vitest/node'

export interface TestQuestion {
  /** From the root of the project, like all files here. */
  readonly file: string
  /** Parts of the names of the tests, with those of the groups they stand in. */
  readonly names: readonly string[]
  /** The file that was changed since the last question, if one was. */
  readonly changed?: string
}

export interface RunTest {
  readonly file: string
  readonly title: string
  readonly status: 'passed' | 'failed' | 'skipped' | 'pending'
  readonly message: string
}

export interface TestAnswer {
  readonly tests: readonly RunTest[]
  /** Why there are none. */
  readonly said: string
}

/**
 * A test that a bug makes hang has named no assertion, and is not waited for any longer. It has room for a wait in vain (12 s, poll.ts),
 * which is an assertion, and for what comes before it on a busy machine.
 */
const testMsMax = 90_000

/** A server starts in a third of it on a busy machine; a bug that makes an afterEach hang is not waited for any longer. */
const hookMsMax = 90_000

const root = process.cwd()
const timeouts = { testTimeout: testMsMax, hookTimeout: hookMsMax }
const vitest = await createVitest('test', { root, watch: false, reporters: [{}], ...timeouts })
await vitest.standalone()

function forget(file: string | undefined): void {
  if (file !== undefined) vitest.invalidateFile(join(root, file))
}

function testOf(file: string, test: TestCase): RunTest {
  const { state, errors = [] } = test.result()
  const title = test.fullName.replaceAll(' > ', ' ')
  return { file, title, status: state, message: errors.map(({ message }) => message).join('\n') }
}

/** vitest puts " > " between the names of groups and tests; in the table it is a blank. */
function patternOf(name: string): string {
  return name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&').replaceAll(' ', ' (?:> )?')
}

async function answer({ file, names, changed }: TestQuestion): Promise<TestAnswer> {
  forget(changed)
  vitest.setGlobalTestNamePattern(new RegExp(names.map(patternOf).join('|')))
  const { testModules, unhandledErrors } = await vitest.runTestSpecifications(
    await vitest.globTestSpecifications([file]),
  )
  // It will have been mended by the time of the next question.
  forget(changed)
  // Those of earlier questions are still there.
  const asked = testModules.filter(({ relativeModuleId }: TestModule) => relativeModuleId === file)
  const tests = asked.flatMap((module) => [...module.children.allTests()].map((test) => testOf(file, test)))
  const errors = [...asked.flatMap((module) => module.errors()), ...(unhandledErrors as readonly Error[])]
  return {
    tests: tests.filter(({ title }) => names.some((name) => title.includes(name))),
    said: errors.map(({ message }) => message).join('\n'),
  }
}

process.on('message', (question: TestQuestion) => {
  answer(question).then(
    (answered) => process.send!(answered),
    (error: unknown) => process.send!({ tests: [], said: String(error) } satisfies TestAnswer),
  )
})
// Whoever asked is gone: nothing of this stays behind.
process.on('disconnect', () => process.kill(-process.pid, 'SIGKILL'))
