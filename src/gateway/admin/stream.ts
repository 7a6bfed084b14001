// Server-sent events. All clients get the same newest picture, at most twice per second. Nothing is queued for a slow client:
// it is left out until it has read, and cut off when it does not. The number of clients is bounded.

import type { ServerResponse } from 'node:http'
import { sleep } from '../../core/clock.ts'
import type { Clock } from '../../core/clock.ts'

export interface Stream {
  /** False when there are too many clients already. Nothing was written then. */
  add(response: ServerResponse): boolean
  close(): void
}

export interface StreamOptions {
  readonly clock: Clock
  /** One line of text, which is sent when it differs from the last. */
  readonly picture: () => Promise<string>
  readonly clientsMax?: number
}

// A dashboard is for people: more clients than this are a loop somewhere.
const clientsMaxDefault = 32
const tickMs = 500
// Thirty seconds: proxies commonly end a silent connection after a minute.
const silentTicksMax = 60
// A client that has not read for half a minute is gone or stopped.
const stuckTicksMax = 60

interface Client {
  readonly response: ServerResponse
  stuckTicks: number
  /** The client has not been sent the newest picture. */
  behind: boolean
}

export function startStream({ clock, picture, clientsMax = clientsMaxDefault }: StreamOptions): Stream {
  const clients = new Set<Client>()
  const closing = new AbortController()
  let running = false
  let last: string | undefined
  let silentTicks = 0

  const tick = async (): Promise<void> => {
    // A store that cannot be reached is reported in the picture. A failure here has nothing new to show.
    const now = await picture().catch(() => last)
    silentTicks = now === last ? silentTicks + 1 : 0
    for (const client of clients) {
      if (now !== undefined && (now !== last || client.behind)) show(client, `data: ${now}\n\n`)
      else if (silentTicks >= silentTicksMax) show(client, ':\n\n')
    }
    if (silentTicks >= silentTicksMax) silentTicks = 0
    last = now
  }
  // Ends when no client is connected: the store is not queried then.
  const run = async (): Promise<void> => {
    running = true
    while (clients.size > 0 && !closing.signal.aborted) {
      await tick()
      await sleep(clock, tickMs, { signal: closing.signal, background: 'background' })
    }
    running = false
  }
  return {
    add(response) {
      if (clients.size >= clientsMax) return false
      const client: Client = { response, stuckTicks: 0, behind: true }
      response.writeHead(200, { 'Content-Type': 'text/event-stream', 'X-Accel-Buffering': 'no' })
      response.flushHeaders()
      response.on('error', () => {})
      response.on('close', () => clients.delete(client))
      clients.add(client)
      if (!running) void run()
      return true
    },
    close() {
      closing.abort()
      for (const { response } of clients) response.destroy()
      clients.clear()
    },
  }
}

function show(client: Client, text: string): void {
  const { response } = client
  if (response.writableNeedDrain) {
    client.stuckTicks += 1
    client.behind = true
    if (client.stuckTicks > stuckTicksMax) response.destroy()
    return
  }
  client.stuckTicks = 0
  client.behind = false
  response.write(text)
}
