// The core of the client on whatever runtime this is, against a real server that loses a reply now and then. Says "ok" at the end.

import { createClient, memoryKeys, OnceError, retryBudget } from '../../../src/client/client.ts'
import type { AttemptReport } from '../../../src/client/client.ts'
import { same } from './same.ts'

const [url = ''] = process.argv.slice(2)

const keys = memoryKeys()
const reports: AttemptReport[] = []
const client = createClient({ keys, budget: retryBudget({ burst: 100 }), onAttempt: (report) => reports.push(report) })
const post = (body: RequestInit['body']): RequestInit => ({ method: 'POST', body: body! })
const failure = (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => undefined,
    (error: unknown) => error,
  )

// The server cuts the connection after it has done its work: the retry gets the answer, under the same key.
const lost = await client.fetch(`${url}/lose-reply`, post('{"cents":500}'), { operation: 'pay:1' })
same('status', lost.status, 201)
same('receipt', await lost.json(), { received: '{"cents":500}', runs: 1 })
same('replayed', lost.replayed, true)
// Deno asks again by itself when a connection ends early.
same('states', [reports[0]?.state, reports.at(-1)?.state], ['sending', 'answered'])
same(
  'pending',
  (await client.pending()).map(({ state }) => state),
  ['answered'],
)
const restarted = createClient({ keys })
const resumed: unknown[] = []
await restarted.resume(async (response) => resumed.push(await response.json()))
same('resumed', resumed, [{ received: '{"cents":500}', runs: 1 }])
same('nothing is pending', await client.pending(), [])

const mismatch = client.fetch(`${url}/payments`, post('a'), { operation: 'pay:2' })
await mismatch
const error = await failure(client.fetch(`${url}/payments`, post('b'), { operation: 'pay:2' }))
same('mismatch', error instanceof OnceError && error.code, 'MISMATCH')

const form = new FormData()
form.set('a', new Blob(['file']), 'a.txt')
const sent = await client.fetch(`${url}/lose-reply`, post(form), { operation: 'form' })
same('form', /file/.test(((await sent.json()) as { received: string }).received), true)
const stream = await client.fetch(`${url}/lose-reply`, post(new Blob(['streamed']).stream()), { operation: 'stream' })
same('stream', ((await stream.json()) as { received: string }).received, 'streamed')

const controller = new AbortController()
const hanging = failure(client.fetch(`${url}/hang`, { ...post('x'), signal: controller.signal }, { operation: 'hang' }))
controller.abort(new Error('enough'))
same('aborted', ((await hanging) as Error).message, 'enough')
const late = createClient({ keys: memoryKeys(), retry: { attemptMs: 200, totalMs: 500 } })
same('time-out', ((await failure(late.fetch(`${url}/hang`, post('x')))) as OnceError).code, 'NO_ANSWER')
// As `await using` does, which Node 22 cannot read.
const answer = await client.fetch(`${url}/payments`, post('used'), { operation: 'used' })
same('used', answer.status, 201)
await answer[Symbol.asyncDispose]()
same(
  'settled',
  (await client.pending()).some(({ operation }) => operation === 'used'),
  false,
)
console.log('ok')
// What hangs at the server must not keep this process.
process.exit()
