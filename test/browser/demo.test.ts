// The demo as a person sees it: every fault is switched on in a real browser, Pay is pressed, and the ledger of the payment
// service is read, which knows nothing of onceonly.

import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { startDemo } from '../../src/cli/demo.ts'
import type { RunningDemo } from '../../src/cli/demo.ts'
import { needs } from '../servers/needs.ts'
import { pollUntil } from '../servers/poll.ts'
import { openBrowser, openPage, overflowOf, tabTo } from './browser.ts'
import type { Browser, Page } from './browser.ts'

// Processes are started and killed, on a machine that may be busy.
const patient = { timeout: 120_000 }

needs('chromium').describe('the demo in a browser', () => {
  let browser: Browser
  let demo: RunningDemo
  // One of its own, so that what is left behind can be told from what other tests use.
  const temporary = mkdtempSync(join(tmpdir(), 'onceonly-browser-'))
  beforeAll(async () => {
    process.env['TMPDIR'] = temporary
    demo = await startDemo()
    browser = await openBrowser()
  })
  afterAll(async () => {
    await browser.close()
    await demo.close()
    const left = readdirSync(temporary).filter((name) => name.startsWith('onceonly-demo-'))
    rmSync(temporary, { recursive: true, force: true })
    expect(left).toEqual([])
  })

  async function openDemo(options = {}): Promise<{ page: Page; trouble: readonly string[] }> {
    const opened = await openPage(browser, demo.page, options)
    await opened.page.locator('#pay:enabled').waitFor()
    return opened
  }

  /** Answers what the ledger has of the order that was paid, asked for here and not by the page. */
  async function payWith(page: Page, road: 'with' | 'without', faults: readonly string[]): Promise<number> {
    await page.locator(`.road label:has(input[value=${road}])`).click()
    for (const box of await page.locator('#faults input').all()) {
      await box.setChecked(faults.includes((await box.getAttribute('value'))!))
    }
    const order = (await page.locator('#order').textContent())!
    await page.locator('#pay').click()
    await page.locator('#pay:enabled').waitFor({ timeout: 60_000 })
    const charges = (await (await fetch(`${demo.page}/api/ledger?order=${order}`)).json()) as unknown[]
    expect(await page.locator(`#score-${road}`).textContent()).toBe(String(charges.length))
    expect(await page.locator(`#charges-${road} li`).count()).toBe(charges.length)
    return charges.length
  }

  describe('each fault: one charge with onceonly, and without', () => {
    test.each([
      { fault: 'response-lost', without: 3 },
      // On a busy machine the second try gives up before the service is back, and is no charge.
      { fault: 'server-killed', without: 2 },
      { fault: 'slow', without: 3 },
      { fault: 'duplicate-click', without: 2 },
      { fault: 'two-tabs', without: 2 },
      // There is no store to be down.
      { fault: 'store-down', without: 1 },
    ])('$fault: at least $without', async ({ fault, without }) => {
      const { page, trouble } = await openDemo()
      expect(await payWith(page, 'with', [fault])).toBe(1)
      // More than that on a machine so busy that an answer without a fault takes a second, too.
      expect(await payWith(page, 'without', [fault])).toBeGreaterThanOrEqual(without)
      expect(trouble).toEqual([])
      await page.context().close()
    })

    test('all at once: one charge', async () => {
      const { page } = await openDemo()
      const all = ['response-lost', 'slow', 'duplicate-click', 'two-tabs', 'store-down']
      expect(await payWith(page, 'with', all)).toBe(1)
      await page.context().close()
    })
  })

  test('a response that is lost is replayed to the retry, and the life of the key tells it', async () => {
    const { page } = await openDemo()
    await payWith(page, 'with', ['response-lost'])
    // On a busy machine an answer that would be lost can also come too late.
    expect(await page.locator('#requests li:is(.lost, .timeout)').count()).toBeGreaterThanOrEqual(2)
    expect(await page.locator('#requests li.replayed .words').textContent()).toMatch(/^201, replayed: charge \d+$/)
    const life = await page.locator('#life .timeline b').allTextContents()
    expect(life.filter((what) => what === 'claimed')).toHaveLength(1)
    expect(life.filter((what) => what === 'settled')).toHaveLength(1)
    expect(life.at(-1)).toBe('replayed')
    await page.context().close()
  })

  test('a server that is killed after the charge leaves the key in doubt, and the customer is told so', async () => {
    const { page } = await openDemo()
    expect(await payWith(page, 'with', ['server-killed'])).toBe(1)
    expect(await page.locator('#said').textContent()).toContain('in doubt')
    expect(await page.locator('#life').textContent()).toContain('doubted')
    await page.context().close()
  })

  test('a store that is down: nothing is charged until it is back', async () => {
    const { page } = await openDemo()
    expect(await payWith(page, 'with', ['store-down'])).toBe(1)
    const requests = await page.locator('#requests li').evaluateAll((items) => items.map((item) => item.className))
    expect(requests.slice(0, 2).every((is) => is === 'refused' || is === 'timeout')).toBe(true)
    expect(requests.at(-1)).toMatch(/^(paid|replayed)$/)
    await page.context().close()
  })

  test('relay and mailers are killed and brought back, and the counts tell what each guarantee is worth', async () => {
    const { page, trouble } = await openPage(browser, `${demo.page}/#messages`)
    const errors: string[] = []
    page.on('console', (said) => void (said.type() === 'error' && errors.push(said.text())))
    const count = async (delivery: string, name: string): Promise<number> =>
      Number(await page.locator(`#mailer-${delivery} [data-count=${name}]`).textContent())
    const settled = async (orders: number): Promise<void> => {
      await page.locator('#messages[data-settled=true] #count-orders', { hasText: `${orders}` }).waitFor(patient)
    }
    const bringBack = async (orders: number): Promise<void> => {
      await page.locator('#bring-back:enabled').click(patient)
      await page.locator('#bring-back:disabled').waitFor(patient)
      await settled(orders)
      expect(await count('effectively-once', 'once')).toBe(orders)
      expect(await count('effectively-once', 'more')).toBe(0)
    }
    await page.locator('#kill-relay:enabled').waitFor(patient)

    await page.locator('#kill-relay').click()
    await page.locator('#relay-state', { hasText: 'will be killed' }).waitFor(patient)
    await page.locator('#place-many').click()
    await page.locator('#relay-state', { hasText: /^killed$/ }).waitFor(patient)
    // It has published rows, and has marked none of them.
    await page.locator('#count-rows', { hasText: /^25$/ }).waitFor(patient)
    expect(Number(await page.locator('#count-published').textContent())).toBeGreaterThan(0)
    await bringBack(25)
    expect(await page.locator('#count-published-again').textContent()).toMatch(/^\d+ of them again$/)
    expect(await count('at-least-once', 'more')).toBeGreaterThan(0)
    expect(await count('at-most-once', 'never')).toBe(0)

    for (const [index, point] of ['commit', 'acknowledgement'].entries()) {
      const doubled = await count('at-least-once', 'more')
      await page.locator(`#kill-${point}:enabled`).click(patient)
      await page.locator('#place-one').click()
      for (const badge of await page.locator('.mailer .badge').all())
        await badge.filter({ hasText: /^killed$/ }).waitFor(patient)
      await bringBack(26 + index)
      expect(await count('at-most-once', 'never')).toBe(index + 1)
      // What was not committed is not there to be doubled. A slow machine may deliver others again.
      if (point === 'acknowledgement') expect(await count('at-least-once', 'more')).toBeGreaterThan(doubled)
    }

    await page.locator('#again').click()
    await settled(27)
    await page.locator('#mailer-at-least-once [data-count=more]', { hasText: /^27$/ }).waitFor(patient)
    await settled(27)
    expect(await count('effectively-once', 'once')).toBe(27)
    expect(await page.locator('#messages-said').textContent()).toContain('Effectively once: one mail each.')
    expect(await page.locator('#story li.bad').count()).toBeGreaterThan(0)
    expect([...trouble, ...errors]).toEqual([])
    await page.context().close()
  })

  test('the three guarantees under the same faults', async () => {
    const { page, trouble } = await openPage(browser, `${demo.page}/#guarantees`)
    await page.locator('#compare').click()
    await page.locator('#compare-totals tr').first().waitFor(patient)
    const rows = await page.locator('#compare-rows tr').all()
    const counts: Record<string, number[]> = {}
    for (const row of rows) {
      const mails = await row.locator('td b').allTextContents()
      counts[(await row.locator('th').textContent())!] = mails.map((text) => Number.parseInt(text, 10))
    }
    expect(Object.keys(counts)).toHaveLength(5)
    for (const [atMostOnce, , effectivelyOnce] of Object.values(counts)) {
      expect(atMostOnce).toBeLessThanOrEqual(1)
      expect(effectivelyOnce).toBe(1)
    }
    for (const fault of ['mailer killed before the commit', 'mailer killed before the acknowledgement'])
      expect(counts[fault]![0], fault).toBe(0)
    for (const fault of [
      'relay killed after publishing',
      'mailer killed before the acknowledgement',
      'delivered again',
    ])
      expect(counts[fault]![1], fault).toBeGreaterThan(1)
    expect(trouble).toEqual([])
    await page.context().close()
  })

  test('what was pending when the page was reloaded is listed, with its key, and finished: one charge', async () => {
    const { page, trouble } = await openDemo()
    for (const box of await page.locator('#faults input').all()) await box.setChecked(false)
    // The service charges, and no answer ever comes: the page is reloaded in the middle, however slow this machine is.
    await page.route('**/with/payments', (route) => void route.fetch().catch(() => {}))
    const order = (await page.locator('#order').textContent())!
    const chargesOf = async (): Promise<number> =>
      ((await (await fetch(`${demo.page}/api/ledger?order=${order}`)).json()) as unknown[]).length
    await page.locator('#pay').click()
    await page.locator('#pending li', { hasText: `pay:${order}` }).waitFor(patient)
    await pollUntil('the charge', async () => (await chargesOf()) === 1)
    await page.reload()
    await page.locator('#pending li', { hasText: `pay:${order}` }).waitFor(patient)
    await page.unrouteAll({ behavior: 'ignoreErrors' })
    expect(await page.locator('#pending li').textContent()).toContain(`key ${order}, sent, no answer yet`)
    await page.locator('#resume:enabled').click()
    await page.locator('#said.good').waitFor(patient)
    expect(await page.locator('#score-with').textContent()).toBe('1')
    expect([await page.locator('#pending li').count(), await chargesOf()]).toEqual([0, 1])
    expect(trouble).toEqual([])
    await page.context().close()
  })

  test('with the keyboard alone: choose a road and a fault, pay, and read the result', async () => {
    const { page } = await openDemo()
    await page.keyboard.press('Tab')
    expect(await page.evaluate('document.activeElement.textContent')).toBe('Skip to the demo')
    await tabTo(page, '.road input[value=with]')
    await page.keyboard.press('ArrowRight')
    expect(await page.locator('.road input[value=without]').isChecked()).toBe(true)
    await page.keyboard.press('ArrowLeft')
    await tabTo(page, '#faults input[value=duplicate-click]')
    await page.keyboard.press('Space')
    await tabTo(page, '#pay')
    await page.keyboard.press('Enter')
    await page.locator('#said.good').waitFor()
    expect(await page.locator('#score-with').textContent()).toBe('1')
    // What was done is said aloud, and the next Enter pays the next order.
    expect(await page.locator('#said').getAttribute('role')).toBe('status')
    expect(await page.evaluate('document.activeElement.id')).toBe('pay')
    await page.context().close()
  })

  test.each([390, 1440])('fits %i pixels, in each view, with all it can show', async (width) => {
    const { page } = await openDemo({ viewport: { width, height: 844 } })
    await payWith(page, 'without', ['response-lost', 'duplicate-click'])
    await payWith(page, 'with', ['response-lost', 'duplicate-click', 'two-tabs'])
    expect(await overflowOf(page)).toBe(0)
    for (const view of ['messages', 'guarantees']) {
      await page.goto(`${demo.page}/#${view}`)
      await page.locator(`#${view}`).waitFor()
      if (view === 'messages') await page.locator('#story li').first().waitFor(patient)
      expect(await overflowOf(page), view).toBe(0)
    }
    await page.context().close()
  })

  test('is dark where that is wanted, and light elsewhere', async () => {
    const background = async (colorScheme: 'dark' | 'light'): Promise<unknown> => {
      const { page } = await openDemo({ colorScheme })
      const colours: unknown = await page.evaluate('getComputedStyle(document.body).backgroundColor')
      await page.context().close()
      return colours
    }
    expect(await background('dark')).toBe('rgb(20, 21, 23)')
    expect(await background('light')).toBe('rgb(250, 249, 246)')
  })

  test('a page of another site gets nothing, by whatever name it calls this machine', async () => {
    const { host } = new URL(demo.page)
    const status = async (headers: Record<string, string>): Promise<number> =>
      (await fetch(`${demo.page}/api/about`, { headers })).status
    expect(await status({})).toBe(200)
    expect(await status({ Origin: `http://${host}` })).toBe(200)
    expect(await status({ Origin: 'https://evil.example' })).toBe(403)
    expect(await status({ 'Sec-Fetch-Site': 'cross-site' })).toBe(403)
  })

  test('all of it is in one temporary folder', () => {
    expect(readdirSync(temporary).filter((name) => name.startsWith('onceonly-demo-'))).toHaveLength(1)
  })
})
