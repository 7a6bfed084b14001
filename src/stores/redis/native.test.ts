// Native commands beside scripts: what each writes, who takes over from whom in a rolling upgrade, what a check that is not clean
// leads to, and what is done where the server or the user's rights do not allow them.

import { randomUUID } from 'node:crypto'
import { createConnection, createServer } from 'node:net'
import type { AddressInfo, Socket } from 'node:net'
import { setImmediate as setImmediately } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { connect, durable } from '../../../test/subjects/redis.ts'
import type { Connected } from '../../../test/subjects/redis.ts'
import { startFaultProxy } from '../../../test/servers/fault-proxy.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import { redisCommand } from '../../../test/servers/redis/command.ts'
import type { Running } from '../../../test/servers/server.ts'
import { startRedis } from '../../../test/servers/redis.ts'
import { systemClock } from '../../core/clock.ts'
import { key } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Fenced, Verdict } from '../../core/store.ts'
import {
  ask,
  assertGranted,
  assertSettled,
  bytesOf,
  claimWhenFree,
  failureOf,
  finish,
  hourMs,
  leaseMs,
  retention,
  take,
  times,
} from '../../testing/store-contract.ts'
import { inlineBytesMax } from './decisions.lua.ts'
import { namesUnder } from './names.ts'
import { registerPlaces } from './places.ts'
import { redisFitness, redisStore } from '../redis.ts'
import type { RedisClient, RedisStore, RedisStoreOptions } from '../redis.ts'

const opened: Connected[] = []
let server: Running
let prefix = randomUUID()

async function client(url = server.url): Promise<RedisClient> {
  opened.push(await connect('node-redis', url))
  return opened.at(-1)!.client
}

/** A store that has heard of its server: from now on its commands are native, and the server has the short scripts. */
async function nativeStore(options: Partial<RedisStoreOptions> = {}): Promise<RedisStore> {
  const store = redisStore({ client: await client(), prefix, ...options })
  for (const id of ['first', 'second']) await finish(store, key('native', `${id} ${randomUUID()}`), bytesOf(id))
  return store
}

/** As a process of the version before: the same entries by scripts alone. */
async function scriptStore(options: Partial<RedisStoreOptions> = {}): Promise<RedisStore> {
  const native = await client()
  const old = new Proxy(native, {
    get(target, name) {
      const own: unknown = Reflect.get(target, name, target)
      if (name === 'socketEpoch') return undefined
      return typeof own === 'function' ? (own as () => unknown).bind(target) : own
    },
  })
  return redisStore({ client: old, prefix, ...options })
}

/** Without TIME, which is asked every fifth of a second. */
async function counted(work: () => Promise<unknown>): Promise<Record<string, number>> {
  const counts = await countedAll(work)
  delete counts['time']
  return counts
}

async function countedAll(work: () => Promise<unknown>): Promise<Record<string, number>> {
  await redisCommand(server.url, 'CONFIG', 'RESETSTAT')
  await work()
  const stats = String(await redisCommand(server.url, 'INFO', 'commandstats'))
  const counts = Array.from(stats.matchAll(/^cmdstat_(set|get|incr|mget|time|evalsha|eval):calls=(\d+)/gm))
  return Object.fromEntries(counts.map(([, name, calls]) => [name, Number(calls)]))
}

/** How often the server had to read: commands that are sent in one go are one. */
async function roundTrips(work: () => Promise<unknown>): Promise<number> {
  const reads = async (): Promise<number> => {
    const stats = String(await redisCommand(server.url, 'INFO', 'stats'))
    return Number(/total_reads_processed:(\d+)/.exec(stats)![1])
  }
  const first = await reads()
  const second = await reads()
  await work()
  // Each look is read, too.
  return (await reads()) - second - (second - first)
}

/** As an instance that has found a loss writes it: `on`, or until when. */
async function hold(register: string, until = 'on'): Promise<void> {
  const open = String(await redisCommand(server.url, 'GET', register))
  const { from, to, width } = registerPlaces.hold
  await redisCommand(server.url, 'SET', register, open.slice(0, from - 1) + until.padEnd(width) + open.slice(to))
}

async function markNow(): Promise<number> {
  const [mark] = (await redisCommand(server.url, 'KEYS', `${prefix}*mark:*`)) as string[]
  return Number(await redisCommand(server.url, 'GET', mark!))
}

/** The way to the server, which takes nothing from its clients while it is stalled. */
async function startStallingWay(): Promise<AsyncDisposable & { url: string; stall(): void; cut(): void }> {
  const ends = new Set<Socket>()
  let isStalled = false
  const way = createServer((from) => {
    const to = createConnection(server.port, server.host)
    for (const [end, other] of [
      [from, to],
      [to, from],
    ] as const) {
      ends.add(end)
      end.on('error', () => {}).on('close', () => (ends.delete(end), other.destroy()))
    }
    to.pipe(from)
    if (!isStalled) from.pipe(to)
  })
  await new Promise<void>((resolve) => way.listen(0, '127.0.0.1', resolve))
  const url = new URL(server.url)
  url.host = `127.0.0.1:${(way.address() as AddressInfo).port}`
  const cut = (): void => {
    isStalled = false
    for (const end of ends) end.destroy()
  }
  return {
    url: url.href,
    stall() {
      isStalled = true
      for (const end of ends) end.unpipe().pause()
    },
    cut,
    async [Symbol.asyncDispose]() {
      cut()
      await new Promise((resolve) => way.close(resolve))
    },
  }
}

/** What a short script does that takes so many names. */
const taking = (names: number): Record<string, number> => ({ set: names, incr: 1, get: 2 })

/** What a write by script costs the server: with the entry it writes the mark. */
const byScript = { evalsha: 1, mget: 1, set: 2 }

for (const program of ['redis', 'valkey'] as const) {
  needs(program, { ours: true }).describe(`native commands on ${program}`, () => {
    beforeAll(async () => {
      server = await startRedis({ config: durable, ...(program === 'valkey' && { program }) })
    })
    afterEach(async () => {
      prefix = randomUUID()
      await Promise.all(opened.splice(0).map((each) => each.close()))
    })
    afterAll(() => server.stop())

    test('a claim is one short script with its check, and so is a settle', async () => {
      const store = await nativeStore()
      const claims = await counted(() => take(store, key('native', 'one')))
      expect(claims).toEqual({ evalsha: 1, ...taking(1) })
      const held = await take(store, key('native', 'two'))
      const settles = await counted(() => store.settle(held, bytesOf('two'), retention))
      // IFEQ compares by itself.
      expect(settles).toEqual({ evalsha: 1, ...(program === 'redis' && { get: 1 }), set: 1, incr: 1 })
      const extended = await take(store, key('native', 'three'))
      // From here on the server has the script.
      await store.extend(extended, leaseMs)
      const extends_ = await counted(() => store.extend(extended, leaseMs))
      expect(extends_).toEqual(byScript)
      assertSettled(await ask(store, key('native', 'two')), bytesOf('two'))
    })

    test('several claims of one moment are one short script, and so are several settles', async () => {
      const store = await nativeStore()
      const others = await nativeStore()
      await finish(store, key('native', 'mine'), bytesOf('mine'))
      const held = await take(others, key('native', 'held'))
      const fresh = times(6).map((index) => key('native', `fresh ${index}`))
      let verdicts: Verdict[] = []
      const asked = await counted(async () => {
        verdicts = await Promise.all([key('native', 'mine'), held.key, ...fresh].map((each) => ask(store, each)))
      })
      expect(verdicts.map(({ is }) => is)).toEqual(['settled', 'busy', ...fresh.map(() => 'granted')])
      expect(asked).toEqual({ evalsha: 1, ...taking(8) })
      const claims = verdicts.flatMap((verdict) => (verdict.is === 'granted' ? [verdict.claim] : []))
      let fenced: Fenced[] = []
      const settled = await counted(async () => {
        fenced = await Promise.all(claims.map((claim) => store.settle(claim, bytesOf(claim.key.id), retention)))
      })
      expect(new Set(fenced)).toEqual(new Set(['done']))
      // IFEQ compares by itself.
      const compared = program === 'valkey' ? {} : { get: 6 }
      expect(settled).toEqual({ evalsha: 1, ...compared, set: 6, incr: 1 })
      for (const each of fresh) assertSettled(await ask(others, each), bytesOf(each.id))
      expect(await others.settle(held, bytesOf('held'), retention)).toBe('done')
    })

    test("of several settles of one moment, one whose key is another's is lost, and the others are done", async () => {
      const store = await nativeStore()
      const claims = await Promise.all(times(3).map((index) => take(store, key('native', `several ${index}`))))
      const name = namesUnder(prefix).of(claims[1]!.key).entry
      const entry = String(await redisCommand(server.url, 'GET', name))
      // Another has taken it over.
      await redisCommand(server.url, 'SET', name, entry.replace(claims[1]!.token, randomUUID()))
      const fenced = await Promise.all(claims.map((claim) => store.settle(claim, bytesOf('mine'), retention)))
      expect(fenced).toEqual(['done', 'lost', 'done'])
    })

    test('a claim after a grant is one round trip with its check, and one after a replay needs a second', async () => {
      const store = await nativeStore()
      await finish(store, key('native', 'settled'), bytesOf('settled'))
      const fresh = (): Promise<unknown> => take(store, key('native', randomUUID()))
      await fresh()
      expect(await roundTrips(fresh)).toBe(1)
      await ask(store, key('native', 'settled'))
      expect(await roundTrips(() => ask(store, key('native', 'settled')))).toBe(1)
      expect(await roundTrips(fresh)).toBe(2)
      expect(await roundTrips(fresh)).toBe(1)
    })

    test('both ways write the same bytes, but for who wrote them and when', async () => {
      const entries = await Promise.all(
        [await nativeStore(), await scriptStore()].map(async (store, index) => {
          const each = key('native', `same ${index}`)
          const entry = (): Promise<unknown> => redisCommand(server.url, 'GET', namesUnder(prefix).of(each).entry)
          const claim = await take(store, each)
          const running = String(await entry())
          await store.settle(claim, bytesOf('é\n'), retention)
          const settled = String(await entry())
          return [running, settled].map((text) => text.replaceAll(/\d{16}/g, 'time').replace(claim.token, 'token'))
        }),
      )
      expect(entries[0]).toEqual(entries[1])
    })

    test('in a rolling upgrade, neither version takes over what the other holds or has settled', async () => {
      const [after, before] = [await nativeStore(), await scriptStore()]
      for (const [index, [mine, theirs]] of [
        [after, before],
        [before, after],
      ].entries()) {
        const [running, settled, brief] = ['running', 'settled', 'brief'].map((id) => key('upgrade', `${id} ${index}`))
        const held = await take(mine!, running!)
        expect(await ask(theirs!, running!)).toMatchObject({ is: 'busy' })
        await finish(mine!, settled!, bytesOf('kept'))
        assertSettled(await ask(theirs!, settled!), bytesOf('kept'))
        // A heartbeat that comes by the other way, as after a deploy in the middle of an effect, does not break the settle.
        expect(await theirs!.extend({ ...held }, leaseMs)).toBe('done')
        expect(await mine!.settle(held, bytesOf('late'), retention)).toBe('done')
        assertSettled(await ask(theirs!, running!), bytesOf('late'))
        // A native lease ends by the later bound of the server's time, which a busy machine knows to a quarter of a second.
        const abandoned = await take(mine!, brief!, { leaseMs: 1 })
        assertGranted(await claimWhenFree(() => ask(theirs!, brief!)), 'taken-over', 2)
        expect(await mine!.settle(abandoned, bytesOf('zombie'), retention)).toBe('lost')
      }
    })

    test('after a heartbeat the script settles, and nothing is asked natively in vain', async () => {
      const store = await nativeStore()
      const held = await take(store, key('native', 'beating'))
      for (const _ of times(3)) expect(await store.extend(held, 2 * hourMs)).toBe('done')
      const settles = await counted(() => store.settle(held, bytesOf('beaten'), retention))
      expect(settles).toEqual(byScript)
      assertSettled(await ask(store, held.key), bytesOf('beaten'))
      expect(await store.extend(held, leaseMs)).toBe('lost')
    })

    test('a settle whose entry may expire while it is under way is left to the script, which looks at the time', async () => {
      const store = await nativeStore()
      const soon = { keepMs: 10_000, tombstoneMs: hourMs }
      const held = await take(store, key('native', 'soon'), { leaseMs: 10_000, retention: soon })
      await store.settle(await take(store, key('native', 'any')), bytesOf('any'), retention)
      await store.extend(await take(store, key('native', 'script')), leaseMs)
      const settles = await counted(() => store.settle(held, bytesOf('soon'), retention))
      // The short script would count.
      expect([settles['evalsha'], settles['incr']]).toEqual([1, undefined])
      assertSettled(await ask(store, key('native', 'soon')), bytesOf('soon'))
    })

    test('what a person has kept for longer, the holder can still settle', async () => {
      const store = await nativeStore()
      const held = await take(store, key('native', 'mended'), { leaseMs: 1 })
      await new Promise((resolve) => setTimeout(resolve, 20))
      await store.mend(held.key, { keepMs: 40 * 24 * hourMs }, 'a dispute')
      expect(await store.settle(held, bytesOf('settled'), retention)).toBe('done')
      expect(await store.settle(held, bytesOf('again'), retention)).toBe('done')
      assertSettled(await ask(store, held.key), bytesOf('settled'))
    })

    test('outcomes of any bytes and sizes come back as they were', async () => {
      const store = await nativeStore()
      const outcomes = [
        bytesOf('ü€😀'),
        Uint8Array.of(0xff, 0xfe, 0),
        new Uint8Array(0),
        new Uint8Array(512).fill(0xc3),
        new Uint8Array(513),
      ]
      for (const [index, outcome] of outcomes.entries()) {
        await finish(store, key('native', `bytes ${index}`), outcome)
        assertSettled(await ask(store, key('native', `bytes ${index}`)), outcome)
        // A claim brings the whole entry along, so a large outcome is beside it.
        const beside = await redisCommand(
          server.url,
          'EXISTS',
          namesUnder(prefix).of(key('native', `bytes ${index}`)).outcome,
        )
        expect(beside).toBe(outcome.length > inlineBytesMax ? 1 : 0)
      }
    })

    test('a grant whose check finds a quarantine is taken back, and nothing is left of it', async () => {
      const [store, other] = [await nativeStore(), await nativeStore()]
      const names = namesUnder(prefix)
      await hold(names.register(undefined))
      const refused = key('native', 'refused')
      expect((await failureOf(ask(store, refused))).message).toContain('has lost data')
      expect(await redisCommand(server.url, 'EXISTS', names.of(refused).entry)).toBe(0)
      expect(await other.endQuarantine('a test')).toBe(true)
      assertGranted(await ask(store, refused), 'fresh', 1)
      const again = await counted(() => take(store, key('native', 'again')))
      expect(again).toEqual({ evalsha: 1, ...taking(1) })
    })

    test('a grant whose check finds a quarantine, and that cannot be taken back, is not told', async () => {
      await using proxy = await startFaultProxy({ target: server, framer: 'redis' })
      const proxied = await connect('node-redis', proxy.url)
      opened.push(proxied)
      const store = redisStore({ client: proxied.client, prefix })
      await take(store, key('native', 'first'))
      await hold(namesUnder(prefix).register(undefined))
      proxy.cutAt({ direction: 'request', match: 'EVALSHA', side: 'before' })
      expect(await failureOf(ask(store, key('native', 'refused')))).toMatchObject({ code: 'STORE_UNAVAILABLE' })
    })

    test('what the server has lost is found, although the first count on a new connection had no reply', async () => {
      await using proxy = await startFaultProxy({ target: server, framer: 'redis' })
      const proxied = await connect('node-redis', proxy.url)
      opened.push(proxied)
      const store = redisStore({ client: proxied.client, prefix })
      for (const index of times(3)) await take(store, key('native', `known ${index}`))
      // One write that it has heard of is gone, as after a restart.
      await redisCommand(server.url, 'DEL', namesUnder(prefix).of(key('native', 'known 2')).entry)
      const [mark] = (await redisCommand(server.url, 'KEYS', `${prefix}*mark:*`)) as string[]
      await redisCommand(server.url, 'DECR', mark!)
      proxy.resetConnections()
      await pollUntil('the new connection', () => proxied.send('PING').catch(() => false))
      // The reply of a short script, whose first word is the count.
      proxy.cutAt({ direction: 'reply', match: (reply) => /^\*\d+\r\n:/.test(reply.toString()), side: 'before' })
      await failureOf(ask(store, key('native', 'not heard of')))
      expect((await failureOf(ask(store, key('native', 'known 2')))).message).toContain('has lost data')
    })

    test('what a client has not written when its connection ends is never sent: no claim, and no count that hides a loss', async () => {
      await using way = await startStallingWay()
      const proxied = await connect('node-redis', way.url)
      opened.push(proxied)
      const store = redisStore({ client: proxied.client, prefix, timeoutMs: 60_000 })
      const [held] = await Promise.all(times(3).map((index) => take(store, key('native', `known ${index}`))))
      const mark = await markNow()
      way.stall()
      // More than all buffers on the way hold. Of what comes behind it the client hands one command to its socket, and keeps the claim.
      const large = proxied.send('SET', `${prefix} of the user`, 'x'.repeat(40_000_000)).catch(() => 'cut')
      await setImmediately()
      const settled = failureOf(store.settle(held!, bytesOf('unheard'), retention))
      const late = failureOf(ask(store, key('native', 'late')))
      await setImmediately()
      way.cut()
      expect(await large).toBe('cut')
      expect(await settled).toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'unknown' })
      expect(await late).toMatchObject({ code: 'STORE_UNAVAILABLE', executed: 'no' })
      // Whatever the client still has goes out before this.
      await pollUntil('the new connection', () => proxied.send('PING').catch(() => false))
      expect(await redisCommand(server.url, 'EXISTS', namesUnder(prefix).of(key('native', 'late')).entry)).toBe(0)
      expect(await markNow()).toBe(mark)
      assertGranted(await ask(store, key('native', 'late')), 'fresh', 1)
    })

    test('a claim that was granted, and whose check had no reply, is taken back', async () => {
      await using proxy = await startFaultProxy({ target: server, framer: 'redis' })
      const proxied = await connect('node-redis', proxy.url)
      opened.push(proxied)
      const store = redisStore({ client: proxied.client, prefix })
      await take(store, key('native', 'first'))
      // The reply to PEXPIRE, which comes with the first check.
      proxy.cutAt({ direction: 'reply', match: (reply) => reply.toString().startsWith(':'), side: 'before' })
      expect(await failureOf(ask(store, key('native', 'unheard')))).toMatchObject({ code: 'STORE_UNAVAILABLE' })
      const { entry } = namesUnder(prefix).of(key('native', 'unheard'))
      const isGone = async (): Promise<boolean> => (await redisCommand(server.url, 'EXISTS', entry)) === 0
      await pollUntil('the claim to be taken back', isGone, { timeoutMs: 30_000 })
    })

    test('a claim that was granted after a replay, and whose check of its own had no reply, is not told', async () => {
      await using proxy = await startFaultProxy({ target: server, framer: 'redis' })
      const proxied = await connect('node-redis', proxy.url)
      opened.push(proxied)
      const store = redisStore({ client: proxied.client, prefix })
      const settled = key('native', 'settled')
      for (const each of [key('native', 'first'), settled]) await finish(store, each, bytesOf('settled'))
      assertSettled(await ask(store, settled), bytesOf('settled'))
      proxy.cutAt({ direction: 'request', match: 'INCR', side: 'before' })
      expect(await failureOf(ask(store, key('native', 'unchecked')))).toMatchObject({ code: 'STORE_UNAVAILABLE' })
    })

    test('a running entry that is cut off is unreadable, and not busy', async () => {
      const [store, other] = [await nativeStore(), await nativeStore()]
      const cut = key('native', 'cut off')
      await take(other, cut)
      const { entry } = namesUnder(prefix).of(cut)
      const whole = String(await redisCommand(server.url, 'GET', entry))
      await redisCommand(server.url, 'SET', entry, whole.slice(0, -1))
      expect(await failureOf(ask(store, cut))).toMatchObject({ code: 'OUTCOME_UNREADABLE' })
    })

    test('after a quarantine that has ended by itself a claim is one command with its check again', async () => {
      const store = await nativeStore()
      await hold(
        namesUnder(prefix).register(undefined),
        `${Date.now() - 60_000}`.padStart(registerPlaces.hold.width, '0'),
      )
      const counts = await counted(() => take(store, key('native', 'let in')))
      expect(counts).toEqual({ evalsha: 1, ...taking(1) })
    })

    test("a process that only replays goes on hearing the server's time", async () => {
      let laterMs = 0
      const clock = {
        ...systemClock,
        elapsed: () => systemClock.elapsed() + laterMs,
        now: () => systemClock.now() + laterMs,
      }
      const store = await nativeStore({ clock })
      await finish(store, key('native', 'settled'), bytesOf('settled'))
      await ask(store, key('native', 'settled'))
      const asked = (): Promise<Record<string, number>> =>
        countedAll(async () => assertSettled(await ask(store, key('native', 'settled')), bytesOf('settled')))
      laterMs += 10_000
      expect(await asked()).toEqual({ set: 1, time: 1 })
    })

    test('a fence is above that of a life that is gone, also for a claim that was stamped before it', async () => {
      const [store, other] = [await nativeStore(), await nativeStore()]
      const names = namesUnder(prefix)
      const each = key('native', 'fences')
      let last = 0
      for (const turn of times(20)) {
        const claim = await take(turn % 2 === 0 ? store : other, each)
        expect(claim.fence).toBeGreaterThan(last)
        last = claim.fence
        await (turn % 2 === 0 ? store : other).release(claim, 'forget')
      }
      expect(Number.parseInt(String(await redisCommand(server.url, 'GET', names.floor(undefined))), 10)).toBe(last)
      // Stamped before a life whose fence is far ahead: it is granted, but with a fence of the script.
      const ahead = (Date.now() + 5_000) * 1_000
      await redisCommand(server.url, 'SET', names.floor(undefined), `${ahead} ${randomUUID()}`)
      const counts = await counted(async () => assertGranted(await ask(store, key('native', 'below')), 'fresh', 1))
      // Taken, given back, and claimed by the phase script.
      expect(counts['evalsha']).toBe(3)
    })

    test.each([1, 3])('a server that has lost its scripts is told them again, %i calls at once', async (atOnce) => {
      const store = await nativeStore()
      const ids = (what: string): Key[] => times(atOnce).map((index) => key('native', `${what} ${index}`))
      const held = await Promise.all(ids('flushed').map((each) => take(store, each)))
      const flush = (): Promise<unknown> => redisCommand(server.url, 'SCRIPT', 'FLUSH')
      await flush()
      const fenced = await Promise.all(held.map((claim) => store.settle(claim, bytesOf(claim.key.id), retention)))
      expect(new Set(fenced)).toEqual(new Set(['done']))
      await flush()
      await Promise.all(ids('after').map((each) => take(store, each)))
      for (const script of ['eval', 'evalsha']) {
        const again = await counted(() => Promise.all(ids(script).map((each) => take(store, each))))
        expect(again).toEqual({ [script]: 1, ...taking(atOnce) })
      }
      // What finds replays alone goes on as before, too.
      await flush()
      const replayed = await Promise.all(ids('flushed').map((each) => ask(store, each)))
      for (const [index, verdict] of replayed.entries()) assertSettled(verdict, bytesOf(held[index]!.key.id))
      const alone = (): Promise<Record<string, number>> => counted(() => ask(store, key('native', 'flushed 0')))
      expect(await alone()).toEqual({ eval: 1, ...taking(1) })
      expect(await alone()).toEqual({ set: 1 })
    })

    test.each([1, 4])('a user who may not INCR is served by scripts, %i calls at once', async (atOnce) => {
      const user = `u${randomUUID().slice(0, 8)}`
      await redisCommand(server.url, 'ACL', 'SETUSER', user, 'on', '>pw', '~*', '&*', '+@all', '-incr')
      const url = new URL(server.url)
      url.username = user
      url.password = 'pw'
      const store = redisStore({ client: await client(url.href), prefix })
      for (const turn of times(4)) {
        const keys = times(atOnce).map((index) => key('native', `acl ${turn} ${index}`))
        await Promise.all(keys.map((each) => finish(store, each, bytesOf('done'))))
        for (const verdict of await Promise.all(keys.map((each) => ask(store, each)))) {
          assertSettled(verdict, bytesOf('done'))
        }
      }
      // What was refused holds native claims back until a script has granted one.
      await take(store, key('native', 'acl'))
      const last = times(atOnce).map((index) => key('native', `acl ${index}`))
      const counts = await counted(() => Promise.all(last.map((each) => take(store, each))))
      expect(counts['evalsha']).toBe(1)
      expect([counts['incr'], counts['eval']]).toEqual([undefined, undefined])
    })

    test('doctor says by which commands', async () => {
      const store = await nativeStore()
      const checks = await redisFitness(await client(), store).checks(Date.now())
      const { verdict, found } = checks.find(({ name }) => name === 'redis-commands')!
      const settles = program === 'valkey' ? 'settles by SET IFEQ' : 'settles by script'
      expect([verdict, found]).toEqual(['ok', `claims by SET NX GET, ${settles}`])
    })
  })
}

describe('native commands without a server', () => {
  test('a claim keeps what its holder wrote to itself', async () => {
    const { HeldClaim } = await import('./entries.ts')
    const written = { name: '', times: '', rest: '', expiresAtMs: 1, keepMs: 1, tombstoneMs: 1 }
    const claim = new HeldClaim(key('native', 'held'), 'token', 7, written)
    expect(JSON.parse(JSON.stringify(claim))).toEqual({
      key: { scope: 'native', id: 'held' },
      token: 'token',
      attempt: 1,
      fence: 7,
    })
    expect(HeldClaim.writtenOf(claim)).toBe(written)
  })
})
