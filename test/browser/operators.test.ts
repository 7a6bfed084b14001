// The views of sessions and webhooks in a real browser: what comes from a client, a customer or an endpoint is only ever text, nothing is
// changed without token, reason and confirmation, and everything can be done with the keyboard.

import { afterAll, beforeAll, expect, test } from 'vitest'
import { createSessions } from '../../src/sessions/sessions.ts'
import type { Sessions } from '../../src/sessions/sessions.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { createWebhookSender } from '../../src/webhooks.ts'
import type { WebhookSender } from '../../src/webhooks.ts'
import { adminOver, type AskedAdmin, token } from '../admin/asked.ts'
import { startSqliteMessages } from '../messages/grounds.ts'
import type { MessagesGround, SqlStore } from '../messages/grounds.ts'
import { needs } from '../servers/needs.ts'
import { type HookServer, startHookServer } from '../webhooks/hook-server.ts'
import { openBrowser, openPage, overflowOf, tabTo, unlock } from './browser.ts'
import type { Browser, Page } from './browser.ts'

const script = '<img/src=x/onerror=alert(1)><script>alert(2)</script>'

needs('chromium').describe('sessions and webhooks in a browser', () => {
  let browser: Browser
  let ground: MessagesGround
  let store: SqlStore
  let admin: AskedAdmin
  let hooks: HookServer
  let sessions: Sessions
  let webhooks: WebhookSender
  beforeAll(async () => {
    ground = await startSqliteMessages()
    store = (await ground.openStore()).store
    hooks = await startHookServer()
    sessions = createSessions({ store, scope: 'tills', window: 3 }) as Sessions
    webhooks = createWebhookSender({ store, allow: ['127.0.0.1'], scheduleMs: [0] })
    await sessions.migrate()
    await webhooks.migrate()
    admin = await adminOver(store)
    browser = await openBrowser()
  })
  afterAll(async () => {
    await browser.close()
    await admin[Symbol.asyncDispose]()
    await hooks[Symbol.asyncDispose]()
    await ground[Symbol.asyncDispose]()
  })

  async function confirm(page: Page, reason: string): Promise<void> {
    await page.locator('#reason').fill(reason)
    await page.locator('#change-confirm').click()
    await page.locator('#change-dialog').waitFor({ state: 'hidden' })
  }

  // Three numbers of a window of three: the first is acknowledged, one is answered and the last failed.
  async function stuck(client: string): Promise<void> {
    const { session, epoch } = await sessions.register(client)
    for (const sequence of [1, 2, 3]) {
      await sessions.apply({ session, epoch, sequence, acknowledged: sequence === 3 ? 1 : 0 }, () => 'sold')
    }
    const failing = sessions.apply({ session, epoch, sequence: 4 }, () => Promise.reject(new Error('no printer')))
    await failing.catch(() => {})
  }

  // An event that its endpoint refused with this answer.
  async function refused(id: string, topic: string, answer: string): Promise<string> {
    const endpoint = await webhooks.endpoints.add({ topic, url: `${hooks.url}/hooks` })
    const headers = { 'ce-type': 'order.paid' }
    await webhooks.publisher.publish([{ id, topic, body: Buffer.from('{"card":"wxyz"}'), headers }])
    hooks.answer((_hook, res) => res.writeHead(500).end(answer))
    await webhooks.runOnce()
    hooks.answer((_hook, res) => res.end())
    return endpoint.id
  }

  test('a session is found and closed with the keyboard alone, after a reason, and its timeline tells why', async () => {
    await stuck('till-7')
    await stuck('till-8')
    const { page, trouble } = await openPage(browser, admin.url)
    await tabTo(page, '#unlock')
    await page.keyboard.press('Enter')
    await page.keyboard.type(token)
    await page.keyboard.press('Enter')
    await page.locator('#token-dialog').waitFor({ state: 'hidden' })
    await tabTo(page, '#tab-keys')
    for (const tab of ['messages', 'sessions', 'webhooks', 'keys']) {
      await page.keyboard.press('ArrowRight')
      expect(await page.evaluate('document.activeElement.id')).toBe(`tab-${tab}`)
    }
    for (const tab of ['webhooks', 'sessions']) {
      await page.keyboard.press('ArrowLeft')
      expect(await page.evaluate('document.activeElement.id')).toBe(`tab-${tab}`)
    }
    await tabTo(page, '#sessions-client')
    await page.keyboard.type('till-7')
    await page.keyboard.press('Enter')
    await page.locator('#sessions-page', { hasText: /^1 shown$/ }).waitFor()
    expect(await page.locator('#sessions-rows').textContent()).toMatch(/till-7tills\/sessionswindow full13 of 3in 24 h/)
    await tabTo(page, '#sessions-rows button')
    await page.keyboard.press('Enter')
    await page.locator('#session:focus').waitFor()
    expect(await page.locator('#session .facts').textContent()).toMatch(
      /Acknowledgedthrough 1.*Window3 of 3, full.*Answered2–3Unanswered4/,
    )
    await tabTo(page, '#session .actions button.close')
    await page.keyboard.press('Enter')
    expect(await page.evaluate('document.activeElement.id')).toBe('reason')
    // Without a reason nothing happens, and Escape is a way out.
    await tabTo(page, '#change-confirm')
    await page.keyboard.press('Enter')
    expect(await page.locator('#change-dialog').isVisible()).toBe(true)
    await page.keyboard.press('Escape')
    expect(await sessions.show('till-7')).toMatchObject({ state: 'open' })
    await page.locator('#session .actions button.close').focus()
    await page.keyboard.press('Enter')
    await page.keyboard.type('the till was stolen')
    await tabTo(page, '#change-confirm')
    await page.keyboard.press('Enter')
    await page.locator('#session .timeline', { hasText: 'closed manually' }).waitFor()
    expect(await page.locator('#session .timeline').textContent()).toContain('the till was stolen')
    await page.locator('#sessions-rows .badge', { hasText: 'closed' }).waitFor()
    expect(await page.locator('#session .actions button').count()).toBe(0)
    expect(await sessions.show('till-7')).toMatchObject({ state: 'closed' })
    expect(await sessions.show('till-8')).toMatchObject({ state: 'open' })
    expect(trouble).toEqual([])
    await page.context().close()
  })

  test('a failed delivery is looked at and replayed, and its endpoint is disabled and enabled', async () => {
    const endpoint = await refused('event-1', 'acme', 'token 77')
    const { page, trouble } = await openPage(browser, `${admin.url}/#view=webhooks`)
    const row = page.locator('#endpoints-rows tr', { hasText: 'acme' })
    await row.locator('.badge', { hasText: 'failing' }).waitFor()
    await page.locator('#deliveries-rows button', { hasText: 'event-1' }).click()
    await page.locator('#webhook .attempts li', { hasText: 'Attempt 1: 500' }).waitFor()
    // Without the token there is nothing to press but the way to the endpoint, and nothing of what was sent.
    expect(await page.locator('#webhook .actions button').count()).toBe(0)
    expect(await page.locator('#webhook').textContent()).not.toMatch(/wxyz|token 77/)
    await unlock(page, token)
    await page.locator('#webhook button', { hasText: 'Show what was sent' }).click()
    await page.locator('#webhook pre').nth(1).waitFor()
    expect(await page.locator('#webhook pre').allTextContents()).toEqual(['{"card":"wxyz"}', '1. token 77'])
    await page.locator('#webhook button.replay').click()
    await confirm(page, 'their outage is over')
    await page.locator('#webhook .timeline', { hasText: 'replayed manually' }).waitFor()
    expect(await webhooks.runOnce()).toMatchObject({ delivered: 1 })
    await page.locator('#webhooks-again').click()
    await page.locator('#webhook .attempts li', { hasText: 'Attempt 2: 200' }).waitFor()
    await page.locator('#webhook .facts button.link').click()
    await page.locator('#webhook-title', { hasText: endpoint }).waitFor()
    await page.locator('#webhook button.disable').click()
    await confirm(page, 'they have not paid')
    await page.locator('#webhook .facts', { hasText: 'they have not paid' }).waitFor()
    await row.locator('.badge', { hasText: 'disabled' }).waitFor()
    expect(await webhooks.endpoints.get(endpoint)).toMatchObject({ state: 'disabled' })
    await page.locator('#webhook button.enable').click()
    await confirm(page, 'they have paid')
    await page.locator('#webhook .timeline', { hasText: 'enabled manually' }).waitFor()
    await row.locator('.badge', { hasText: 'active' }).waitFor()
    await page.locator('#webhook button', { hasText: 'Its deliveries' }).click()
    await page.locator('#deliveries-rows tr', { hasText: 'delivered' }).waitFor()
    expect(trouble).toEqual([])
    await page.context().close()
  })

  test('a script in a client, a topic, a type, an event and an answer stays text', async () => {
    await sessions.register(script)
    await webhooks.endpoints.add({ topic: script, url: `${hooks.url}/?${encodeURIComponent(script)}` })
    const headers = { 'ce-type': script }
    await webhooks.publisher.publish([{ id: script, topic: script, body: Buffer.from(script), headers }])
    hooks.answer((_hook, res) => res.writeHead(500).end(script))
    await webhooks.runOnce()
    hooks.answer((_hook, res) => res.end())
    const { page, trouble } = await openPage(browser, `${admin.url}/#view=sessions`)
    await unlock(page, token)
    await page.locator('#sessions-rows button', { hasText: script }).click()
    await page.locator('#session .facts').waitFor()
    expect(await page.locator('#session-title').textContent()).toBe(script)
    await page.locator('#tab-webhooks').click()
    await page.locator('#endpoints-rows tr', { hasText: script }).waitFor()
    await page.locator('#deliveries-rows button', { hasText: script }).click()
    await page.locator('#webhook button', { hasText: 'Show what was sent' }).click()
    await page.locator('#webhook pre').nth(1).waitFor()
    expect(await page.locator('#webhook pre').allTextContents()).toEqual([script, `1. ${script}`])
    expect(await page.locator('main :is(script, img)').count()).toBe(0)
    expect(trouble).toEqual([])
    await page.context().close()
  })

  test('pages follow each other, and a search begins at the first one', async () => {
    for (let at = 0; at < 30; at++) await sessions.register(`page-${String(at).padStart(2, '0')}`)
    for (let at = 0; at < 30; at++) await webhooks.endpoints.add({ topic: 'pages', url: `${hooks.url}/${at}` })
    const ids = Array.from({ length: 2 }, (_, at) => ({ id: `pages-${at}`, topic: 'pages', body: Buffer.from('{}') }))
    await webhooks.publisher.publish(ids.map((event) => ({ ...event, headers: { 'ce-type': 'order.paid' } })))
    const { page, trouble } = await openPage(browser, `${admin.url}/#view=sessions`)
    const turn = async (place: string): Promise<void> => {
      await page.locator(`#${place}-page`, { hasText: '25 shown, more follow' }).waitFor()
      const first = await page.locator(`#${place}-rows tr`).allTextContents()
      await page.locator(`#${place}-next`).click()
      await page.locator(`#${place}-first:not([disabled])`).waitFor()
      const second = await page.locator(`#${place}-rows tr`).allTextContents()
      expect(first.filter((row) => second.includes(row))).toEqual([])
    }
    await page.locator('#sessions-client').fill('page-')
    await page.locator('#sessions-filters button').click()
    await turn('sessions')
    expect(await page.locator('#sessions-rows button').count()).toBe(5)
    await page.locator('#sessions-filters button').click()
    await page.locator('#sessions-first[disabled]').waitFor()
    await page.locator('#tab-webhooks').click()
    await page.locator('#endpoints-topic').fill('pages')
    await page.locator('#endpoints-filters button').click()
    await turn('endpoints')
    await page.locator('#delivery-states label', { hasText: 'pending' }).click()
    await page.locator('#deliveries-page', { hasText: 'more follow' }).waitFor()
    expect(trouble).toEqual([])
    await page.context().close()
  })

  test('a store without webhooks says so in both places, and one without sessions as well', async () => {
    await using other = await adminOver({ ...memoryStore(), name: 'homemade' })
    const { page, trouble } = await openPage(browser, other.url)
    await page.locator('#tab-sessions').click()
    await page.locator('#sessions-none', { hasText: 'The homemade store keeps no sessions.' }).waitFor()
    await page.locator('#tab-webhooks').click()
    for (const place of ['endpoints', 'deliveries'])
      await page.locator(`#${place}-none`, { hasText: 'The homemade store keeps no webhooks.' }).waitFor()
    expect(trouble).toEqual([])
    await page.context().close()
  })

  test.each([390, 1440])('both fit %i pixels, in the dark too, with everything that they can show', async (width) => {
    const long = `long-${width}-${'x'.repeat(180)}`
    await stuck(long)
    await refused(long, `t${width}${'t'.repeat(240)}`, 'z'.repeat(1_000))
    for (const colorScheme of ['light', 'dark'] as const) {
      const options = { viewport: { width, height: 844 }, colorScheme }
      const { page, trouble } = await openPage(browser, `${admin.url}/#view=sessions`, options)
      await unlock(page, token)
      await page.locator('#sessions-client').fill(long)
      await page.locator('#sessions-filters button').click()
      await page.locator('#sessions-rows button', { hasText: long }).click()
      await page.locator('#session button.close').waitFor()
      expect(await overflowOf(page)).toBe(0)
      await page.locator('#tab-webhooks').click()
      await page.locator('#deliveries-id').fill(long)
      await page.locator('#deliveries-filters button').click()
      await page.locator('#deliveries-rows button', { hasText: long }).click()
      await page.locator('#webhook button', { hasText: 'Show what was sent' }).click()
      await page.locator('#webhook pre').nth(1).waitFor()
      expect(await overflowOf(page)).toBe(0)
      expect(trouble).toEqual([])
      await page.context().close()
    }
  })

  test('a screen reader finds the views, their searches and what changes', async () => {
    const { page } = await openPage(browser, `${admin.url}/#view=sessions`)
    for (const [view, searches, fields] of [
      ['Sessions', ['Sessions'], ['Service, such as tills/sessions', 'Client, or how it begins']],
      ['Webhooks', ['Endpoints', 'Deliveries'], ['Topic of the endpoint', 'Event id', 'Endpoint id']],
    ] as const) {
      await page.getByRole('tab', { name: view }).click()
      expect(await page.getByRole('tabpanel', { name: view }).count()).toBe(1)
      for (const name of searches) expect(await page.getByRole('search', { name, exact: true }).count(), name).toBe(1)
      for (const name of fields) expect(await page.getByLabel(name, { exact: true }).count(), name).toBe(1)
    }
    for (const name of ['State of the endpoint', 'State of the delivery'])
      expect(await page.getByRole('group', { name }).count(), name).toBe(1)
    const nameless = await page
      .locator('button:visible')
      .evaluateAll((buttons) => buttons.filter((button) => !(button.textContent ?? '').trim()).length)
    expect(nameless).toBe(0)
    await page.context().close()
  })
})
