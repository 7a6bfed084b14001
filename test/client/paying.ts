// A process that pays one order, after it has finished what processes before it left behind. It is killed at its n-th step between
// choosing a key and having used the answer: node paying.ts FOLDER URL USED ORDER STEP. The URL is that of a provider or of a backend.

import { appendFileSync } from 'node:fs'
import { createClient } from '../../src/client/client.ts'
import type { ClientResponse, KeyStore } from '../../src/client/client.ts'
import { fileKeys } from '../../src/client/node.ts'
import { step, stepping } from './stepping.ts'

const [folder = '', url = '', used = '', order = ''] = process.argv.slice(2)

const files = fileKeys(folder)
const keys: KeyStore = {
  open: stepping('open', files.open),
  get: files.get,
  save: stepping('save', files.save),
  remove: stepping('remove', files.remove),
  list: files.list,
}
const client = createClient({
  keys,
  fetch: stepping('fetch', (input: string, init: RequestInit) => fetch(input, init)),
})

const use = async (response: ClientResponse): Promise<void> => {
  const { receipt, charge } = (await response.json()) as { receipt?: string; charge?: string }
  step('before use')
  appendFileSync(used, `${response.operation} ${receipt ?? charge}\n`)
  step('after use')
}

const { failed } = await client.resume(use)
for (const { error } of failed) throw error
if (order) {
  const init = {
    method: 'POST',
    body: JSON.stringify({ order, cents: 500 }),
    headers: { 'content-type': 'application/json' },
  }
  const response = await client.fetch(url, init, { operation: `pay:${order}` })
  await use(response)
  await response.settled()
}
