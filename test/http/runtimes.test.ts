// The fetch adapter on the real Bun, Deno and Next.js: first answer, replay, and a request that the handler can read as its framework has it.

import { spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, expect } from 'vitest'
import { freePort } from '../servers/free-port.ts'
import { findStore } from '../servers/index.ts'
import type { ServerName } from '../servers/index.ts'
import { needs } from '../servers/needs.ts'
import { pollUntil } from '../servers/poll.ts'

const closing: (() => unknown)[] = []
afterEach(async () => {
  for (const close of closing.splice(0).toReversed()) await close()
})

function whereIs(name: ServerName): string {
  const found = findStore(name)
  if (!found.found) throw new Error(found.reason)
  return found.where
}

/** Starts a program in a process group of its own, and resolves with its output when that has what is waited for. */
async function started(command: string, args: readonly string[], cwd: string, ready: RegExp): Promise<string> {
  let said = ''
  const child = spawn(command, args, { cwd, detached: true, env: { ...process.env, NEXT_TELEMETRY_DISABLED: '1' } })
  child.stdout.on('data', (chunk: Buffer) => (said += chunk.toString()))
  child.stderr.on('data', (chunk: Buffer) => (said += chunk.toString()))
  const exited = new Promise((resolve) => child.on('exit', resolve))
  closing.push(async () => {
    if (child.exitCode === null && child.signalCode === null) process.kill(-child.pid!, 'SIGKILL')
    await exited
  })
  await pollUntil(`${command} to say ${String(ready)}`, () => {
    if (child.exitCode !== null) throw new Error(`${command} ended with ${child.exitCode}: ${said}`)
    return ready.test(said)
  })
  return said
}

interface Answered {
  readonly status: number
  readonly replayed: string | null
  readonly body: unknown
}

async function post(url: string, key: string, body: object): Promise<Answered> {
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'Idempotency-Key': key, 'Content-Type': 'application/json', Cookie: 'cart=c1' },
    body: JSON.stringify(body),
  })
  const given: unknown = await response.json()
  return { status: response.status, replayed: response.headers.get('idempotent-replayed'), body: given }
}

/** The first request runs, its retry is replayed, another body is refused, another key runs. */
async function isProtected(url: string, seen: object = {}): Promise<void> {
  const first = { status: 201, body: { runs: 1, body: { cents: 500 }, ...seen } }
  expect(await post(url, 'k', { cents: 500 })).toEqual({ ...first, replayed: null })
  expect(await post(url, 'k', { cents: 500 })).toEqual({ ...first, replayed: 'true' })
  expect(await post(url, 'k', { cents: 600 })).toMatchObject({ status: 422 })
  expect(await post(url, 'another', { cents: 500 })).toMatchObject({ status: 201, body: { runs: 2 } })
}

const fixture = join(import.meta.dirname, 'runtimes', 'serve.ts')
const commands = { bun: [fixture], deno: ['run', '--no-config', '--no-lock', '--allow-all', fixture] } as const

for (const name of ['bun', 'deno'] as const) {
  needs(name).test(`${name}: a fetch handler is run once, and its retries are replayed`, async () => {
    const said = await started(whereIs(name), commands[name], tmpdir(), /listening on \d+/)
    const port = /listening on (\d+)/.exec(said)![1]!
    await isProtected(`http://127.0.0.1:${port}/orders`)
  })
}

const source = join(import.meta.dirname, '../../src')

const route = `
import { createOnce } from '${source}/core/once.ts'
import { idempotency } from '${source}/http/fetch.ts'
import { memoryStore } from '${source}/stores/memory.ts'

const once = createOnce({ store: memoryStore(), scope: 'shop' })
let runs = 0
export const POST = idempotency(once, { tenant: 'shared' })(async (request) => {
  const { pathname } = request.nextUrl
  const cart = request.cookies.get('cart')?.value
  return Response.json({ runs: ++runs, body: await request.json(), pathname, cart }, { status: 201 })
})
`

needs('next').test(
  'Next.js: a route handler gets Next’s own request with its body, nextUrl and cookies, and retries are replayed',
  async () => {
    const folder = mkdtempSync(join(tmpdir(), 'onceonly-next-'))
    closing.push(() => rmSync(folder, { recursive: true, force: true }))
    const program = whereIs('next')
    symlinkSync(join(dirname(program), '../../..'), join(folder, 'node_modules'))
    mkdirSync(join(folder, 'app', 'orders'), { recursive: true })
    writeFileSync(join(folder, 'package.json'), '{"private":true,"type":"module"}')
    // The sources lie outside of the application. Turbopack does not take them from there.
    writeFileSync(join(folder, 'next.config.mjs'), 'export default { experimental: { externalDir: true } }')
    writeFileSync(join(folder, 'app', 'layout.js'), 'export default ({ children }) => children')
    writeFileSync(join(folder, 'app', 'orders', 'route.js'), route)
    const port = await freePort()
    const args = [program, 'dev', '--webpack', '--hostname', '127.0.0.1', '--port', String(port)]
    await started(process.execPath, args, folder, /Ready in/)
    await isProtected(`http://127.0.0.1:${port}/orders`, { pathname: '/orders', cart: 'c1' })
  },
)
