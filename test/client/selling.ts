// A till that sells one article, after it has finished what processes before it left behind. It is killed at its n-th step between taking
// its numbers and having settled the answer: node selling.ts FOLDER URL USED ARTICLE STEP.

import { appendFileSync, writeSync } from 'node:fs'
import { createSessionClient } from '../../src/client/client.ts'
import type { ClientResponse, KeyStore } from '../../src/client/client.ts'
import { fileKeys } from '../../src/client/node.ts'

const [folder = '', url = '', used = '', article = '', lastStep = '0'] = process.argv.slice(2)
let steps = 0

function step(name: string): void {
  if (++steps !== Number(lastStep)) return
  writeSync(1, `killed ${name}\n`)
  process.kill(process.pid, 'SIGKILL')
}

/** Each call is two steps: before it, and after it. */
function stepping<Args extends unknown[], T>(name: string, call: (...args: Args) => Promise<T>) {
  return async (...args: Args): Promise<T> => {
    step(`before ${name}`)
    const result = await call(...args)
    step(`after ${name}`)
    return result
  }
}

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
