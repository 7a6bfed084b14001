// The messages of the demo: a shop whose orders leave through an outbox, a relay, a queue, and three mailers, one for each delivery that
// an inbox offers. Relay and mailers are processes and are really killed. The counts are read from the tables and from the queue.

import { DatabaseSync } from 'node:sqlite'
import { systemClock } from '../../core/clock.ts'
import { createOnce } from '../../core/once.ts'
import { createInbox } from '../../messages/inbox.ts'
import type { MessageDelivery } from '../../messages/inbox.ts'
import { createOutbox } from '../../messages/outbox.ts'
import type { Outgoing } from '../../messages/outbox.ts'
import { sqliteStore } from '../../stores/sqlite.ts'
import { killable } from './messages/killable.ts'
import type { Killable, KillableState } from './messages/killable.ts'
import { createQueue } from './messages/queue.ts'
import type { Copy, Queue, QueueReader } from './messages/queue.ts'

const deliveries = ['at-most-once', 'at-least-once', 'effectively-once'] as const

// Longer than a mail takes on a busy machine, and short enough to watch.
const visibilityMs = 2_000

// A person who orders more wants to see a queue that is full, and that is not what the page shows.
const ordersMax = 2_000

/** Where a process can be killed, and what has happened by then. */
const points = {
  'after-publish': 'after it had published a batch, before it marked it sent',
  'before-commit': 'with its mail written, before the commit',
  'before-acknowledgement': 'before it acknowledged its message',
} as const

export type KillPoint = keyof typeof points

export interface MailerCounts {
  readonly delivery: MessageDelivery
  readonly state: KillableState
  readonly deliveries: number
  /** Deliveries of a copy that was not acknowledged in time. */
  readonly redeliveries: number
  /** Copies in the queue. */
  readonly waiting: number
  readonly mails: number
  /** Orders with one mail, with more than one, and those that this mailer is done with and has no mail of. */
  readonly once: number
  readonly more: number
  readonly never: number
  /** Mails of the order that was asked for. */
  readonly ofOrder: number
}

export interface MessageCounts {
  readonly orders: number
  /** Rows of the outbox that are not marked sent. */
  readonly rowsWaiting: number
  readonly published: number
  readonly publishedAgain: number
  readonly relay: KillableState
  readonly mailers: readonly MailerCounts[]
  readonly visibilityMs: number
  /** All run, and nothing is under way. */
  readonly isSettled: boolean
  /** What happened last, the newest first. */
  readonly story: readonly { readonly atMs: number; readonly what: string }[]
}

export interface DemoMessages {
  /** Starts what does not run. */
  start(): Promise<void>
  /** Returns the ids of the orders. */
  place(count: number): Promise<readonly string[]>
  killAt(point: string): void
  deliverAgain(order?: string): void
  counts(order?: string): Promise<MessageCounts>
  close(): Promise<void>
}

interface Mailer {
  readonly delivery: MessageDelivery
  readonly reader: QueueReader
  readonly process: Killable
}

/** Nothing runs before `start`: those who look at the payments alone need no further processes. */
export async function openMessages(path: string): Promise<DemoMessages> {
  const story: { atMs: number; what: string }[] = []
  const tell = (what: string): void => {
    story.unshift({ atMs: systemClock.now(), what })
    story.splice(50)
  }
  const queue = createQueue(visibilityMs)
  const relay = startableRelay(path, queue, tell)
  const mailers = deliveries.map((delivery) => startableMailer(path, delivery, queue, tell))
  const processes = [relay, ...mailers.map(({ process }) => process)]
  // A relay of this process would know of an order by itself. Another one looks once per second.
  const shop = await openShop(path, () => relay.tell({ wake: true }))
  return {
    start: async () => void (await Promise.all(processes.map((process) => process.start()))),
    async place(count) {
      const ids: string[] = []
      const more = Math.min(count, ordersMax - shop.orders)
      for (let placed = 0; placed < more; placed++) ids.push(await shop.place())
      tell(ids.length === 1 ? '1 order placed' : `${ids.length} orders placed`)
      return ids
    },
    killAt(point) {
      if (point === 'after-publish') relay.killAt(point)
      else if (point in points) mailers.forEach(({ process }) => process.killAt(point))
    },
    deliverAgain(order) {
      queue.deliverAgain(order)
      tell(order ? `${order} is delivered again` : 'every message is delivered again')
    },
    async counts(order) {
      const rowsWaiting = await shop.rowsWaiting()
      const isIdle = mailers.every(({ reader }) => reader.underWay().size === 0)
      const isRunning = processes.every(({ state }) => state === 'running')
      return {
        orders: shop.orders,
        rowsWaiting,
        published: queue.published,
        publishedAgain: queue.publishedAgain,
        relay: relay.state,
        mailers: mailers.map((mailer) => countsOf(mailer, queue, shop.mailsOf(mailer.delivery), order)),
        visibilityMs,
        isSettled: rowsWaiting === 0 && isRunning && isIdle,
        story,
      }
    },
    async close() {
      mailers.forEach(({ reader }) => reader.leave())
      await Promise.all(processes.map((process) => process.close()))
      await shop.close()
    },
  }
}

interface Shop {
  readonly orders: number
  /** Returns the id of the order. Its event commits with it. */
  place(): Promise<string>
  rowsWaiting(): Promise<number>
  /** How many mails each order has. */
  mailsOf(mailer: string): ReadonlyMap<string, number>
  close(): Promise<void>
}

async function openShop(path: string, onPlaced: () => void): Promise<Shop> {
  const store = sqliteStore({ path })
  const once = createOnce({ store, scope: 'shop' })
  const outbox = createOutbox({ store, source: 'shop' })
  // For the tables of shop and mailers, and to count: SQLite lets everyone read.
  const database = new DatabaseSync(path, { timeout: 5_000 })
  await store.migrate()
  await outbox.migrate()
  await createInbox(once, { consumer: 'mailer' }).migrate()
  // Mails have no key and no constraint: nothing but the inbox keeps the second one away.
  database.exec('create table orders (id text); create table mails (mailer text, order_id text)')
  const mails = database.prepare('select order_id, count(*) as mails from mails where mailer = ? group by order_id')
  let orders = 0
  return {
    get orders() {
      return orders
    },
    async place() {
      const id = `order-${(orders += 1)}`
      await once.transaction(id, async (tx) => {
        tx.prepare('insert into orders values (?)').run(id)
        await outbox.add(tx, { topic: 'orders', key: id, type: 'order.placed', data: { id } })
      })
      onPlaced()
      return id
    },
    async rowsWaiting() {
      const { unsent, waiting } = await outbox.status()
      return unsent + waiting
    },
    mailsOf: (mailer) => new Map(mails.all(mailer).map((row) => [String(row['order_id']), Number(row['mails'])])),
    async close() {
      database.close()
      await once.close()
      store.close()
    },
  }
}

type Tell = (what: string) => void

function startableRelay(path: string, queue: Queue, tell: Tell): Killable {
  return killable({
    program: 'relay',
    args: [path],
    onSaid: (said) => queue.publish((said as { publish: readonly Outgoing[] }).publish),
    onStarted: () => tell('the relay runs'),
    onKilled: (point) => tell(`the relay was killed ${words(point)}`),
  })
}

function startableMailer(path: string, delivery: MessageDelivery, queue: Queue, tell: Tell): Mailer {
  const reader = queue.reader()
  const name = `the ${delivery} mailer`
  const process: Killable = killable({
    program: 'mailer',
    args: [path, delivery],
    onSaid(said) {
      const { acknowledge, next } = said as { acknowledge?: number; next?: true }
      if (acknowledge !== undefined) reader.acknowledge(acknowledge)
      if (next) reader.next()
    },
    onStarted() {
      reader.read((copy: Copy) => process.tell({ deliver: copy }))
      tell(`${name} runs`)
    },
    onKilled(point) {
      reader.leave()
      tell(`${name} was killed ${words(point)}`)
    },
  })
  return { delivery, reader, process }
}

const words = (point: string | undefined): string => points[point as KillPoint] ?? 'without being asked'

function countsOf(
  { delivery, reader, process }: Mailer,
  queue: Queue,
  mails: ReadonlyMap<string, number>,
  order: string | undefined,
): MailerCounts {
  const counts = [...mails.values()]
  const underWay = reader.underWay()
  return {
    delivery,
    state: process.state,
    deliveries: reader.deliveries,
    redeliveries: reader.redeliveries,
    waiting: reader.waiting,
    mails: counts.reduce((sum, count) => sum + count, 0),
    once: counts.filter((count) => count === 1).length,
    more: counts.filter((count) => count > 1).length,
    never: queue.messages.filter(({ id, key }) => !mails.has(key!) && !underWay.has(id)).length,
    ofOrder: mails.get(order ?? '') ?? 0,
  }
}
