// The dashboard's view of messages on every SQL server. SQLite is in src/gateway/admin/messages.test.ts.
import { afterAll, beforeAll, test } from 'vitest'
import { dashboardCases, expectNoMessages } from '../messages/dashboard-cases.ts'
import { dashboardSubject } from '../messages/dashboard-subject.ts'
import { grounds, type MessagesGround } from '../messages/grounds.ts'
import { needs } from '../servers/needs.ts'

for (const { name, server, start } of grounds) {
  if (server === undefined) continue
  needs(server, { ours: true }).describe(`messages on ${name}`, () => {
    let ground: MessagesGround
    beforeAll(async () => {
      ground = await start()
    })
    afterAll(() => ground[Symbol.asyncDispose]())
    test('without the tables the view says so, and nothing is logged', async () => {
      const empty = await start()
      const open = await empty.openStore()
      await expectNoMessages(open.store, 'onceonly migrate --messages')
      await open[Symbol.asyncDispose]()
      await empty[Symbol.asyncDispose]()
    })
    for (const [what, check] of Object.entries(dashboardCases)) {
      test(what, async () => {
        await using subject = await dashboardSubject(ground)
        await check(subject)
      })
    }
  })
}
