// Where the requests go: over the network to a base URL or to a Node server, which is started on a free port of this machine
// when it does not listen yet, or straight into a handler.

import { once } from 'node:events'
import { Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { invalidArgument } from '../../core/errors.ts'
import { requestOf } from '../faulty-fetch.ts'
import type { FetchLike } from '../faulty-fetch.ts'

export type SendTwiceTarget =
  | string
  | URL
  | Server
  | FetchLike
  | { fetch(request: Request): Response | Promise<Response> }

export interface OpenedTarget {
  /** The request as the target takes it: relative addresses are relative to the target. */
  requestOf(input: string | URL | Request, init?: RequestInit): Promise<Request>
  send(request: Request): Promise<Response>
  close(): Promise<void>
}

export function openTarget(target: SendTwiceTarget): OpenedTarget {
  if (typeof target === 'string' || target instanceof URL) return overNetwork(async () => new URL(target))
  if (target instanceof Server) return toServer(target)
  const handle = typeof target === 'function' ? target : target?.fetch?.bind(target)
  if (typeof handle !== 'function') {
    throw invalidArgument('sendTwice: expected a base URL, a fetch, an object with a fetch, or a server of node:http')
  }
  return {
    requestOf: async (input, init) => requestOf(input, init),
    send: async (request) => handle(request),
    close: async () => {},
  }
}

function overNetwork(base: () => Promise<URL>, close: () => Promise<void> = async () => {}): OpenedTarget {
  return {
    async requestOf(input, init) {
      return new Request(typeof input === 'string' ? new URL(input, await base()) : input, init)
    },
    send: (request) => fetch(request),
    close,
  }
}

function toServer(server: Server): OpenedTarget {
  let started: Promise<unknown> | undefined
  const base = async (): Promise<URL> => {
    if (!server.listening) {
      started ??= once(server.listen(0, '127.0.0.1'), 'listening')
      await started
    }
    return new URL(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
  }
  return overNetwork(base, async () => {
    if (!started) return
    await started
    const closed = once(server, 'close')
    server.close()
    server.closeAllConnections()
    await closed
  })
}
