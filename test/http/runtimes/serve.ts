// A fetch handler behind onceonly, on Bun or Deno: both run TypeScript as it is. Says its port when it listens.

import { createOnce } from '../../../src/core/once.ts'
import { idempotency } from '../../../src/http/fetch.ts'
import { memoryStore } from '../../../src/stores/memory.ts'

type Handler = (request: Request) => Promise<Response>

interface Runtimes {
  readonly Bun?: { serve(options: { port: 0; hostname: string; fetch: Handler }): { readonly port: number } }
  readonly Deno?: {
    serve(options: { port: 0; hostname: string; onListen(at: { port: number }): void }, handler: Handler): unknown
  }
}

const once = createOnce({ store: memoryStore(), scope: 'shop' })
let runs = 0
const handler = idempotency(once, { tenant: 'shared' })(async (request: Request) =>
  Response.json({ runs: ++runs, body: (await request.json()) as unknown }, { status: 201 }),
)

const { Bun, Deno } = globalThis as Runtimes
const place = { port: 0, hostname: '127.0.0.1' } as const
const say = (port: number): void => void process.stdout.write(`listening on ${port}\n`)
if (Bun) say(Bun.serve({ ...place, fetch: handler }).port)
else Deno!.serve({ ...place, onListen: ({ port }) => say(port) }, handler)
