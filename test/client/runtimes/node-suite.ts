// What the client has on Node only, on whatever Node this is: keys in files and in SQLite, and undici's interceptor. Says "ok" at the end.

import { Agent, request } from 'undici'
import { createClient, retryBudget } from '../../../src/client/client.ts'
import type { KeyStore } from '../../../src/client/client.ts'
import { fileKeys, keyedInterceptor, sqlKeys } from '../../../src/client/node.ts'
import { sqliteStore } from '../../../src/stores/sqlite.ts'
import { same } from './same.ts'

const [url = '', folder = ''] = process.argv.slice(2)
const budget = retryBudget({ burst: 100 })
const post = { method: 'POST' as const, body: '{"cents":500}' }
const answer = { received: post.body, runs: 1 }

async function paidOnce(kind: string, open: () => KeyStore): Promise<void> {
  const client = createClient({ keys: open(), budget })
  const lost = await client.fetch(`${url}/lose-reply`, post, { operation: `pay:${kind}` })
  same(`${kind}: answer`, await lost.json(), answer)
  const resumed: unknown[] = []
  const restarted = createClient({ keys: open(), budget })
  await restarted.resume(async (response) => resumed.push([response.replayed, await response.json()]))
  same(`${kind}: resumed`, resumed, [[true, answer]])
  same(`${kind}: nothing is pending`, await client.pending(), [])
}

await paidOnce('files', () => fileKeys(folder))
const store = sqliteStore({ path: `${folder}/keys.db` })
const keys = sqlKeys({ store })
await keys.migrate()
await paidOnce('sqlite', () => keys)
const dispatcher = new Agent().compose(keyedInterceptor({ keys: fileKeys(folder), budget }))
const { statusCode, body } = await request(`${url}/lose-reply`, { ...post, dispatcher })
same('undici', [statusCode, await body.json()], [201, answer])
console.log('ok')
// What is kept alive for a next request must not keep this process.
process.exit()
