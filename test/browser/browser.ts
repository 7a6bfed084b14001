// Chromium with an empty profile, for the tests of the pages. What a page does behind our back fails the test: a script error,
// something that the Content-Security-Policy refused, a request to anywhere but the page's own server.

import { chromium } from 'playwright-core'
import type { Browser, BrowserContextOptions, Page } from 'playwright-core'
import { servers } from '../servers/index.ts'

export type { Browser, Page } from 'playwright-core'

export interface Watched {
  readonly page: Page
  /** What went wrong, in words; empty if nothing did. */
  readonly trouble: readonly string[]
}

// As root in a container there is no sandbox to be had; the rest keeps it from calling home.
const flags = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--no-first-run',
]

export async function openBrowser(): Promise<Browser> {
  const found = servers.chromium.find()
  if (!found.found) throw new Error(`${found.reason}; cure: ${found.cure}`)
  return chromium.launch({ executablePath: found.where, args: flags })
}

export async function openPage(browser: Browser, url: string, options: BrowserContextOptions = {}): Promise<Watched> {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options })
  const page = await context.newPage()
  const trouble: string[] = []
  page.on('pageerror', (error) => trouble.push(`script error: ${error.message}`))
  page.on('dialog', (dialog) => {
    trouble.push(`a script opened a dialog: ${dialog.message()}`)
    void dialog.dismiss()
  })
  page.on('console', (message) => {
    // A request that failed is what the demo is about; a policy that refused something is not.
    if (/Content Security Policy/i.test(message.text())) trouble.push(message.text())
  })
  page.on('request', (request) => {
    if (new URL(request.url()).origin !== new URL(url).origin) trouble.push(`asked ${request.url()}`)
  })
  await page.goto(url)
  return { page, trouble }
}

/** How many pixels the page is wider than the window. */
export async function overflowOf(page: Page): Promise<number> {
  return page.evaluate('document.documentElement.scrollWidth - innerWidth')
}

/** Press Tab until the element has the focus; answers how often. */
export async function tabTo(page: Page, selector: string): Promise<number> {
  const focused = `document.activeElement === document.querySelector(${JSON.stringify(selector)})`
  for (let presses = 1; presses <= 60; presses++) {
    await page.keyboard.press('Tab')
    if (await page.evaluate(focused)) return presses
  }
  throw new Error(`${selector} cannot be reached with the Tab key`)
}

/** Gives the dashboard its token. */
export async function unlock(page: Page, token: string): Promise<void> {
  await page.locator('#unlock').click()
  await page.locator('#token').fill(token)
  await page.keyboard.press('Enter')
  await page.locator('#token-dialog').waitFor({ state: 'hidden' })
}
