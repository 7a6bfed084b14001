// The dashboard in a real browser, on the gateway and the payment service of the demo: what comes from a key or a body is only
// ever text, nothing is changed without token and confirmation, and everything can be done with the keyboard.

import { afterAll, beforeAll, expect, test } from 'vitest'
import { startDemo } from '../../src/cli/demo.ts'
import type { RunningDemo } from '../../src/cli/demo.ts'
import { InDoubtError } from '../../src/core/errors.ts'
import { publish } from '../../src/core/events.ts'
import { createOnce } from '../../src/core/once.ts'
import { operationsSection, startAdmin } from '../../src/gateway/admin.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { needs } from '../servers/needs.ts'
import { pollUntil } from '../servers/poll.ts'
import { openBrowser, openPage, overflowOf, tabTo, unlock } from './browser.ts'
import type { Browser, Page } from './browser.ts'

needs('chromium').describe('the dashboard in a browser', () => {
  let browser: Browser
  let demo: RunningDemo
  beforeAll(async () => {
    demo = await startDemo()
    browser = await openBrowser()
  })
  afterAll(async () => {
    await browser.close()
    await demo.close()
  })

  async function pay(key: string, order: string, headers: Record<string, string> = {}): Promise<Response> {
    return fetch(`${demo.gateway}/payments`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', 'Idempotency-Key': key, ...headers },
      body: JSON.stringify({ order, cents: 4900 }),
    })
  }

  const entry = async (id: string): Promise<{ entry?: { state: string } }> => {
    const query = new URLSearchParams({ scope: 'gateway:demo/', id })
    return (await (await fetch(`${demo.dashboard}/api/entry?${query}`)).json()) as { entry?: { state: string } }
  }

  /** A key whose attempt began and never reported. */
  async function leaveInDoubt(id: string): Promise<void> {
    await pay(id, id, { 'Demo-Fault': 'server-killed' })
    await pollUntil(`${id} to be in doubt`, async () => (await entry(id)).entry?.state === 'abandoned')
  }

  const showKey = async (page: Page, id: string): Promise<void> => {
    await page.locator('#text').fill(id)
    await page.locator('#filters button').click()
    await page.locator('#rows button', { hasText: id }).first().click()
    await page.locator('#key-title', { hasText: id }).waitFor()
  }

  test('is live: what is paid appears, and the duplicate is counted, without a reload', async () => {
    const { page, trouble } = await openPage(browser, demo.dashboard)
    await page.locator('.live.on').waitFor()
    const absorbed = async (): Promise<number> => Number(await page.locator('#absorbed').textContent())
    const before = await absorbed()
    await pay('live-1', 'live-1')
    await pay('live-1', 'live-1')
    await page.locator('#rows button', { hasText: 'live-1' }).waitFor()
    await pollUntil('the duplicate to be counted', async () => (await absorbed()) === before + 1)
    await page.locator('#plot rect.absorbed').first().waitFor({ state: 'attached' })
    expect(await page.locator('#plot-words').textContent()).toMatch(/\d+ effects run and [1-9]\d* duplicates absorbed/)
    expect(trouble).toEqual([])
    await page.context().close()
  })

  test('a script in a key and in a body stays text, in the list, the timeline and the revealed answer', async () => {
    const key = '<img/src=x/onerror=alert(1)><script>alert(2)</script>'
    const order = '<script>alert(3)</script><img src=x onerror=alert(4)>'
    await pay(key, order)
    const { page, trouble } = await openPage(browser, demo.dashboard)
    await unlock(page, demo.token)
    await showKey(page, key)
    await page.locator('button', { hasText: 'Show the answer' }).click()
    const answer = await page.locator('#key pre').textContent()
    expect(JSON.parse(answer!.slice(answer!.indexOf('\n\n')))).toMatchObject({ order })
    expect(await page.locator('main :is(script, img)').count()).toBe(0)
    // What was asked for is in the address of the page, too.
    await page.reload()
    await page.locator('#key-title', { hasText: key }).waitFor()
    expect(await page.locator('main :is(script, img)').count()).toBe(0)
    expect(trouble).toEqual([])
    await page.context().close()
  })

  test('without the token nothing can be changed and no answer is shown; a wrong one is refused', async () => {
    await pay('locked-1', 'locked-1')
    const { page } = await openPage(browser, demo.dashboard)
    await showKey(page, 'locked-1')
    await page.locator('#key .timeline').waitFor()
    expect(await page.locator('#key button').count()).toBe(0)
    expect(await page.locator('#key').textContent()).toContain('201')
    await page.locator('#unlock').click()
    await page.locator('#token').fill('this is not the token')
    await page.keyboard.press('Enter')
    await page.locator('#token-problem', { hasText: 'wrong' }).waitFor()
    await page.keyboard.press('Escape')
    expect(await page.locator('#key button').count()).toBe(0)
    await page.context().close()
  })

  test('a key in doubt is released with the keyboard alone, after a reason, and the timeline tells why', async () => {
    await leaveInDoubt('doubt-1')
    const { page, trouble } = await openPage(browser, demo.dashboard)
    await tabTo(page, '#unlock')
    await page.keyboard.press('Enter')
    await page.keyboard.type(demo.token)
    await page.keyboard.press('Enter')
    await page.locator('#token-dialog').waitFor({ state: 'hidden' })
    await tabTo(page, '#text')
    await page.keyboard.type('doubt-1')
    await page.keyboard.press('Enter')
    await page.locator('#rows button', { hasText: 'doubt-1' }).waitFor()
    await tabTo(page, '#rows button')
    await page.keyboard.press('Enter')
    await page.locator('#key .timeline').waitFor()
    expect(await page.evaluate('document.activeElement.id')).toBe('key')
    await tabTo(page, '#key .actions button.danger')
    await page.keyboard.press('Enter')
    expect(await page.evaluate('document.activeElement.id')).toBe('reason')
    // Without a reason nothing happens, and Escape is a way out.
    await tabTo(page, '#change-confirm')
    await page.keyboard.press('Enter')
    expect(await page.locator('#change-dialog').isVisible()).toBe(true)
    await page.keyboard.press('Escape')
    expect((await entry('doubt-1')).entry?.state).toBe('abandoned')
    await page.locator('#key .actions button.danger').first().focus()
    await page.keyboard.press('Enter')
    await page.keyboard.type('the ledger has no such charge')
    await tabTo(page, '#change-confirm')
    await page.keyboard.press('Enter')
    await page.locator('#change-dialog').waitFor({ state: 'hidden' })
    await page.locator('#key .timeline', { hasText: 'released manually' }).waitFor()
    expect(await page.locator('#key .timeline').textContent()).toContain('the ledger has no such charge')
    expect((await entry('doubt-1')).entry?.state).toBe('open')
    expect(trouble).toEqual([])
    await page.context().close()
  })

  test('a key in doubt is resolved with the response that the provider confirms, and the retry is given it', async () => {
    await leaveInDoubt('doubt-2')
    const { page, trouble } = await openPage(browser, demo.dashboard)
    await unlock(page, demo.token)
    await showKey(page, 'doubt-2')
    await page.locator('#key button', { hasText: 'Resolve' }).click()
    expect(await page.evaluate('document.activeElement.id')).toBe('found-text')
    // Keys of a gateway take a response, so there is nothing to choose.
    expect(await page.locator('#found-as').isVisible()).toBe(false)
    await page.locator('#found-text').fill('not a response\n\nat all')
    await page.locator('#reason').fill('the ledger shows the charge')
    await page.locator('#change-confirm').click()
    await page.locator('#change-problem', { hasText: 'HTTP/1.1 201 Created' }).waitFor()
    expect((await entry('doubt-2')).entry?.state).toBe('abandoned')
    const body = '{"order":"doubt-2","receipt":"found by a person"}'
    await page.locator('#found-text').fill(`HTTP/1.1 201 Created\nContent-Type: application/json\n\n${body}`)
    await page.locator('#change-confirm').click()
    await page.locator('#key .timeline', { hasText: 'resolved manually' }).waitFor()
    expect(await page.locator('#key .timeline').textContent()).toContain('the ledger shows the charge')
    const retry = await pay('doubt-2', 'doubt-2')
    expect([retry.status, retry.headers.get('idempotent-replayed'), await retry.text()]).toEqual([201, 'true', body])
    expect(trouble).toEqual([])
    await page.context().close()
  })

  test('the window of a key is prolonged after a reason', async () => {
    await pay('keep-1', 'keep-1')
    const { page, trouble } = await openPage(browser, demo.dashboard)
    await unlock(page, demo.token)
    await showKey(page, 'keep-1')
    await page.locator('#key button', { hasText: 'Keep longer' }).click()
    await page.locator('#keep-days').fill('90')
    await page.locator('#reason').fill('the partner retries for a quarter')
    await page.locator('#change-confirm').click()
    await page.locator('#key .timeline', { hasText: 'kept longer manually' }).waitFor()
    expect(await page.locator('#key .timeline').textContent()).toMatch(/expires in (90|89) days/)
    expect(trouble).toEqual([])
    await page.context().close()
  })

  test('forgetting asks first: cancelled it changes nothing, confirmed the key is gone and its audit stays', async () => {
    await pay('forget-1', 'forget-1')
    const { page } = await openPage(browser, demo.dashboard)
    await unlock(page, demo.token)
    await showKey(page, 'forget-1')
    await page.locator('#key button', { hasText: 'Forget' }).click()
    expect(await page.locator('#change-words').textContent()).toContain('happens twice')
    await page.locator('#change-dialog [data-close]').click()
    expect((await entry('forget-1')).entry?.state).toBe('settled')
    await page.locator('#key button', { hasText: 'Forget' }).click()
    await page.locator('#reason').fill('a test')
    await page.locator('#change-confirm').click()
    await page.locator('#key-body', { hasText: 'There is no entry of this key now' }).waitFor()
    expect((await entry('forget-1')).entry).toBeUndefined()
    expect(await page.locator('#key .timeline').textContent()).toContain('forgotten manually')
    await page.context().close()
  })

  test('a parked operation counts at the top, leads to its steps, and is resumed after a reason', async () => {
    const store = memoryStore()
    const shop = createOnce({ store, scope: 'shop' })
    const checkout = shop.operation('checkout', { version: 1 }, async (op) => {
      await op.step('reserve', { run: () => 'seat 4' })
      return op.step('charge', { run: () => Promise.reject(new InDoubtError('no answer')), inDoubt: 'park' })
    })
    for (let attempt = 1; attempt <= 2; attempt++) await checkout.run('order-7', 1).catch(() => undefined)
    const admin = await startAdmin({
      once: shop,
      store,
      metrics: { text: () => '' },
      listen: { host: '127.0.0.1', port: 0 },
      token: demo.token,
      notReady: () => undefined,
      sections: [operationsSection(shop, store)],
    })
    const { page, trouble } = await openPage(browser, admin.url)
    await page.locator('#parked', { hasText: '1' }).waitFor()
    expect(await page.locator('#inDoubt').textContent()).toBe('1')
    await page.locator('#section-operations button', { hasText: 'order-7' }).click()
    await page.locator('#key .badge.parked').waitFor()
    expect(await page.locator('#key .timeline').textContent()).toMatch(/Step reserve: done.*Step charge: began.*parked/)
    expect(await page.locator('#key button').count()).toBe(0)
    await unlock(page, demo.token)
    await page.locator('#key button', { hasText: 'Resume' }).click()
    expect(await page.locator('#change-words').textContent()).toContain('In doubt: charge')
    await page.locator('#change-dialog [data-close]').click()
    expect(await checkout.status('order-7')).toMatchObject({ state: 'parked' })
    await page.locator('#key button', { hasText: 'Resume' }).click()
    await page.locator('#reason').fill('the provider was asked')
    await page.locator('#change-confirm').click()
    await page.locator('#key .timeline', { hasText: 'resumed manually' }).waitFor()
    expect(await checkout.status('order-7')).toMatchObject({ state: 'waiting' })
    await page.locator('#parked', { hasText: '0' }).waitFor()
    expect(trouble).toEqual([])
    await page.context().close()
    await admin.close()
    await shop.close()
  })

  test('a loss of data is an alert with what to type, and says so when new keys are served again', async () => {
    const store = memoryStore()
    const shop = createOnce({ store, scope: 'shop' })
    let notReady: string | undefined = 'in quarantine'
    const admin = await startAdmin({
      once: shop,
      store,
      metrics: { text: () => '' },
      listen: { host: '127.0.0.1', port: 0 },
      notReady: () => notReady,
    })
    publish('data-loss', undefined, { store: 'redis', register: 'r', evidence: 'emptied', quarantined: true })
    publish('unprotected', { scope: 'shop', id: 'k' }, { code: 'STORE_UNAVAILABLE' })
    const { page, trouble } = await openPage(browser, admin.url)
    await page.locator('#problem', { hasText: 'onceonly quarantine --store URL. Not ready: in quarantine' }).waitFor()
    expect(await page.locator('#where').textContent()).toContain('not ready')
    expect(await page.locator('#unprotected').textContent()).toBe('1')
    notReady = undefined
    await page.locator('#problem', { hasText: 'New keys are served, and retries of lost keys run again.' }).waitFor()
    expect(await page.locator('#problem').textContent()).not.toContain('refused')
    expect(trouble).toEqual([])
    await page.context().close()
    await admin.close()
    await shop.close()
  })

  test('pages, state and search find one entry among many', async () => {
    const many = Array.from({ length: 60 }, (_, index) => `many-${String(index).padStart(3, '0')}`)
    for (const id of many) await pay(id, id)
    const { page } = await openPage(browser, demo.dashboard)
    await page.locator('#rows tr').nth(24).waitFor()
    const ids = async (): Promise<string[]> => page.locator('#rows button').allTextContents()
    const first = await ids()
    await page.locator('#next').click()
    await pollUntil('the next page', async () => (await ids())[0] !== first[0])
    const second = await ids()
    expect(new Set([...first, ...second]).size).toBe(50)
    await page.locator('#first').click()
    await pollUntil('the first page', async () => (await ids())[0] === first[0])
    await page.locator('#text').fill('many-05')
    await page.locator('#filters button').click()
    await pollUntil('what begins so', async () => (await ids()).length === 10)
    expect(await ids()).toEqual(many.slice(50))
    await page.locator('#text').fill('')
    await page.locator('#states label', { hasText: 'tombstone' }).click()
    await page.locator('#none:visible').waitFor()
    expect(await page.locator('#none').textContent()).toBe('There is no such entry.')
    await page.context().close()
  })

  test.each([390, 1440])('fits %i pixels with everything that it can show', async (width) => {
    const long = `long-${'x'.repeat(250)}`
    await pay(long, long)
    const { page } = await openPage(browser, demo.dashboard, { viewport: { width, height: 844 } })
    await unlock(page, demo.token)
    await showKey(page, long)
    await page.locator('button', { hasText: 'Show the answer' }).click()
    await page.locator('#key pre').waitFor()
    expect(await overflowOf(page)).toBe(0)
    await page.context().close()
  })

  test('is dark where that is wanted, and light elsewhere', async () => {
    for (const [colorScheme, colour] of [
      ['dark', 'rgb(20, 21, 23)'],
      ['light', 'rgb(250, 249, 246)'],
    ] as const) {
      const { page } = await openPage(browser, demo.dashboard, { colorScheme })
      expect(await page.evaluate('getComputedStyle(document.body).backgroundColor')).toBe(colour)
      await page.context().close()
    }
  })

  test('a screen reader finds landmarks, names and what changes', async () => {
    const { page } = await openPage(browser, demo.dashboard)
    for (const role of ['banner', 'main', 'search', 'navigation'] as const) {
      expect(await page.getByRole(role).count(), role).toBe(1)
    }
    expect(await page.getByRole('heading', { level: 1 }).count()).toBe(1)
    expect(await page.getByRole('status').count()).toBeGreaterThanOrEqual(2)
    expect(
      await page
        .getByRole('radiogroup')
        .or(page.getByRole('group', { name: 'State' }))
        .count(),
    ).toBe(1)
    for (const name of ['Scope', 'Key, or how it begins']) expect(await page.getByLabel(name).count(), name).toBe(1)
    const nameless = await page
      .locator('button:visible')
      .evaluateAll((buttons) => buttons.filter((button) => !(button.textContent ?? '').trim()).length)
    expect(nameless).toBe(0)
    await page.context().close()
  })
})
