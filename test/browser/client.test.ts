// The client in a real browser: the key is in IndexedDB before the first attempt, a reload in the middle goes on with it, two tabs
// share it, and IndexedDB keeps the contract of key stores between two tabs, Web Storage in one.

import { createServer } from 'node:http'
import type { Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { KeyStore, PendingRecord } from '../../src/client/client.ts'
import { keyOf } from '../../src/core/key.ts'
import { createOnce } from '../../src/core/once.ts'
import { idempotency } from '../../src/http/node.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { bundled } from '../client/bundled.ts'
import { keyStoreCases, record } from '../client/key-store-contract.ts'
import { needs } from '../servers/needs.ts'
import { pollUntil } from '../servers/poll.ts'
import { openBrowser } from './browser.ts'
import type { Browser, Page } from './browser.ts'

const html = `<!doctype html><title>shop</title><script type="module">
import * as client from '/client.js'
const keys = client.indexedDbKeys()
window.keysOf = { indexedDb: client.indexedDbKeys, webStorage: client.webStorageKeys }
window.onceClient = client.createClient({ keys, retry: { totalMs: 60_000 } })
window.keys = keys
window.keyOf = client.keyOf
window.pay = (order) => {
  const init = { method: 'POST', body: JSON.stringify({ order }), headers: { 'content-type': 'application/json' } }
  return window.onceClient.fetch('/payments', init, { operation: 'pay:' + order })
}
window.ready = true
</script>`

needs('chromium').describe('the client in a browser', () => {
  let browser: Browser
  let server: Server
  let url: string
  const ledger: string[] = []
  /** Requests that arrived, and what holds their handler back. */
  let arrived = 0
  let held = Promise.resolve()

  beforeAll(async () => {
    const code = await bundled(join(import.meta.dirname, '../client/browser-stores.ts'))
    const once = createOnce({ store: memoryStore(), scope: 'shop' })
    const shop = idempotency(once, { tenant: 'shared' })(async (request, response) => {
      const { order } = JSON.parse(await text(request)) as { order: string }
      await held
      ledger.push(order)
      response.writeHead(201, { 'content-type': 'application/json' }).end(JSON.stringify({ receipt: ledger.length }))
    })
    server = createServer((request, response) => {
      if (request.method === 'POST') {
        arrived++
        return void shop(request, response)
      }
      const isScript = request.url === '/client.js'
      response.writeHead(200, { 'content-type': isScript ? 'text/javascript' : 'text/html' })
      response.end(isScript ? code : html)
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`
    browser = await openBrowser()
  })
  afterAll(async () => {
    await browser.close()
    server.close()
    server.closeAllConnections()
  })

  async function openTabs(count: number): Promise<Page[]> {
    const context = await browser.newContext()
    const pages = await Promise.all(Array.from({ length: count }, () => context.newPage()))
    for (const page of pages) {
      await page.goto(url)
      await page.waitForFunction('window.ready')
    }
    return pages
  }

  test('the key is in IndexedDB before the first attempt, the page is reloaded in the middle, one charge', async () => {
    const [page] = (await openTabs(1)) as [Page]
    const before = arrived
    const release = Promise.withResolvers<void>()
    held = release.promise
    await page.evaluate("void window.pay('reloaded').catch(() => {})")
    await pollUntil('the first attempt to arrive', () => arrived > before)
    const [record] = await page.evaluate<PendingRecord[]>('window.keys.list()')
    expect(record).toMatchObject({ operation: 'pay:reloaded' })
    await page.reload()
    await page.waitForFunction('window.ready')
    expect(await page.evaluate('window.onceClient.pending()')).toMatchObject([{ key: record!.key, state: 'sent' }])
    const resuming = page.evaluate(`(async () => {
      const receipts = []
      const { settled, failed } = await window.onceClient.resume(async (response) => receipts.push(await response.json()))
      return { settled, failed: failed.length, receipts }
    })()`)
    await pollUntil('the resumed attempt to arrive', () => arrived > before + 1)
    release.resolve()
    const receipt = ledger.length + 1
    expect(await resuming).toEqual({ settled: ['pay:reloaded'], failed: 0, receipts: [{ receipt }] })
    expect(ledger.filter((order) => order === 'reloaded')).toHaveLength(1)
    expect(await page.evaluate('window.keys.list()')).toEqual([])
    await page.context().close()
  })

  test('two tabs, one charge', async () => {
    const tabs = await openTabs(2)
    const paid = await Promise.all(
      tabs.map((tab) =>
        tab.evaluate(
          "(async () => { const r = await window.pay('two-tabs'); return { key: r.key, body: await r.json() } })()",
        ),
      ),
    )
    expect(paid[0]).toEqual(paid[1])
    expect(ledger.filter((order) => order === 'two-tabs')).toHaveLength(1)
    await tabs[0]!.context().close()
  })

  test('keyOf makes the key that it makes on Node, and says by name where there is no Web Crypto', async () => {
    const [page] = (await openTabs(1)) as [Page]
    const parts = ['order-42', 'refund', 2, 'é💸', true]
    expect(await page.evaluate(`window.keyOf(${JSON.stringify(parts)})`)).toBe(keyOf('shop', parts).id)
    // As on a page that came over plain http from another machine.
    const refused = `Object.defineProperty(crypto, 'subtle', { value: undefined }); window.keyOf(['a']).catch(({ code }) => code)`
    expect(await page.evaluate(refused)).toBe('UNSUPPORTED')
    await page.context().close()
  })

  /** A key store that lives in a tab. */
  function keysIn(page: Page, kind: string, name: string): KeyStore {
    const call = <T>(code: string): Promise<T> =>
      page.evaluate<T>(`(async () => { const keys = window.keysOf.${kind}(${JSON.stringify(name)}); ${code} })()`)
    const json = JSON.stringify
    return {
      async open(record) {
        const { isSame, opened } = await call<{ isSame: boolean; opened: PendingRecord }>(
          `const record = ${json(record)}; const opened = await keys.open(record); return { isSame: opened === record, opened }`,
        )
        return isSame ? record : opened
      },
      get: (operation) => call(`return keys.get(${json(operation)})`),
      save: (record) => call(`return keys.save(${json(record)})`),
      remove: (operation, key) => call(`return keys.remove(${json(operation)}, ${json(key)})`),
      list: () => call('return keys.list()'),
    }
  }

  async function keepsTheContract(kind: string, one: Page, other: Page): Promise<void> {
    for (const [index, { run }] of keyStoreCases.entries())
      await run({ one: keysIn(one, kind, `case-${index}`), other: keysIn(other, kind, `case-${index}`) })
  }

  test('indexedDb keeps the contract of key stores between two tabs', async () => {
    const [one, other] = (await openTabs(2)) as [Page, Page]
    await keepsTheContract('indexedDb', one, other)
    await one.context().close()
  })

  test('webStorage keeps the contract of key stores in one tab, and another tab sees a key soon', async () => {
    const [one, other] = (await openTabs(2)) as [Page, Page]
    await keepsTheContract('webStorage', one, one)
    const asked = record('pay', 'k1')
    const open = (page: Page): Promise<PendingRecord> => keysIn(page, 'webStorage', 'shared').open(asked)
    await open(one)
    await pollUntil(
      'the other tab to see the key',
      async () => (await keysIn(other, 'webStorage', 'shared').get('pay'))?.key === 'k1',
    )
    expect(await open(other)).not.toBe(asked)
    await one.reload()
    await one.waitForFunction('window.ready')
    expect(await open(one)).not.toBe(asked)
    await one.context().close()
  })
})
