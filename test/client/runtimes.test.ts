// The same suite for the core of the client on Node 24, Node 22, Bun and Deno, against one server. What the client has on Node only runs on
// both Nodes.

import { execFile } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import type { Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { promisify } from 'node:util'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createOnce } from '../../src/core/once.ts'
import { idempotency } from '../../src/http/node.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { servers } from '../servers/index.ts'
import { needs } from '../servers/needs.ts'

let server: Server
let url: string
beforeAll(async () => {
  const once = createOnce({ store: memoryStore(), scope: 'shop' })
  const runs = new Map<string, number>()
  const lost = new Set<string>()
  const shop = idempotency(once, { tenant: 'shared' })(async (request, response) => {
    const received = await text(request)
    const key = String(request.headers['idempotency-key'])
    runs.set(key, (runs.get(key) ?? 0) + 1)
    response.writeHead(201, { 'content-type': 'application/json' })
    response.end(JSON.stringify({ received, runs: runs.get(key) }))
  })
  server = createServer((request, response) => {
    if (request.url === '/hang') return
    const key = String(request.headers['idempotency-key'])
    if (request.url === '/lose-reply' && !lost.has(key)) {
      lost.add(key)
      // The handler has written its whole answer, and not a byte of it has left.
      response.write = () => true
      response.end = () => {
        request.socket.destroy()
        return response
      }
    }
    void shop(request, response)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
})
afterAll(() => {
  server.close()
  server.closeAllConnections()
})

const [suite, nodeSuite] = ['suite.ts', 'node-suite.ts'].map((name) => join(import.meta.dirname, 'runtimes', name)) as [
  string,
  string,
]

async function runs(command: string, args: readonly string[]): Promise<void> {
  const env = { ...process.env, NODE_OPTIONS: '', NODE_NO_WARNINGS: '1' }
  const { stdout } = await promisify(execFile)(command, args, { env })
  expect(stdout.trim()).toBe('ok')
}

/** In a folder for its keys. */
async function runsOnNode(command: string, args: readonly string[]): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-runtimes-'))
  try {
    await runs(command, [...args, suite, url])
    await runs(command, [...args, nodeSuite, url, folder])
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

function where(name: 'bun' | 'deno' | 'node22'): string {
  const found = servers[name].find()
  if (!found.found) throw new Error(found.reason)
  return found.where
}

const denoArgs = ['run', '--no-config', '--no-lock', '--allow-all']

test('node: one key across a lost reply, a restart, forms, streams and time-outs', () =>
  runsOnNode(process.execPath, []))
needs('node22').test('node 22: the same', () => runsOnNode(where('node22'), ['--experimental-strip-types']))
needs('bun').test('bun: the same', () => runs(where('bun'), [suite, url]))
needs('deno').test('deno: the same', () => runs(where('deno'), [...denoArgs, suite, url]))
