// What a seeded bug asked for: an answer that leaves before the commit is seen only by a client whose commit then fails.

import { once as onceEvent } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { OnceError } from '../../src/core/errors.ts'
import { createOnce } from '../../src/core/once.ts'
import { idempotency as onFetch } from '../../src/http/fetch.ts'
import { idempotency as onNode } from '../../src/http/node.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'

const asked = { method: 'POST', headers: { 'idempotency-key': 'k' }, body: '{}' }
const options = { tenant: 'shared', transaction: true } as const

function storeWithoutCommits(folder: string) {
  const store = sqliteStore({ path: join(folder, 'shop.db') })
  const begin: typeof store.begin = async (key, request) => {
    const began = await store.begin(key, request)
    const commit = async (): Promise<never> => {
      await began.granted!.rollback()
      throw new OnceError('OUTCOME_UNKNOWN', { message: 'The connection was lost at COMMIT.' })
    }
    return began.granted ? { ...began, granted: { ...began.granted, commit } } : began
  }
  return { ...store, begin }
}

test('an answer whose commit fails reaches no client', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-seeded-'))
  const store = storeWithoutCommits(folder)
  const once = createOnce({ store, scope: 'shop' })
  const server = createServer(onNode(once as never, options)((_req, res) => void res.writeHead(201).end('done')))
  await onceEvent(server.listen(0, '127.0.0.1'), 'listening')
  try {
    const overNode = await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`, asked)
    const handler = onFetch(once, options)(() => new Response('done', { status: 201 }))
    const overFetch = await handler(new Request('http://shop/', asked))
    for (const answer of [overNode, overFetch]) {
      expect(answer.status).toBe(503)
      expect(await answer.json()).toMatchObject({ executed: 'unknown' })
    }
  } finally {
    server.closeAllConnections()
    server.close()
    store.close()
    rmSync(folder, { recursive: true })
  }
})
