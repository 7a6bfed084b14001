// The demo as a program, without a browser: its ports, its ends, and its faults asked for by hand.

import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { afterAll, afterEach, expect, test } from 'vitest'
import type { MessageCounts } from '../src/cli/demo.ts'
import { pollUntil } from './servers/poll.ts'

const program = join(import.meta.dirname, '..', 'src', 'cli', 'main.ts')
const temporary = mkdtempSync(join(tmpdir(), 'onceonly-demo-test-'))
const programs: ChildProcess[] = []
// A test that failed has not ended its own.
afterEach(() => programs.splice(0).forEach((each) => each.kill('SIGKILL')))
afterAll(() => rmSync(temporary, { recursive: true, force: true }))

function run(...args: string[]): ChildProcess & { stdout: NodeJS.ReadableStream; stderr: NodeJS.ReadableStream } {
  const child = spawn(process.execPath, [program, 'demo', ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, TMPDIR: temporary },
  })
  programs.push(child)
  return child
}

interface Started {
  readonly demo: ChildProcess
  readonly page: string
  readonly gateway: string
  readonly service: string
}

async function start(...args: string[]): Promise<Started> {
  const demo = run(...args)
  let shown = ''
  demo.stdout.on('data', (chunk: Buffer) => (shown += chunk.toString()))
  await pollUntil('the demo to start', () => shown.includes('Ctrl-C'))
  const url = (before: string): string => new RegExp(`${before}(http://127\\.0\\.0\\.1:\\d+)`).exec(shown)![1]!
  return { demo, page: url('Play +'), gateway: url('Gateway +'), service: url('process \\(') }
}

async function end({ demo }: Started, signal: NodeJS.Signals): Promise<unknown> {
  const ended = once(demo, 'exit')
  demo.kill(signal)
  return ended
}

function pay(started: Started, road: 'with' | 'without', order: string, fault = ''): Promise<Response> {
  return fetch(`${started.page}/${road}/payments`, {
    method: 'POST',
    headers: {
      'Content-Type': 'application/json',
      ...(road === 'with' && { 'Idempotency-Key': order }),
      ...(fault !== '' && { 'Demo-Fault': fault }),
    },
    body: JSON.stringify({ order, cents: 4900 }),
  })
}

test('a service that is killed after the charge comes back, and its ledger still has the charge', async () => {
  const started = await start()
  const ledger = async (order: string): Promise<unknown[]> =>
    (await (await fetch(`${started.page}/api/ledger?order=${order}`)).json()) as unknown[]
  expect((await pay(started, 'without', 'straight', 'server-killed')).status).toBe(502)
  expect((await pay(started, 'without', 'straight')).status).toBe(201)
  expect(await ledger('straight')).toHaveLength(2)
  expect((await pay(started, 'with', 'kept', 'server-killed')).status).toBe(502)
  const last = await pollUntil('the lease to end', async () => {
    const answer = (await (await pay(started, 'with', 'kept')).json()) as { retryable: boolean; type: string }
    return answer.retryable === false && answer
  })
  expect(last.type).toContain('outcome-unknown')
  expect(await ledger('kept')).toHaveLength(1)
  expect(await end(started, 'SIGTERM')).toEqual([0, null])
  expect(readdirSync(temporary)).toEqual([])
})

test('with the store down nothing is charged, and all is well when it is back', async () => {
  const started = await start()
  expect((await pay(started, 'with', 'order', 'store-down')).status).toBe(503)
  expect(await (await fetch(`${started.page}/api/ledger?order=order`)).json()).toEqual([])
  expect((await pay(started, 'with', 'order')).status).toBe(201)
  expect(await end(started, 'SIGINT')).toEqual([0, null])
  expect(readdirSync(temporary)).toEqual([])
})

test('relay and mailers are killed at each point: each mailer keeps what its delivery promises', async () => {
  const started = await start()
  const ask = async (path: string, method = 'GET'): Promise<MessageCounts> =>
    (await (await fetch(`${started.page}/api/messages${path}`, { method })).json()) as MessageCounts
  const until = (what: string, holds: (counts: MessageCounts) => boolean): Promise<MessageCounts> =>
    pollUntil(what, async () => {
      const counts = await ask('')
      return holds(counts) && counts
    })
  const settled = (): Promise<MessageCounts> => until('nothing to be under way', ({ isSettled }) => isSettled)
  expect(await ask('')).toMatchObject({ relay: 'off', orders: 0, isSettled: false })
  await ask('/start', 'POST')

  await ask('/kill?at=after-publish', 'POST')
  await ask('/orders?count=25', 'POST')
  const dead = await until('the relay to be killed', ({ relay }) => relay === 'killed')
  expect(dead.rowsWaiting).toBe(25)
  expect(dead.published).toBeGreaterThan(0)
  await ask('/start', 'POST')
  const doubled = await settled()
  // What was on its way when it was killed arrives, too.
  expect(doubled.publishedAgain).toBeGreaterThanOrEqual(dead.published)
  const [most, least, exactly] = doubled.mailers
  expect(most).toMatchObject({ once: 25, more: 0, never: 0 })
  expect(least!.more).toBeGreaterThan(0)
  expect(exactly).toMatchObject({ once: 25, more: 0, never: 0, mails: 25 })

  for (const [index, point] of ['before-commit', 'before-acknowledgement'].entries()) {
    await ask(`/kill?at=${point}`, 'POST')
    await ask('/orders?count=1', 'POST')
    await until('the mailers to be killed', ({ mailers }) => mailers.every(({ state }) => state === 'killed'))
    await ask('/start', 'POST')
    const { mailers } = await settled()
    expect(mailers[0]).toMatchObject({ never: index + 1, more: 0 })
    expect(mailers[1]!.never).toBe(0)
    expect(mailers[2]).toMatchObject({ once: 26 + index, more: 0, never: 0 })
  }
  await ask('/again', 'POST')
  const { mailers } = await settled()
  expect(mailers.map(({ more }) => more)).toEqual([0, 27, 0])
  expect(mailers[2]).toMatchObject({ once: 27, mails: 27 })
  expect((await fetch(`${started.page}/api/messages/start`)).status).toBe(405)
  expect((await fetch(`${started.page}/api/messages/dance`, { method: 'POST' })).status).toBe(404)
  expect(await end(started, 'SIGTERM')).toEqual([0, null])
  expect(readdirSync(temporary)).toEqual([])
})

test('killed with kill -9 it leaves no process, only its folder', async () => {
  const started = await start()
  expect(await end(started, 'SIGKILL')).toEqual([null, 'SIGKILL'])
  await pollUntil('the service to be gone', async () =>
    fetch(started.service).then(
      () => false,
      () => true,
    ),
  )
  for (const name of readdirSync(temporary)) rmSync(join(temporary, name), { recursive: true })
})

test('listens where it is told to; a port that is taken is an error, and nothing is left of the rest', async () => {
  const first = await start()
  const port = new URL(first.gateway).port
  const second = run('--port', port)
  const said = text(second.stderr)
  expect(await once(second, 'exit')).toEqual([1, null])
  expect(await said).toContain(`cannot listen on 127.0.0.1:${port}: another program has it`)
  await end(first, 'SIGINT')
  const again = await start('--port', port)
  expect(again.gateway).toBe(`http://127.0.0.1:${port}`)
  await end(again, 'SIGINT')
  expect(readdirSync(temporary)).toEqual([])
})

test.each([['--port', '70000'], ['--prot', '1'], ['now']])('refuses %s %s', async (...args) => {
  const demo = run(...args)
  expect(await once(demo, 'exit')).toEqual([2, null])
})
