// W1: verifying a webhook of Standard Webhooks, against the official package. Both are given what a server has: the bytes of the body and
// the headers. The official one also parses the body, so ours does, too.

import { createWebhookSigner, newWebhookSecret, standardWebhooks } from '../src/webhooks.ts'
import { requireStandardWebhooks, standardwebhooks } from '../test/servers/standardwebhooks.ts'
import { compare } from './measure.ts'
import type { Variant } from './measure.ts'
import { report, reportRates } from './report.ts'

const sizes = [
  { name: '300 bytes', bytes: 300, atOnce: 500 },
  { name: '20 KB', bytes: 20_000, atOnce: 50 },
  { name: '256 KB', bytes: 256_000, atOnce: 5 },
] as const

export async function benchWebhooks(): Promise<void> {
  const found = standardwebhooks.find()
  if (!found.found) {
    process.stdout.write(`W1 skipped: ${found.reason}; ${found.cure}\n`)
    return
  }
  const secret = newWebhookSecret()
  const official = new (requireStandardWebhooks())(secret)
  const scheme = standardWebhooks({ secrets: secret })
  for (const { name, bytes, atOnce } of sizes) {
    const body = Buffer.from(JSON.stringify({ type: 'order.paid', data: 'x'.repeat(bytes - 32) }))
    const signed = createWebhookSigner({ secrets: secret }).sign({ id: 'evt_42', sentAtMs: Date.now(), body })
    // As a server gives them: among others.
    const headers = { host: 'shop.example', 'content-type': 'application/json', 'user-agent': 'Webhooks', ...signed }
    const theirs: Variant = {
      name: 'standardwebhooks',
      async work() {
        for (let count = 0; count < atOnce; count++) official.verify(body, headers)
      },
    }
    const ours: Variant = {
      name: 'onceonly/webhooks',
      async work() {
        for (let count = 0; count < atOnce; count++) {
          scheme.verify({ headers, body })
          JSON.parse(body.toString())
        }
      },
    }
    const compared = await compare([theirs, ours], { concurrency: 1, operations: 20 })
    // By processor time, which says the same on a busy machine.
    const what = `Processor time of the official package to verify a webhook of ${name}, against ours`
    report({ id: 'W1', what, measured: 1 / compared.cpu, atLeast: 2 })
    reportRates([theirs.name, ours.name], compared)
  }
}
