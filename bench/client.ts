// A retry storm: 10,000 calls to a server that answers 503 to every one of them. What a call costs that server, with the client's
// retry budget and with got, which retries each call by itself. Neither count depends on a clock: pauses take no time here.

import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import got from 'got'
import { createClient, memoryKeys, retryBudget } from '../src/client/client.ts'
import { plainClock } from '../src/core/clock.ts'
import { report } from './report.ts'

const calls = 10_000
const atOnce = 100

/** The longest pause of the client is 20 s. What is longer is a time limit, and does not come into play. */
const hurried = {
  ...plainClock,
  elapsed: () => 0,
  schedule: (run: () => void, delayMs: number) => plainClock.schedule(run, delayMs > 20_000 ? delayMs : 0),
}

export async function benchClient(): Promise<void> {
  let sent = 0
  const server = createServer((request, response) => {
    sent++
    request.resume()
    response.writeHead(503).end()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const perCall = async (call: () => Promise<unknown>): Promise<number> => {
    sent = 0
    let begun = 0
    const caller = async (): Promise<void> => {
      while (begun++ < calls) await call().catch(() => {})
    }
    await Promise.all(Array.from({ length: atOnce }, caller))
    return sent / calls
  }
  const budget = retryBudget({ perSecond: 0, clock: hurried })
  const client = createClient({ keys: memoryKeys(), budget, clock: hurried })
  const ours = await perCall(() => client.fetch(url, { method: 'POST', body: '{}' }))
  // Its default is two retries.
  const calculateDelay = ({ computedValue }: { computedValue: number }): number => (computedValue ? 1 : 0)
  const plain = got.extend({ retry: { methods: ['POST'], calculateDelay } })
  const theirs = await perCall(() => plain.post(url, { body: '{}' }))
  server.close()
  server.closeAllConnections()
  report({
    id: 'client-storm',
    what: `requests per call in an outage, ${calls.toLocaleString('en')} calls, onceonly/client`,
    measured: ours,
    atMost: 1.21,
  })
  report({ id: 'client-storm-got', what: 'the same, got with its own retries', measured: theirs })
}
