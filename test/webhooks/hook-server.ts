// An endpoint of a customer: a server that keeps what it was sent, and answers as the test says.
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

export interface SentHook {
  readonly path: string
  readonly id: string
  readonly atMs: number
  readonly headers: Readonly<Record<string, string>>
  readonly body: Buffer
}

export interface HookServer extends AsyncDisposable {
  readonly url: string
  // Everything that has arrived, in its order, attempts of the same event included.
  readonly sent: SentHook[]
  ids(path?: string): string[]
  // What it answers. 200 unless given.
  answer(with_: (hook: SentHook, res: ServerResponse) => unknown): void
}

export async function startHookServer(): Promise<HookServer> {
  const sent: SentHook[] = []
  let answer: (hook: SentHook, res: ServerResponse) => unknown = (_hook, res) => res.end()
  const server = createServer((req: IncomingMessage, res) => {
    const chunks: Buffer[] = []
    req.on('data', (chunk: Buffer) => chunks.push(chunk))
    req.on('end', () => {
      const headers = req.headers as Record<string, string>
      const hook = {
        path: req.url!,
        id: headers['webhook-id']!,
        atMs: Number(headers['webhook-timestamp']) * 1_000,
        headers,
        body: Buffer.concat(chunks),
      }
      sent.push(hook)
      answer(hook, res)
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    sent,
    ids: (path) => sent.filter((each) => path === undefined || each.path === path).map(({ id }) => id),
    answer: (with_) => void (answer = with_),
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      server.close()
      await once(server, 'close')
    },
  }
}
