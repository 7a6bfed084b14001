// The storm on every SQL database, with seeds that no run has seen. Replay: ONCEONLY_SEED=… npx vitest run test/messages/inbox-storm.test.ts
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { freshSeed } from '../fresh-seed.ts'
import { needs } from '../servers/needs.ts'
import { grounds, type MessagesGround } from './grounds.ts'
import { storm } from './inbox-storm.ts'
import { inboxSubject } from './inbox-subject.ts'

const fresh = freshSeed('a storm on an inbox')
const seeds = [1, 2, 3, ...(fresh === undefined ? [] : [fresh, fresh + 1, fresh + 2])]
const options = { partitions: 4, messages: 60, consumers: 4 }

for (const { name, server, start } of grounds) {
  const suite = server === undefined ? describe : needs(server, { ours: true }).describe
  suite(`a storm on ${name}`, () => {
    let ground: MessagesGround
    beforeAll(async () => {
      ground = await start()
    })
    afterAll(() => ground[Symbol.asyncDispose]())

    for (const [round, seed] of seeds.entries()) {
      test(`round ${round}: every message has one effect, in the order of its partition`, async () => {
        const subject = await inboxSubject(ground)
        try {
          const counts = await storm(subject, { seed, ...options })
          const effects = await ground.effects()
          const said = `seed ${seed}: ${JSON.stringify(counts)}`
          for (let partition = 0; partition < options.partitions; partition++) {
            const own = effects.filter((id) => id.startsWith(`${partition}-`))
            expect(own, said).toEqual(
              Array.from(
                { length: options.messages },
                (_value, index) => `${partition}-${String(index).padStart(4, '0')}`,
              ),
            )
          }
          // A storm that met nothing proves nothing.
          for (const what of ['duplicate', 'failed', 'deaths', 'rewinds'] as const)
            expect(counts[what], said).toBeGreaterThan(0)
        } finally {
          await subject.close()
        }
      })
    }
  })
}
