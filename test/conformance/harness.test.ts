// The standing proof that the cases can fail: without the middleware all of them must, but for those that say what an
// application does anyway.
import { expect, test } from 'vitest'
import { type App, type AppGround, fixtureRequest, goneSignal, readBody, writeTo } from './apps/app.ts'
import { readCases } from './cases.ts'
import { dedicated } from './dedicated.ts'
import { runCase } from './runner.ts'
import { memory } from './stores.ts'

/** What holds without protection: nothing is remembered, so nothing is mixed up, and nobody is kept away. */
const holdAnyway = new Set([
  'FX-01',
  'FX-02',
  'FX-m1',
  'FX-m3',
  'KV-m3',
  'IF-04',
  'EP-01',
  'EP-m2',
  'EP-m7',
  'EP-m8',
  'EX-m1',
  'EX-m2',
  'MT-05',
  'MT-m1',
  'TS-03',
  'TS-04',
  'SE-05',
  'RL-01',
  'ST-03',
  'AB-m1',
])

async function startUnprotected({ fixture }: AppGround): Promise<App> {
  return {
    handler(request, response) {
      void (async () => {
        const front = fixture.front(request.method!, request.url!, request.headers.authorization)
        const asked = fixtureRequest({
          method: request.method!,
          url: request.url!,
          header: (name) => request.headers[name] as string | undefined,
          body: await readBody(request),
          idempotency: undefined,
          gone: goneSignal(response),
        })
        await writeTo(response, front.answer ?? (await fixture.handle(asked)))
      })().catch(() => (response.headersSent ? response.destroy() : response.writeHead(500).end()))
    },
    close: async () => {},
  }
}

const cases = [...readCases('cases.json'), ...readCases('more-cases.json')].filter(({ id }) => !(id in dedicated))

test.each(cases)('$id is seen to fail without protection', async (each) => {
  // What waits for a duplicate to be held back would wait for ever.
  const subject = { adapter: 'unprotected', start: startUnprotected, storeKind: memory, patienceMs: 500 }
  const ended = await runCase(subject, each).then(
    () => 'holds',
    () => 'fails',
  )
  expect(ended).toBe(holdAnyway.has(each.id) ? 'holds' : 'fails')
})
