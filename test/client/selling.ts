// A till that sells one article, after it has finished what processes before it left behind. It is killed at its n-th step between taking
// its numbers and having settled the answer: node selling.ts FOLDER URL USED ARTICLE STEP.

import { appendFileSync } from 'node:fs'
import { createSessionClient } from '../../src/client/client.ts'
import type { ClientResponse, KeyStore } from '../../src/client/client.ts'
import { fileKeys } from '../../src/client/node.ts'
import { step, stepping } from './stepping.ts'

const [folder = '', url = '', used = '', article = ''] = process.argv.slice(2)

const files = fileKeys(folder)
const keys: KeyStore = {
  open: stepping('open', files.open),
  get: stepping('get', files.get),
  save: stepping('save', files.save),
  remove: stepping('remove', files.remove),
  list: files.list,
}
const till = createSessionClient({
  url,
  client: 'till-7',
  keys,
  fetch: stepping('fetch', (input: string, init: RequestInit) => fetch(input, init)),
})

const use = async (response: ClientResponse): Promise<void> => {
  const receipt = await response.text()
  step('before use')
  appendFileSync(used, `${response.operation}|${receipt}\n`)
  step('after use')
}

if (!(await till.session())) await till.register()
const { failed } = await till.resume(use)
for (const { error } of failed) throw error
if (article) {
  const response = await till.fetch('/sales', { method: 'POST', body: article }, { operation: article })
  await use(response)
  await response.settled()
}
