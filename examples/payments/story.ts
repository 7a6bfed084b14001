// A payment, told twelve times: something is lost, hangs or is killed between the client, the backend and the provider, and there
// is one charge, one order and one receipt each time. DATABASE_URL=postgres://… node examples/payments/story.ts

import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once as heard } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { pay } from './client.ts'
import { startNetwork } from './network.ts'

const folder = mkdtempSync(join(tmpdir(), 'onceonly-payments-'))
const ledger = join(folder, 'provider.jsonl')
const running = new Map<string, { readonly child: ChildProcess; readonly port: string }>()

async function start(program: string, args: string[], env: Record<string, string> = {}): Promise<void> {
  const child = spawn(process.execPath, [join(import.meta.dirname, `${program}.ts`), ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, ...env },
  })
  const [port] = (await heard(child.stdout, 'data')) as [Buffer]
  running.set(program, { child, port: port.toString().trim() })
}

const urlOf = (program: string) => (): string => `http://127.0.0.1:${running.get(program)!.port}`
const kill = (program: string): void => void running.get(program)!.child.kill('SIGKILL')
const isAlive = (program: string): boolean => running.get(program)!.child.signalCode === null

function stop(): void {
  for (const program of running.keys()) kill(program)
  rmSync(folder, { recursive: true, force: true })
}
process.once('SIGTERM', () => {
  stop()
  process.exit(1)
})

const toBackend = await startNetwork(urlOf('backend'))
const toProvider = await startNetwork(urlOf('provider'))
const startBackend = (): Promise<void> => start('backend', [], { PROVIDER_URL: toProvider.url })
const startProvider = (): Promise<void> => start('provider', [ledger])
await startProvider()
await startBackend()

/** What happens in each telling, once. */
const stories: readonly (readonly [title: string, happens: () => void])[] = [
  ['nothing happens', () => {}],
  ['the request of the client is lost', () => toBackend.next('/payments', 'lose the request')],
  ['the request to the provider is lost', () => toProvider.next('/charges', 'lose the request')],
  ['the answer of the provider is lost', () => toProvider.next('/charges', 'lose the response')],
  ['the answer to the client is lost', () => toBackend.next('/payments', 'lose the response')],
  ['the provider charges, and hangs', () => toProvider.next('/charges', 'hang')],
  [
    'the backend is killed before the charge',
    () => toProvider.next('/charges', 'lose the request', () => kill('backend')),
  ],
  [
    'the backend is killed after the charge',
    () => toProvider.next('/charges', 'lose the response', () => kill('backend')),
  ],
  ['the backend is killed after the order', () => toProvider.next('/mails', 'lose the request', () => kill('backend'))],
  [
    'the backend is killed after the receipt',
    () => toProvider.next('/mails', 'lose the response', () => kill('backend')),
  ],
  [
    'the provider is killed after the charge',
    () => toProvider.next('/charges', 'lose the response', () => kill('provider')),
  ],
  [
    'the backend is killed, and the client never asks again',
    () => {
      toBackend.next('/payments', 'lose the response')
      toProvider.next('/charges', 'lose the response', () => kill('backend'))
    },
  ],
]

/** As a process manager does. */
async function raiseTheDead(): Promise<void> {
  if (!isAlive('provider')) await startProvider()
  if (!isAlive('backend')) await startBackend()
}

const pool = new pg.Pool({ connectionString: process.env['DATABASE_URL'] })
async function effectsOf(order: string): Promise<string> {
  const lines = readFileSync(ledger, 'utf8').split('\n').filter(Boolean)
  const done = lines.map((line) => JSON.parse(line) as { what: string; order: string })
  const count = (what: string): number => done.filter((each) => each.what === what && each.order === order).length
  const { rowCount } = await pool.query('select from orders where "order" = $1', [order])
  return `charges ${count('charge')}, orders ${rowCount}, receipts ${count('mail')}`
}

for (const [index, [title, happens]] of stories.entries()) {
  const order = `order-${index + 1}`
  happens()
  let told = 'the worker finished it'
  if (title.endsWith('never asks again')) {
    const request = { method: 'POST', headers: { 'content-type': 'application/json', 'idempotency-key': order } }
    await fetch(`${toBackend.url}/payments`, { ...request, body: JSON.stringify({ order, cents: 500 }) }).catch(
      () => {},
    )
    while ((await effectsOf(order)) !== 'charges 1, orders 1, receipts 1')
      await Promise.all([raiseTheDead(), sleep(100)])
  } else {
    const answered = pay(toBackend.url, order, { order, cents: 500 })
    let over = false
    void answered.finally(() => (over = true)).catch(() => {})
    while (!over) await Promise.all([raiseTheDead(), sleep(50)])
    const { tries } = await answered
    told = `the client was told ${tries === 1 ? 'at once' : `after asking ${tries} times`}`
  }
  console.log(`${title}: ${told}; ${await effectsOf(order)}`)
}

stop()
toBackend.close()
toProvider.close()
await pool.end()
