// The cases of sessions on every server, and random calls against the model. Memory and SQLite are in src/sessions/sessions.test.ts.
import { test } from 'vitest'
import { freshSeed } from '../fresh-seed.ts'
import { needs } from '../servers/needs.ts'
import { runAgainstModel } from './against-model.ts'
import { testSessions } from './session-cases.ts'
import { serverGrounds } from './session-subject.ts'

const fresh = freshSeed('sessions against their model')

for (const { name, server, start } of serverGrounds) {
  needs(server, { ours: true }).describe(`sessions on ${name}`, () => {
    const trying = testSessions(start)

    const seeds = [1, 2, 3, ...(fresh === undefined ? [] : [fresh])]
    test.each(seeds)('random calls, seed %i: every answer and all that is stored is what the model has', (seed) =>
      trying((subject) => runAgainstModel(subject, seed, 60)),
    )
  })
}
