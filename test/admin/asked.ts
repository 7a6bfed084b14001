// The admin server over a store, asked over HTTP as its page does.
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { expect } from 'vitest'
import type { Inspectable, Store } from '../../src/core/store.ts'
import { startAdmin } from '../../src/gateway/admin.ts'
import { createOnce } from '../../src/index.ts'

export const token = 'a token of enough characters'
export const withToken = { authorization: `Bearer ${token}` }

export interface Answered {
  readonly status: number
  readonly text: string
}

export interface AskedAdmin extends AsyncDisposable {
  readonly url: string
  get(path: string, query?: Record<string, string>, headers?: Record<string, string>): Promise<Answered>
  post(path: string, body: object, headers?: Record<string, string>): Promise<Answered>
}

export async function adminOver(store: Store & Inspectable): Promise<AskedAdmin> {
  const once = createOnce({ store, scope: 'shop', sweepEveryMs: false })
  const listen = { host: '127.0.0.1', port: 0 }
  const metrics = { text: () => '' }
  const admin = await startAdmin({ once, store, metrics, listen, token, notReady: () => undefined })
  const answered = async (response: Response): Promise<Answered> => ({
    status: response.status,
    text: await response.text(),
  })
  return {
    url: admin.url,
    get: async (path, query = {}, headers = {}) =>
      answered(await fetch(`${admin.url}${path}?${new URLSearchParams(query)}`, { headers })),
    post: async (path, body, headers = withToken) =>
      answered(
        await fetch(`${admin.url}${path}`, {
          method: 'POST',
          headers: { 'content-type': 'application/json', ...headers },
          body: JSON.stringify(body),
        }),
      ),
    async [Symbol.asyncDispose]() {
      await admin.close()
      await once.close()
    },
  }
}

// What these paths say on a store that keeps nothing of the kind, or has no tables for it. It is no failure of the store.
export async function expectNothingKept(
  store: Store & Inspectable,
  paths: readonly string[],
  words: string,
): Promise<void> {
  await using admin = await adminOver(store)
  const told: unknown[] = []
  const hear = (event: unknown): void => void told.push(event)
  for (const name of ['store-failed', 'store-unfit']) subscribe(`onceonly:${name}`, hear)
  process.on('warning', hear)
  try {
    for (const path of paths) {
      const { status, text } = await admin.get(path)
      expect([status, JSON.parse(text)]).toEqual([200, { missing: expect.stringContaining(words) as string }])
    }
    await new Promise(setImmediate)
    expect(told).toEqual([])
  } finally {
    for (const name of ['store-failed', 'store-unfit']) unsubscribe(`onceonly:${name}`, hear)
    process.off('warning', hear)
  }
}
