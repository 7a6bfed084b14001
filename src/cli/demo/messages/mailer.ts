// A mailer of the demo, a process: it writes one row for each mail, through an inbox with the delivery that it is given. It can be killed
// with the mail written and not committed, and before the acknowledgement.

import { createOnce } from '../../../core/once.ts'
import { createInbox } from '../../../messages/inbox.ts'
import type { MessageDelivery } from '../../../messages/inbox.ts'
import { sqliteStore } from '../../../stores/sqlite.ts'
import { keeperOf } from './killed-at.ts'
import type { Copy } from './queue.ts'

const [path, delivery] = process.argv.slice(2) as [string, MessageDelivery]
// On a busy machine the other processes keep the file for long. A mail that gives up for that is not the fault to be seen.
const once = createOnce({ store: sqliteStore({ path, lockWaitMs: 30_000 }), scope: 'shop' })
const inbox = createInbox(once, { consumer: delivery, delivery })

async function deliver({ number, message, delivery: time }: Copy): Promise<void> {
  await inbox.deliver(
    { ...message, delivery: time, raw: undefined },
    (tx) => {
      tx.prepare('insert into mails values (?, ?)').run(delivery, message.key!)
      keeper.point('before-commit')
    },
    async () => {
      keeper.point('before-acknowledgement')
      await keeper.ask({ acknowledge: number })
    },
  )
  // What is not acknowledged by now, the queue delivers again.
  keeper.say({ next: true })
}

const keeper = keeperOf((told) => void deliver((told as { deliver: Copy }).deliver))
keeper.say({})
