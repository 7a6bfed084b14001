// Orders leave through an outbox and Kafka, and arrive as mails through an inbox, while relay and mailer are killed again and again:
// one mail per order, and for each customer in the order in which the orders were placed.
// DATABASE_URL=postgres://… KAFKA_BROKER=host:port node examples/order-events/story.ts [ORDERS] [KILLS]

import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once as heard } from 'node:events'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Kafka, logLevel } from 'kafkajs'
import pg from 'pg'

const [orders = 60, kills = 6] = process.argv.slice(2).map(Number)
const admin = new Kafka({ brokers: [process.env['KAFKA_BROKER']!], logLevel: logLevel.NOTHING }).admin()
await admin.connect()
await admin.createTopics({ topics: [{ topic: 'orders', numPartitions: 3 }], waitForLeaders: true })
await admin.disconnect()
const pool = new pg.Pool({ connectionString: process.env['DATABASE_URL'] })

function start(program: string, ...args: string[]): ChildProcess {
  const file = join(import.meta.dirname, `${program}.ts`)
  return spawn(process.execPath, [file, ...args], { stdio: ['ignore', 'ignore', 'inherit'] })
}

const running = new Map<string, ChildProcess>()
const restart = (program: string): void => void running.set(program, start(program))

// What is there already is not ours: the story may be told twice on one database.
const mailsOf = async (): Promise<{ order_id: string; customer: string }[]> =>
  (await pool.query('select order_id, customer from mails order by number').catch(() => ({ rows: [] }))).rows as never

const [, shopEnded] = [restart('mailer'), heard(start('shop', String(orders)), 'exit')]
await shopEnded
restart('relay')
for (let kill = 0; kill < kills; kill++) {
  const program = kill % 2 === 0 ? 'relay' : 'mailer'
  await sleep(700)
  running.get(program)!.kill('SIGKILL')
  restart(program)
}
let mails = await mailsOf()
for (let waited = 0; waited < 1_200 && new Set(mails.map((mail) => mail.order_id)).size < orders; waited++) {
  await sleep(100)
  mails = await mailsOf()
}
for (const child of running.values()) {
  child.kill('SIGTERM')
  await heard(child, 'exit')
}
mails = await mailsOf()
const inOrder = [0, 1, 2, 3, 4].every((customer) => {
  const own = mails
    .filter((mail) => mail.customer === `customer-${customer}`)
    .map((mail) => Number(mail.order_id.slice(6)))
  return own.every((number, index) => index === 0 || number > own[index - 1]!)
})
console.log(JSON.stringify({ orders, kills, mails: mails.length, inOrder }))
await pool.end()
