// What each delivery comes to under each fault, as docs/messaging.md says it: the table there is what this test has produced.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { MessageDelivery } from '../../src/messages/inbox.ts'
import { type MessagesGround, startSqliteMessages } from './grounds.ts'
import { type Consumer, inboxSubject, message } from './inbox-subject.ts'

let ground: MessagesGround
beforeAll(async () => void (ground = await startSqliteMessages()))
afterAll(() => ground[Symbol.asyncDispose]())

const deliveries: readonly MessageDelivery[] = ['effectively-once', 'at-most-once', 'at-least-once']
const never = (): Promise<never> => new Promise(() => {})

/** The first delivery, with its fault. `isAcknowledged` is what the broker knows. */
type Fault = (consumer: Consumer, broker: { isAcknowledged: boolean }) => Promise<unknown>

const faults: Readonly<Record<string, Fault>> = {
  async 'the handler fails'({ inbox, effect }, broker) {
    const fail = async (tx: unknown): Promise<never> => {
      await effect(tx, 'm-1')
      throw new Error('the mail server is down')
    }
    await inbox.deliver(message('m-1'), fail, async () => void (broker.isAcknowledged = true))
  },
  async 'the process dies in its handler'({ inbox, effect, open }, broker) {
    await new Promise<void>((resolve) => {
      const hang = async (tx: unknown): Promise<never> => {
        await effect(tx, 'm-1')
        resolve()
        return never()
      }
      void inbox.deliver(message('m-1'), hang, async () => void (broker.isAcknowledged = true))
    })
    await open.die()
  },
  async 'the process dies when it is about to acknowledge'({ inbox, effect, open }) {
    await new Promise<void>((resolve) => {
      const die = (): Promise<never> => {
        resolve()
        return never()
      }
      void inbox.deliver(message('m-1'), (tx) => effect(tx, 'm-1'), die)
    })
    await open.die()
  },
  // The broker delivers it again all the same.
  async 'the acknowledgement is lost'({ inbox, effect }) {
    await inbox.deliver(
      message('m-1'),
      (tx) => effect(tx, 'm-1'),
      async () => {},
    )
  },
}

async function effectsOf(delivery: MessageDelivery, fault: Fault): Promise<number> {
  const subject = await inboxSubject(ground)
  try {
    const broker = { isAcknowledged: false }
    await fault(await subject.consumer({ delivery }), broker)
    const { inbox, effect } = await subject.consumer({ delivery })
    while (!broker.isAcknowledged) {
      const acknowledge = async (): Promise<void> => void (broker.isAcknowledged = true)
      await inbox.deliver(message('m-1'), (tx) => effect(tx, 'm-1'), acknowledge)
    }
    return (await ground.effects()).length
  } finally {
    await subject.close()
  }
}

test('docs/messaging.md says how many effects a message has, for each delivery under each fault', async () => {
  const rows = [
    `| effects, when | ${deliveries.map((delivery) => `\`${delivery}\``).join(' | ')} |`,
    '|---|---:|---:|---:|',
  ]
  for (const [name, fault] of Object.entries(faults)) {
    const counts: number[] = []
    for (const delivery of deliveries) counts.push(await effectsOf(delivery, fault))
    rows.push(`| ${name} | ${counts.join(' | ')} |`)
  }
  const page = readFileSync(join(import.meta.dirname, '../../docs/messaging.md'), 'utf8')
  expect(page).toContain(rows.join('\n'))
})
