// An HTTP relay in front of DynamoDB that answers some requests itself, with errors that DynamoDB Local never gives:
// throttling and conflicts. Invariant: what it does not answer passes through unchanged, except for the time it is said to be.
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'

export interface Relay extends AsyncDisposable {
  readonly url: string
  // How often each operation was asked for: { PutItem: 2 }.
  readonly asked: Record<string, number>
  // Answers the next `times` requests of this operation so. With 'landed' the server has carried each of them out before.
  answer(operation: string, fault: Fault, times: number, landed?: 'landed'): void
  // What becomes of the server's replies to these operations.
  readonly changes: Record<string, (reply: Record<string, unknown>) => unknown>
  // What the replies say the time is, off the real one by so much; undefined for replies that do not say.
  dateOffMs: number | undefined
}

export interface Fault {
  readonly error: string
  readonly reasons?: readonly { readonly Code: string }[]
}

interface Planned extends Fault {
  readonly operation: string
  readonly landed: boolean
}

export async function startRelay(target: string): Promise<Relay> {
  const asked: Record<string, number> = {}
  const planned: Planned[] = []
  const handle = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const operation = String(request.headers['x-amz-target']).split('.')[1] ?? ''
    asked[operation] = 1 + (asked[operation] ?? 0)
    const body = Buffer.concat(await request.toArray())
    const at = planned.findIndex((each) => each.operation === operation)
    const fault = at < 0 ? undefined : planned.splice(at, 1)[0]
    const passed = !fault || fault.landed ? await pass(target, request, body) : undefined
    const { status, bytes } = fault ? answerOf(fault) : changed(passed!, relay.changes[operation])
    response.sendDate = false
    if (relay.dateOffMs !== undefined) response.setHeader('date', new Date(Date.now() + relay.dateOffMs).toUTCString())
    response.writeHead(status, { 'content-type': 'application/x-amz-json-1.0' }).end(bytes)
  }
  const server = createServer((request, response) => {
    handle(request, response).catch(() => response.destroy())
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const relay: Relay = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    asked,
    answer(operation, fault, times, landed) {
      for (let count = 0; count < times; count++) planned.push({ operation, ...fault, landed: landed === 'landed' })
    },
    changes: {},
    dateOffMs: 0,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      server.close()
    },
  }
  return relay
}

interface Passed {
  readonly status: number
  readonly bytes: Buffer | string
}

// The SDK checks the sum of what it receives when it is given one; the relay passes no such header on.
function changed(passed: Passed, change: Relay['changes'][string] | undefined): Passed {
  if (!change || passed.status !== 200) return passed
  return { ...passed, bytes: JSON.stringify(change(JSON.parse(String(passed.bytes)) as Record<string, unknown>)) }
}

async function pass(target: string, request: IncomingMessage, body: Buffer<ArrayBuffer>): Promise<Passed> {
  const names = ['content-type', 'x-amz-target', 'x-amz-date', 'authorization', 'x-amz-content-sha256']
  const headers = names.flatMap((name) =>
    request.headers[name] ? [[name, String(request.headers[name])] as const] : [],
  )
  const reply = await fetch(target, { method: 'POST', headers: Object.fromEntries(headers), body })
  return { status: reply.status, bytes: Buffer.from(await reply.arrayBuffer()) }
}

function answerOf({ error, reasons }: Fault): Passed {
  const answer = {
    __type: `com.amazonaws.dynamodb.v20120810#${error}`,
    message: `${error}, says the relay`,
    ...(reasons && { CancellationReasons: reasons }),
  }
  return { status: 400, bytes: JSON.stringify(answer) }
}
