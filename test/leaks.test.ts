// Nothing is left behind: after many calls the timers are gone, the heap is as large as before, and no connection has collected
// listeners. Each is counted twice, after calls enough to warm everything up and after several times as many.

import { once as onceEvent } from 'node:events'
import { channel } from 'node:diagnostics_channel'
import { Agent, createServer, request } from 'node:http'
import type { RequestListener } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { expect, test } from 'vitest'
import { FinalError, NotBegunError } from '../src/core/errors.ts'
import { eventNames } from '../src/core/events.ts'
import { lane } from '../src/core/lane.ts'
import { createOnce } from '../src/core/once.ts'
import { createMetrics } from '../src/gateway/metrics.ts'
import { startGateway } from '../src/gateway/proxy.ts'
import { createLog } from '../src/gateway/request-log.ts'
import { idempotency } from '../src/http/node.ts'
import { memoryData, memoryStore } from '../src/stores/memory.ts'
import { manualClock } from '../src/testing/manual-clock.ts'

setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void

/** Bytes of the heap that `work` leaves behind for each of its calls, when everything is warm. */
async function bytesLeftPerCall(calls: number, work: (call: number) => Promise<void>): Promise<number> {
  const sizes: number[] = []
  for (let round = 0; round < 4; round++) {
    for (let call = 0; call < calls; call++) await work(round * calls + call)
    for (let times = 0; times < 3; times++) {
      await new Promise(setImmediate)
      collect()
    }
    sizes.push(process.memoryUsage().heapUsed)
  }
  // The smallest growth of three rounds: what a compiler or a cache takes meanwhile is no leak.
  return Math.min(...[1, 2, 3].map((round) => sizes[round]! - sizes[round - 1]!)) / calls
}

/** Twice what these tests measure when nothing leaks. A map entry, a timer or a listener that is left weighs 500 bytes and more. */
const leftBytesMax = 300

const id = (call: number): string => `${call}-`.padEnd(200, 'x')

function world() {
  const clock = manualClock()
  const data = memoryData(clock)
  const once = createOnce({ store: memoryStore({ data }), scope: 'leaks', clock, leaseMs: 3_000, sweepEveryMs: false })
  /** What the store keeps is its task, and no leak. */
  const forget = (): void => data.entries.clear()
  return { clock, data, once, forget }
}

test('calls of once leave no timer and no memory: values, failures, replays, mismatches', async () => {
  const { clock, once, forget } = world()
  const left = await bytesLeftPerCall(500, async (call) => {
    await once.run(id(call), () => 'value')
    await once.run(id(call), () => 'never')
    await once.run(id(call), () => 'never', { fingerprint: 'other' }).catch(() => {})
    await once.run(`${id(call)}f`, () => Promise.reject(new FinalError('no'))).catch(() => {})
    await once.run(`${id(call)}o`, () => Promise.reject(new Error('down'))).catch(() => {})
    await once.run(`${id(call)}n`, () => Promise.reject(new NotBegunError('invalid'))).catch(() => {})
    forget()
  })
  expect(clock.pending).toBe(0)
  expect(left).toBeLessThan(leftBytesMax)
})

test('duplicates that wait, and give up waiting, leave no timer and no memory', async () => {
  const { clock, once, forget } = world()
  const left = await bytesLeftPerCall(200, async (call) => {
    const work = Promise.withResolvers<string>()
    const first = once.run(id(call), () => work.promise)
    const alone = once.run(`${id(call)}a`, () => work.promise)
    await clock.advance(0)
    const lonely = once.run(`${id(call)}a`, () => 'never', { waitMs: 50 }).catch(() => {})
    const impatient = once.run(id(call), () => 'never', { waitMs: 50 }).catch(() => {})
    const patient = [once.run(id(call), () => 'never'), once.run(id(call), () => 'never')]
    await clock.advance(100)
    await Promise.all([impatient, lonely])
    work.resolve('done')
    await clock.advance(0)
    await Promise.all([first, alone, ...patient])
    forget()
  })
  expect(clock.pending).toBe(0)
  expect(left).toBeLessThan(leftBytesMax)
})

test('heartbeats of slow effects, hung ones and takeovers leave no timer and no memory', async () => {
  const { clock, once, forget } = world()
  const left = await bytesLeftPerCall(100, async (call) => {
    const slow = once.run(
      id(call),
      (op) => new Promise((resolve) => op.signal.addEventListener('abort', () => resolve(1))),
      {
        attemptMs: 10_000,
      },
    )
    const hung = once.run(`${id(call)}h`, () => new Promise<string>(() => {}), { attemptMs: 10_000 }).catch(() => {})
    await clock.advance(20_000)
    await Promise.all([slow, hung])
    await once.run(`${id(call)}h`, () => 'taken over')
    forget()
  })
  expect(clock.pending).toBe(0)
  expect(left).toBeLessThan(leftBytesMax)
})

test('a store that fails leaves nothing of its retries, and a claim that nobody heard of nothing of its release', async () => {
  const clock = manualClock()
  const data = memoryData(clock)
  const store = memoryStore({ data })
  let calls = 0
  const flaky = <T>(work: () => Promise<T>): Promise<T> =>
    calls++ % 2 === 0 ? Promise.reject(new Error('ECONNREFUSED')) : work()
  const once = createOnce({
    store: {
      ...store,
      claim: (...args) => flaky(() => store.claim(...args)),
      settle: (...args) => flaky(() => store.settle(...args)),
    },
    scope: 'leaks',
    clock,
    sweepEveryMs: false,
  })
  const left = await bytesLeftPerCall(100, async (call) => {
    const work = Array.from({ length: 20 }, (_, each) => once.run(`${id(call)}${each}`, () => 'value').catch(() => {}))
    await clock.advance(10_000)
    await Promise.all(work)
    data.entries.clear()
  })
  expect(clock.pending).toBe(0)
  expect(left).toBeLessThan(leftBytesMax)
  await once.close()
})

test('operations leave no timer and no memory: completed, undone, cancelled', async () => {
  const { clock, data, once } = world()
  const pay = once.operation('pay', { version: 1 }, async (op, fails: boolean) => {
    await op.step('reserve', { run: () => 'reserved', undo: () => {} })
    return op.step('charge', () => (fails ? Promise.reject(new FinalError('declined')) : 'charged'))
  })
  const left = await bytesLeftPerCall(100, async (call) => {
    await pay.run(`${id(call)}v`, false)
    await pay.run(`${id(call)}f`, true).catch(() => {})
    data.entries.clear()
    data.operations.clear()
  })
  expect(clock.pending).toBe(0)
  expect(left).toBeLessThan(leftBytesMax)
})

test('a lane keeps nothing of what it has dispatched, done or failed', async () => {
  const ask = lane<{ readonly text: string }, number>({
    batchMax: 7,
    dispatchesMax: 2,
    async dispatch(batch) {
      if (batch[0]!.text.startsWith('3')) throw new Error('down')
      return batch.map(({ text }) => text.length)
    },
  })
  const left = await bytesLeftPerCall(2_000, async (call) => {
    await Promise.allSettled([ask({ text: id(call) }), ask({ text: id(call) })])
  })
  expect(left).toBeLessThan(leftBytesMax)
})

/** How many listeners each connection of a server has, after each request over one kept-alive connection. */
async function listenersAfter(
  requests: number,
  url: string,
  sockets: ReadonlySet<Socket>,
  headers: (n: number) => Record<string, string>,
): Promise<number[]> {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  const counts: number[] = []
  for (let number = 0; number < requests; number++) {
    await new Promise<void>((resolve, reject) => {
      const sent = request(url, { agent, method: 'POST', headers: headers(number) }, (res) => {
        res.resume().on('end', resolve).on('error', reject)
      })
      sent.on('error', reject).end('{}')
    })
    await new Promise(setImmediate)
    expect(sockets.size).toBe(1)
    const [socket] = sockets
    counts.push(socket!.eventNames().reduce((sum, name) => sum + socket!.listenerCount(name), 0))
  }
  agent.destroy()
  return counts
}

async function serving(listener: RequestListener) {
  const sockets = new Set<Socket>()
  const server = createServer(listener).on('connection', (socket) => void sockets.add(socket))
  await onceEvent(server.listen(0, '127.0.0.1'), 'listening')
  const close = (): void => {
    server.closeAllConnections()
    server.close()
  }
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`, sockets, close }
}

test('a connection that is kept alive collects no listeners, with and without keys, executed and replayed', async () => {
  const once = createOnce({ store: memoryStore(), scope: 'leaks' })
  const handler: RequestListener = (_req, res) => void res.writeHead(201).end('done')
  const { url, sockets, close } = await serving(idempotency(once, { tenant: 'shared' })(handler))
  const counts = await listenersAfter(40, url, sockets, (number) =>
    number % 3 === 0 ? {} : { 'idempotency-key': `k${number % 10}` },
  )
  close()
  await once.close()
  expect(Math.max(...counts.slice(10))).toBeLessThanOrEqual(Math.max(...counts.slice(0, 10)))
})

test('a connection that is kept alive keeps nothing of its requests', async () => {
  const data = memoryData()
  const once = createOnce({ store: memoryStore({ data }), scope: 'leaks' })
  const handler: RequestListener = (_req, res) => void res.writeHead(201).end('done')
  const { url, sockets, close } = await serving(idempotency(once, { tenant: 'shared' })(handler))
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  const left = await bytesLeftPerCall(150, async (call) => {
    await new Promise<void>((resolve, reject) => {
      const options = { agent, method: 'POST', headers: { 'idempotency-key': `k${call}` } }
      const sent = request(url, options, (res) => void res.resume().on('end', resolve).on('error', reject))
      sent.on('error', reject).end('{}')
    })
    data.entries.clear()
  })
  expect(sockets.size).toBe(1)
  agent.destroy()
  close()
  await once.close()
  // A request and its response are ten kilobytes and more.
  expect(left).toBeLessThan(2_000)
})

test('a gateway collects no listeners on the connection to its upstream, and has nothing under way at the end', async () => {
  const upstream = await serving((_req, res) => void res.writeHead(201).end('done'))
  const gateway = await startGateway({
    store: memoryStore(),
    upstream: upstream.url,
    listen: { host: '127.0.0.1', port: 0 },
    tenant: 'shared',
  })
  const counts = await listenersAfter(40, gateway.url, upstream.sockets, (number) => ({
    'idempotency-key': `k${number}`,
  }))
  expect(gateway.inFlight).toBe(0)
  await gateway.close()
  upstream.close()
  expect(Math.max(...counts.slice(10))).toBeLessThanOrEqual(Math.max(...counts.slice(0, 10)))
})

test('metrics and log that are closed listen to nothing', () => {
  const listening = (): string[] => eventNames.filter((name) => channel(`onceonly:${name}`).hasSubscribers)
  const before = listening()
  for (let times = 0; times < 5; times++) {
    const metrics = createMetrics()
    const stop = createLog({ level: 'info', clock: manualClock(), write: () => {} }).followEvents()
    metrics.close()
    stop()
  }
  expect(listening()).toEqual(before)
})
