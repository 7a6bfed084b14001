// A checkout to Earth and one to the Moon, killed at every place in turn and asked for again: shipped and paid for, or refunded and
// back in stock, and nothing twice. And one that is cancelled after the kill, when nobody knows whether the charge took effect.
// DATABASE_URL=postgres://… node examples/checkout-saga/story.ts

import { spawn } from 'node:child_process'
import { once as heard } from 'node:events'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import pg from 'pg'
import { postgresStore } from 'onceonly/postgres'

const places = {
  earth: ['reserve, before the commit', 'charge, before', 'charge, after', 'ship, before', 'ship, after'],
  moon: [
    'charge, before',
    'charge, after',
    'ship, before',
    'refund, before',
    'refund, after',
    'release, before the commit',
  ],
  cancelled: ['charge, before', 'charge, after', 'ship, before'],
}

const pool = new pg.Pool({ connectionString: process.env['DATABASE_URL'] })
await postgresStore({ pool }).migrate()
await pool.query('create table stock (left_over integer)')
await pool.query('insert into stock values (100)')
const outside = spawn(process.execPath, [join(import.meta.dirname, 'outside.ts')], {
  stdio: ['ignore', 'pipe', 'inherit'],
})
process.once('SIGTERM', () => {
  outside.kill()
  process.exit(1)
})
const [port] = (await heard(outside.stdout, 'data')) as [Buffer]
const outsideUrl = `http://127.0.0.1:${port.toString().trim()}`

interface Asked {
  readonly killAt?: string
  readonly how?: 'run' | 'cancel'
}

async function checkout(order: string, to: string, { killAt, how = 'run' }: Asked = {}): Promise<string> {
  const child = spawn(process.execPath, [join(import.meta.dirname, 'checkout.ts'), order, to, how], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, OUTSIDE_URL: outsideUrl, ...(killAt && { KILL_AT: killAt }) },
  })
  const [said, [, signal]] = await Promise.all([text(child.stdout), heard(child, 'close')])
  return signal === 'SIGKILL' ? 'killed' : said.trim().replace(/ [0-9a-f-]{36}$/, '')
}

async function stock(): Promise<number> {
  return (await pool.query<{ left_over: number }>('select left_over from stock')).rows[0]!.left_over
}

for (const [to, killedAt] of Object.entries(places)) {
  for (const [index, place] of killedAt.entries()) {
    const order = `${to}-${index + 1}`
    const before = await stock()
    const how = to === 'cancelled' ? 'cancel' : 'run'
    const told = [await checkout(order, to, { killAt: place })]
    for (let asked = 0; asked < 2; asked++) told.push(await checkout(order, to, { how }))
    const done = (await (await fetch(outsideUrl)).json()) as { what: string; order: string }[]
    const effects = done.filter((each) => each.order === order).map((each) => each.what)
    const taken = before - (await stock())
    console.log(
      `${to}, at "${place}": ${told.join(', then ')}; ${effects.join(', ') || 'nothing'}; ${taken} taken from stock`,
    )
  }
}
outside.kill()
await pool.end()
