// The view of messages in a real browser: what comes from a message, a handler or a broker is only ever text, nothing is redriven without
// token, reason and confirmation, and everything can be done with the keyboard.

import { afterAll, beforeAll, expect, test } from 'vitest'
import { startAdmin } from '../../src/gateway/admin.ts'
import { createOnce } from '../../src/index.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { type DashboardSubject, dashboardSubject, secret, token } from '../messages/dashboard-subject.ts'
import { type MessagesGround, startSqliteMessages } from '../messages/grounds.ts'
import { message } from '../messages/inbox-subject.ts'
import { needs } from '../servers/needs.ts'
import { openBrowser, openPage, overflowOf, tabTo, unlock } from './browser.ts'
import type { Browser, Page } from './browser.ts'

const script = '<img/src=x/onerror=alert(1)><script>alert(2)</script>'

needs('chromium').describe('messages in a browser', () => {
  let browser: Browser
  let ground: MessagesGround
  let subject: DashboardSubject
  beforeAll(async () => {
    ground = await startSqliteMessages()
    subject = await dashboardSubject(ground)
    browser = await openBrowser()
  })
  afterAll(async () => {
    await browser.close()
    await subject[Symbol.asyncDispose]()
    await ground[Symbol.asyncDispose]()
  })

  const openMessage = async (page: Page, place: 'inbox' | 'outbox', id: string): Promise<void> => {
    await page.locator(`#${place}-rows button`, { hasText: id }).click()
    await page.locator('#message-title', { hasText: id }).waitFor()
    await page.locator('#message .facts').waitFor()
  }

  test('a script in an id, a body, an error, a topic and a key stays text', async () => {
    await subject.inbox.handle(message(script, { text: `{"name":"${script}"}` }), () => {
      throw new Error(script)
    })
    const hostile = { topic: script, key: script, type: script }
    const [letter] = await subject.refuse({ parkAfter: 1 }, hostile)
    const { page, trouble } = await openPage(browser, `${subject.url}/#view=messages`)
    await unlock(page, token)
    await openMessage(page, 'inbox', script)
    await page.locator('#message button', { hasText: 'Show what it says' }).click()
    await page.locator('#message pre').nth(1).waitFor()
    expect(await page.locator('#message pre').first().textContent()).toBe(script)
    const text = (await page.locator('#message pre').nth(1).textContent())!
    expect(JSON.parse(text)).toMatchObject({ id: script, body: `{"name":"${script}"}` })
    await openMessage(page, 'outbox', letter!)
    expect(await page.locator('#message .facts').textContent()).toContain(script)
    await page.locator('#message button', { hasText: 'Show what it says' }).click()
    await page.locator('#message pre', { hasText: secret }).waitFor()
    expect(await page.locator('main :is(script, img)').count()).toBe(0)
    expect(trouble).toEqual([])
    await page.context().close()
  })

  test('a parked message is found and redriven with the keyboard alone, after a reason, and its timeline tells why', async () => {
    for (const id of ['order-1', 'order-2']) await subject.park(id)
    const { page, trouble } = await openPage(browser, subject.url)
    await tabTo(page, '#unlock')
    await page.keyboard.press('Enter')
    await page.keyboard.type(token)
    await page.keyboard.press('Enter')
    await page.locator('#token-dialog').waitFor({ state: 'hidden' })
    await tabTo(page, '#tab-keys')
    await page.keyboard.press('ArrowRight')
    expect(await page.evaluate('document.activeElement.id')).toBe('tab-messages')
    await tabTo(page, '#inbox-id')
    await page.keyboard.type('order-1')
    await page.keyboard.press('Enter')
    await page.locator('#inbox-page', { hasText: /^1 shown$/ }).waitFor()
    await tabTo(page, '#inbox-rows button')
    await page.keyboard.press('Enter')
    await page.locator('#message .facts').waitFor()
    await page.locator('#message:focus').waitFor()
    await tabTo(page, '#message .actions button.redrive')
    await page.keyboard.press('Enter')
    expect(await page.evaluate('document.activeElement.id')).toBe('reason')
    // Without a reason nothing happens, and Escape is a way out.
    await tabTo(page, '#change-confirm')
    await page.keyboard.press('Enter')
    expect(await page.locator('#change-dialog').isVisible()).toBe(true)
    await page.keyboard.press('Escape')
    const redriven = async (): Promise<boolean[]> =>
      (await subject.inbox.parked({ id: 'order-1' })).map(({ isRedriven }) => isRedriven)
    expect(await redriven()).toEqual([false])
    await page.locator('#message .actions button.redrive').focus()
    await page.keyboard.press('Enter')
    await page.keyboard.type('the address was mended')
    await tabTo(page, '#change-confirm')
    await page.keyboard.press('Enter')
    await page.locator('#change-dialog').waitFor({ state: 'hidden' })
    await page.locator('#message .timeline', { hasText: 'redriven manually' }).waitFor()
    expect(await page.locator('#message .timeline').textContent()).toContain('the address was mended')
    expect(await page.locator('#message .actions button.redrive').count()).toBe(0)
    await page.locator('#inbox-rows', { hasText: 'redriven' }).waitFor()
    expect(await redriven()).toEqual([true])
    expect((await subject.inbox.parked({ id: 'order-2' })).map(({ isRedriven }) => isRedriven)).toEqual([false])
    expect(trouble).toEqual([])
    await page.context().close()
  })

  test('the outbox tells how far behind it is, and a dead letter is redriven', async () => {
    const [id] = await subject.refuse({ skipAfter: 1 }, { topic: 'mails', key: 'order-3', type: 'mail.due' })
    const { page, trouble } = await openPage(browser, `${subject.url}/#view=messages`)
    await page.locator('#outbox-status', { hasText: 'no relay works on' }).waitFor()
    expect(await page.locator('#outbox-status').textContent()).toMatch(/Unsent0.*Dead1/)
    const move = (by: string): Promise<unknown> =>
      ground.ask(`update onceonly_outbox_lanes set position = position ${by} where lane = 1`)
    await move('+ 10000')
    await page.locator('#messages-again').click()
    await page.locator('#outbox-status', { hasText: 'Unsent10,000 or more' }).waitFor()
    await move('- 10000')
    await page.locator('#outbox-topic').fill('mails')
    await page.locator('#outbox-filters button').click()
    await openMessage(page, 'outbox', id!)
    // Without the token there is nothing to press, and no reason is shown.
    expect(await page.locator('#message button').count()).toBe(0)
    expect(await page.locator('#message').textContent()).not.toContain('wxyz')
    await unlock(page, token)
    await page.locator('#message button', { hasText: 'Redrive' }).click()
    expect(await page.locator('#change-words').textContent()).toContain(
      'A dead row arrives after those that overtook it',
    )
    await page.locator('#reason').fill('the broker has the topic now')
    await page.locator('#change-confirm').click()
    await page.locator('#outbox-none', { hasText: 'There is no such row.' }).waitFor()
    await page.locator('#message .timeline', { hasText: 'the broker has the topic now' }).waitFor()
    expect(await subject.open.outbox.deadLetters({ id: id!, state: 'waiting' })).toHaveLength(1)
    await page.locator('#outbox-states label', { hasText: 'waiting' }).click()
    await page.locator('#outbox-rows button', { hasText: id! }).waitFor()
    expect(trouble).toEqual([])
    await page.context().close()
  })

  test('a dead letter is discarded after a reason, and what was done stays to be read', async () => {
    const [id] = await subject.refuse({ skipAfter: 1 }, { topic: 'tests', key: 'order-4' })
    const { page, trouble } = await openPage(browser, `${subject.url}/#view=messages`)
    await unlock(page, token)
    await page.locator('#outbox-topic').fill('tests')
    await page.locator('#outbox-filters button').click()
    await openMessage(page, 'outbox', id!)
    await page.locator('#message button.discard').click()
    expect(await page.locator('#change-words').textContent()).toContain('never sent')
    await page.locator('#reason').fill('it was a test')
    await page.locator('#change-confirm').click()
    await page.locator('#outbox-none', { hasText: 'There is no such row.' }).waitFor()
    await page.locator('#message .timeline', { hasText: 'discarded manually' }).waitFor()
    expect(await page.locator('#message button').count()).toBe(0)
    expect(await subject.open.outbox.deadLetters({ id: id! })).toEqual([])
    expect(trouble).toEqual([])
    await page.context().close()
  })

  test('pages follow each other, and a reason to park chooses', async () => {
    for (let at = 0; at < 30; at++) await subject.park(`page-${String(at).padStart(2, '0')}`)
    const { page } = await openPage(browser, `${subject.url}/#view=messages`)
    await page.locator('#inbox-page', { hasText: '25 shown, more follow' }).waitFor()
    const first = await page.locator('#inbox-rows button').allTextContents()
    await page.locator('#inbox-next').click()
    await page.locator('#inbox-first:not([disabled])').waitFor()
    const second = await page.locator('#inbox-rows button').allTextContents()
    expect(first.filter((id) => second.includes(id))).toEqual([])
    await page.locator('#inbox-codes label', { hasText: 'too old' }).click()
    await page.locator('#inbox-none', { hasText: 'No message is parked.' }).waitFor()
    await page.context().close()
  })

  test('a store without messages says so in both places', async () => {
    const store = memoryStore()
    const once = createOnce({ store, scope: 'shop' })
    const listen = { host: '127.0.0.1', port: 0 }
    const admin = await startAdmin({ once, store, metrics: { text: () => '' }, listen, notReady: () => undefined })
    const { page, trouble } = await openPage(browser, admin.url)
    await page.locator('#tab-messages').click()
    for (const place of ['inbox', 'outbox'])
      await page.locator(`#${place}-none`, { hasText: 'The memory store keeps no messages.' }).waitFor()
    await page.locator('#tab-keys').click()
    expect(await page.locator('#view-keys').isVisible()).toBe(true)
    expect(trouble).toEqual([])
    await page.context().close()
    await admin.close()
    await once.close()
  })

  test.each([390, 1440])('fits %i pixels, in the dark too, with everything that it can show', async (width) => {
    const id = `long-${width}-${'x'.repeat(240)}`
    await subject.park(id, 'y'.repeat(500))
    await subject.refuse({ parkAfter: 1 }, { topic: 't'.repeat(250), key: 'k'.repeat(250) })
    for (const colorScheme of ['light', 'dark'] as const) {
      const options = { viewport: { width, height: 844 }, colorScheme }
      const { page } = await openPage(browser, `${subject.url}/#view=messages`, options)
      await unlock(page, token)
      await page.locator('#inbox-id').fill(id)
      await page.locator('#inbox-filters button').click()
      await openMessage(page, 'inbox', id)
      await page.locator('#message button', { hasText: 'Show what it says' }).click()
      await page.locator('#message pre').nth(1).waitFor()
      expect(await overflowOf(page)).toBe(0)
      await page.context().close()
    }
  })

  test('a screen reader finds the views, their searches and what changes', async () => {
    const { page } = await openPage(browser, `${subject.url}/#view=messages`)
    await page.locator('#view-messages').waitFor()
    expect(await page.getByRole('tab', { selected: true }).allTextContents()).toEqual([
      expect.stringContaining('Messages'),
    ])
    expect(await page.getByRole('tabpanel', { name: 'Messages' }).count()).toBe(1)
    for (const name of ['Parked messages', 'Dead letters'])
      expect(await page.getByRole('search', { name }).count(), name).toBe(1)
    for (const name of ['Why it is parked', 'State of the row'])
      expect(await page.getByRole('group', { name }).count(), name).toBe(1)
    for (const name of ['Message id', 'Topic', 'Ordering key'])
      expect(await page.getByLabel(name, { exact: true }).count(), name).toBe(1)
    expect(await page.getByRole('status').count()).toBeGreaterThanOrEqual(3)
    const nameless = await page
      .locator('button:visible')
      .evaluateAll((buttons) => buttons.filter((button) => !(button.textContent ?? '').trim()).length)
    expect(nameless).toBe(0)
    await page.context().close()
  })
})
