// The relay of the demo, a process: it publishes the rows of the outbox to the demo's queue. Killed between the two, it has published
// rows that it has not marked, and the next relay publishes them again.

import { createOutbox, createRelay } from '../../../messages/outbox.ts'
import { sqliteStore } from '../../../stores/sqlite.ts'
import { keeperOf } from './killed-at.ts'

const outbox = createOutbox({ store: sqliteStore({ path: process.argv[2]! }), source: 'shop' })
const keeper = keeperOf(() => outbox.wake())
const relay = createRelay({
  outbox,
  publisher: {
    name: 'the demo’s queue',
    async publish(messages) {
      await keeper.ask({ publish: messages })
      keeper.point('after-publish')
      return messages.map(() => undefined)
    },
  },
  // Few enough that a kill leaves rows behind it.
  batch: 10,
  // The next relay takes over when the lease is over, and people do not want to watch for 30 s.
  leaseMs: 1_000,
})
relay.start()
keeper.say({})
