// How calls reach the script: in batches, through lost scripts, late, from several processes, into a full server.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { randomUUID } from 'node:crypto'
import { setImmediate } from 'node:timers/promises'
import { createClient, createClientPool, TimeoutError } from 'redis'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { connect, drivers, durable, startRedisGround } from '../../../test/subjects/redis.ts'
import type { Connected, Driver, RedisGround } from '../../../test/subjects/redis.ts'
import { type FaultProxy, startFaultProxy } from '../../../test/servers/fault-proxy.ts'
import { needs } from '../../../test/servers/needs.ts'
import { pollUntil } from '../../../test/servers/poll.ts'
import { redisCommand } from '../../../test/servers/redis/command.ts'
import { startRedis } from '../../../test/servers/redis.ts'
import type { Running } from '../../../test/servers/server.ts'
import { OnceError } from '../../core/errors.ts'
import { key } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Verdict } from '../../core/store.ts'
import {
  ask,
  assertGranted,
  assertSettled,
  bytesOf,
  eventually,
  failureOf,
  finish,
  hourMs,
  leaseMs,
  request,
  retention,
  take,
  times,
} from '../../testing/store-contract.ts'
import { namesUnder } from './names.ts'
import { entryLength } from './places.ts'
import { redisStore } from '../redis.ts'
import type { RedisClient, RedisStore, RedisStoreOptions } from '../redis.ts'

const opened: Connected[] = []
let server: Running
let prefix = randomUUID()

async function openStore(
  driver: Driver = 'node-redis',
  options: Partial<RedisStoreOptions> = {},
  url: string = server.url,
): Promise<RedisStore> {
  opened.push(await connect(driver, url))
  return redisStore({ client: opened.at(-1)!.client, prefix, ...options })
}

/** A client whose commands get no reply while the link hangs. They do not reach the server. */
async function storeOnHangingLink(
  driver: Driver,
  options: Partial<RedisStoreOptions>,
): Promise<{ readonly store: RedisStore; readonly link: { hangs: boolean; sent: number } }> {
  const link = { hangs: false, sent: 0 }
  opened.push(await connect(driver, server.url))
  const { client, send } = opened.at(-1)!
  // Connected by now, so that the store does not look at the server again in the middle of a test.
  await send('PING')
  const hanging = new Proxy(client, {
    get(target, name) {
      const own: unknown = Reflect.get(target, name, target)
      if (typeof own !== 'function') return own
      if (name !== 'sendCommand' && name !== 'callBuffer') return (own as () => unknown).bind(target)
      return (...args: unknown[]) => {
        if (!link.hangs) return (own as (...all: unknown[]) => unknown).apply(target, args)
        // One for each batch: its script, or the check of its native commands.
        if (/^(EVALSHA|EVAL|INCR)$/.test(String([args[0]].flat()[0]))) link.sent++
        return new Promise(() => {})
      }
    },
  })
  return { store: redisStore({ client: hanging, prefix, ...options }), link }
}

/** Of scripts, and of these. */
async function commandCount(...others: string[]): Promise<number> {
  const stats = String(await redisCommand(server.url, 'INFO', 'commandstats'))
  const names = ['evalsha', 'eval', ...others].join('|')
  return Array.from(stats.matchAll(new RegExp(`^cmdstat_(?:${names}):calls=(\\d+)`, 'gm'))).reduce(
    (sum, [, calls]) => sum + Number(calls),
    0,
  )
}

needs('redis', { ours: true }).describe('calls of the Redis store', () => {
  beforeAll(async () => {
    server = await startRedis({ config: durable })
  })
  afterEach(async () => {
    prefix = randomUUID()
    await Promise.all(opened.splice(0).map((each) => each.close()))
  })
  afterAll(() => server.stop())

  for (const driver of drivers) {
    test(`${driver}: a replay is one command, and so are many of one moment`, async () => {
      const store = await openStore(driver)
      const keys = times(16).map((index) => key('calls', `${index}`))
      await Promise.all(keys.map((each) => finish(store, each, bytesOf(each.id))))
      // The first after a grant brings along the check that a grant needs.
      assertSettled(await ask(store, keys[1]!), bytesOf('1'))
      // Now and then a native command asks for the time, too, and says how long the mark is kept.
      const count = (): Promise<number> => commandCount('set', 'get', 'incr', 'mget')
      const inScript = driver === 'ioredis' ? 1 : 0 // its MGET
      const before = await count()
      assertSettled(await ask(store, keys[0]!), bytesOf('0'))
      expect((await count()) - before - inScript).toBe(1)
      await Promise.all(keys.map((each) => ask(store, each)))
      // One script for all of them. The short one has a SET for each, counts, and looks at register and floor.
      expect((await count()) - before - 2 * inScript).toBe(driver === 'ioredis' ? 2 : 1 + 1 + keys.length + 3)
    })

    test(`${driver}: every call of a batch keeps what is its own, whatever the others bring`, async () => {
      const store = await openStore(driver)
      const each = times(40).map((index) => ({
        key: key('calls', `mixed ${index} ü`),
        leaseMs: leaseMs + (index % 7) * 1_000,
        // None, empty, small, and large enough for a name of its own.
        bytes: [undefined, new Uint8Array(0), bytesOf(`${index} é\n`), new Uint8Array(600).fill(index)][index % 4],
      }))
      const claims = await Promise.all(
        each.map((one) => take(store, one.key, { leaseMs: one.leaseMs, ...(one.bytes && { input: one.bytes }) })),
      )
      const running = await Promise.all(each.map((one) => store.show(one.key)))
      const bytesIn = (bytes: Uint8Array | undefined): string | undefined => bytes && Buffer.from(bytes).toString('hex')
      running.forEach((entry, index) => {
        expect(entry!.leaseUntilMs - entry!.firstClaimedAtMs).toBe(each[index]!.leaseMs)
        expect(bytesIn(entry!.input)).toBe(bytesIn(each[index]!.bytes))
      })
      const outcomeOf = (index: number): Uint8Array => each[(index + 1) % 40]!.bytes ?? bytesOf('none')
      await Promise.all(claims.map((claim, index) => store.settle(claim, outcomeOf(index), retention)))
      const verdicts = await Promise.all(each.map((one) => ask(store, one.key)))
      verdicts.forEach((verdict, index) => assertSettled(verdict, outcomeOf(index)))
    })

    test(`${driver}: calls of one key in one batch see each other`, async () => {
      const store = await openStore(driver)
      const held = await take(store, key('calls', 'same'))
      const other = { ...held, token: randomUUID() }
      const elder = { ...held, fence: held.fence - 1 }
      const fenced = await Promise.all([
        store.extend(held, leaseMs),
        store.settle(other, bytesOf('zombie'), retention),
        store.settle(elder, bytesOf('zombie'), retention),
        store.settle(held, bytesOf('first'), retention),
        store.settle(held, bytesOf('second'), retention),
        store.release(held, 'open'),
      ])
      expect(fenced).toEqual(['done', 'lost', 'lost', 'done', 'done', 'lost'])
      assertSettled(await ask(store, held.key), bytesOf('first'))
      const brief = await take(store, key('calls', 'brief'))
      expect(await Promise.all([store.release(brief, 'forget'), store.extend(brief, leaseMs)])).toEqual([
        'done',
        'lost',
      ])
      const granted = (await Promise.all(times(5).map(() => ask(store, brief.key)))).map((verdict) => verdict.is)
      expect(granted).toEqual(['granted', 'busy', 'busy', 'busy', 'busy'])
    })

    test(`${driver}: a heartbeat does not wait behind calls without a reply`, async () => {
      const { store, link } = await storeOnHangingLink(driver, { timeoutMs: 3_000 })
      const held = await take(store, key('calls', 'held'))
      link.hangs = true
      const hanging = times(6).map(async (index) => {
        // Each in a turn of its own, so that each is a command of its own.
        for (let turn = 0; turn < index * 2; turn++) await setImmediate()
        return store.release({ ...held, token: randomUUID() }, 'open').catch(() => 'failed' as const)
      })
      await pollUntil('the lane to be full', () => link.sent === 4)
      link.hangs = false
      expect(await Promise.race([store.extend(held, leaseMs), ...hanging])).toBe('done')
      // Two of them waited for their turn, and then had no caller any more or found nothing of theirs.
      expect((await Promise.all(hanging)).filter((each) => each === 'failed').length).toBeGreaterThanOrEqual(4)
    })

    test(`${driver}: what has waited behind a hanging server for as long as its caller waits is not sent`, async () => {
      const { store, link } = await storeOnHangingLink(driver, { timeoutMs: 400 })
      await take(store, key('calls', 'before'))
      link.hangs = true
      link.sent = 0
      // Four commands of 64 calls hang. The rest has waited too long when they time out.
      const failures = await Promise.all(times(9 * 64).map((index) => failureOf(ask(store, key('calls', `${index}`)))))
      expect(link.sent).toBe(4)
      expect(new Set(failures.map((each) => each.code))).toEqual(new Set(['STORE_UNAVAILABLE']))
      const unsent = failures.filter((each) => each.message.includes('was not sent'))
      expect(unsent).toHaveLength(5 * 64)
      expect(unsent[0]!.message).toContain('calls/256')
    })

    test(`${driver}: of a write that was not sent it is said that it was not done`, async () => {
      const { store, link } = await storeOnHangingLink(driver, { timeoutMs: 400 })
      const held = await take(store, key('calls', 'held'))
      link.hangs = true
      const failures = await Promise.all(times(6 * 64).map(() => failureOf(store.release(held, 'open'))))
      const saidOf = (isSent: boolean): Set<string> =>
        new Set(
          failures.filter((each) => each.message.includes('was not sent') !== isSent).map((each) => each.executed),
        )
      expect(saidOf(true)).toEqual(new Set(['unknown']))
      expect(saidOf(false)).toEqual(new Set(['no']))
    })

    test(`${driver}: outcomes that are large together are sent apart, and arrive`, async () => {
      const store = await openStore(driver)
      const keys = times(6).map((index) => key('calls', `large ${index}`))
      const outcomeOf = (index: number): Uint8Array => new Uint8Array(300_000).fill(index)
      const claims = await Promise.all(keys.map((each) => take(store, each)))
      const before = await commandCount()
      await Promise.all(claims.map((claim, index) => store.settle(claim, outcomeOf(index), retention)))
      expect((await commandCount()) - before).toBe(keys.length)
      const verdicts = await Promise.all(keys.map((each) => ask(store, each)))
      verdicts.forEach((verdict, index) => assertSettled(verdict, outcomeOf(index)))
    })

    test(`${driver}: scripts that the server has forgotten are sent again`, async () => {
      const store = await openStore(driver)
      await finish(store, key('calls', 'before'), bytesOf('before'))
      await redisCommand(server.url, 'SCRIPT', 'FLUSH', 'SYNC')
      assertSettled(await ask(store, key('calls', 'before')), bytesOf('before'))
      await redisCommand(server.url, 'SCRIPT', 'FLUSH', 'SYNC')
      const verdicts = await Promise.all(times(200).map((index) => ask(store, key('calls', `${index}`))))
      for (const verdict of verdicts) assertGranted(verdict, 'fresh', 1)
    })

    test(`${driver}: a claim that lay in the client until its caller had given up is not granted`, async () => {
      await using proxy: FaultProxy = await startFaultProxy({ target: server, framer: 'redis' })
      const store = await openStore(driver, { timeoutMs: 300 }, proxy.url)
      await eventually(() => take(store, key('calls', `warm up ${randomUUID()}`)))
      await proxy.setMode('refuse')
      proxy.resetConnections()
      const client = opened.at(-1)!.client as { isReady?: boolean; status?: string }
      await pollUntil('the client to notice', () => !client.isReady && client.status !== 'ready')
      const error = await failureOf(ask(store, key('calls', 'late')))
      expect(error.code).toBe('STORE_UNAVAILABLE')
      await proxy.setMode('pass')
      // Whatever the client still holds goes out before this.
      await eventually(() => ask(store, key('calls', 'after')))
      const other = await openStore()
      assertGranted(await ask(other, key('calls', 'late')), 'fresh', 1)
    })
  }

  test("node-redis: a call to a client without a connection ends with the client's own time-out, and is not sent later", async () => {
    await using proxy: FaultProxy = await startFaultProxy({ target: server, framer: 'redis' })
    const client = createClient({ url: proxy.url, commandOptions: { timeout: 100 } }).on('error', () => {})
    opened.push({ client, send: () => Promise.resolve(), close: async () => client.destroy() })
    await client.connect()
    const store = redisStore({ client, prefix })
    await take(store, key('calls', 'warm up'))
    await proxy.setMode('refuse')
    proxy.resetConnections()
    await pollUntil('the client to notice', () => !client.isReady)
    const error = await failureOf(ask(store, key('calls', 'during the outage')))
    expect(error.cause).toBeInstanceOf(TimeoutError)
  })

  test('1,000 duplicates from two processes are one grant', async () => {
    const url = (path: string): string => JSON.stringify(new URL(path, import.meta.url).href)
    const code = `
      import { connect } from ${url('../../../test/subjects/redis.ts')}
      import { redisStore } from ${url('../redis.ts')}
      import { ask } from ${url('../../testing/store-contract.ts')}
      const [address, prefix, driver] = process.argv.slice(1)
      const { client, close } = await connect(driver, address)
      const store = redisStore({ client, prefix })
      await ask(store, { scope: 'calls', id: 'warm up' })
      process.stdout.write('ready')
      process.stdin.once('data', async () => {
        const verdicts = await Promise.all(Array.from({ length: 500 }, () => ask(store, { scope: 'calls', id: 'duplicate' })))
        process.stdout.write(' ' + verdicts.filter((each) => each.is === 'granted').length + ' ' + verdicts.filter((each) => each.is === 'busy').length)
        await close()
        process.exit()
      })
    `
    const children = drivers.map((driver) =>
      spawn(process.execPath, ['--input-type=module', '-e', code, server.url, prefix, driver], {
        stdio: ['pipe', 'pipe', 'inherit'],
      }),
    )
    const output = children.map((child) => {
      let text = ''
      child.stdout.on('data', (chunk: Buffer) => (text += chunk.toString()))
      return () => text
    })
    await Promise.all(children.map((child) => once(child.stdout, 'data')))
    for (const child of children) child.stdin.write('go')
    await Promise.all(children.map((child) => once(child, 'close')))
    const counts = output.map((text) => text().split(' ').slice(1).map(Number))
    expect(counts.reduce((sum, [granted]) => sum + granted!, 0)).toBe(1)
    expect(counts.reduce((sum, [, busy]) => sum + busy!, 0)).toBe(999)
  })

  test('Redis forgets an entry by itself when its tombstone is over, and a large outcome when it expires', async () => {
    const store = await openStore()
    const expiry = async (name: string): Promise<number> => Number(await redisCommand(server.url, 'PEXPIRETIME', name))
    const large: Key = key('calls', 'large')
    await finish(store, large, new Uint8Array(100_000))
    const names = namesUnder(prefix).of(large)
    const entry = (await store.show(large))!
    expect(entry.expiresAtMs - entry.leaseUntilMs).toBe(retention.keepMs)
    expect(await expiry(names.entry)).toBe(entry.forgottenAtMs)
    expect(await expiry(names.outcome)).toBe(entry.expiresAtMs)
    const claim = await take(store, key('calls', 'running'))
    const running = (await store.show(claim.key))!
    expect(running.leaseUntilMs - running.firstClaimedAtMs).toBe(leaseMs)
    expect(await expiry(namesUnder(prefix).of(claim.key).entry)).toBe(running.forgottenAtMs)
  })

  test('a keep prolongs how long Redis keeps an entry and its large outcome', async () => {
    const store = await openStore()
    const large: Key = key('calls', 'kept')
    await finish(store, large, new Uint8Array(100_000))
    await store.mend(large, { keepMs: 30 * 86_400_000 }, 'a dispute')
    const names = namesUnder(prefix).of(large)
    const entry = (await store.show(large))!
    expect(entry.expiresAtMs - entry.leaseUntilMs).toBeGreaterThanOrEqual(30 * 86_400_000)
    const expiries = [names.entry, names.outcome].map((name) => redisCommand(server.url, 'PEXPIRETIME', name))
    expect((await Promise.all(expiries)).map(Number)).toEqual([entry.forgottenAtMs, entry.expiresAtMs])
  })

  test('the scripts find the other names of an entry, whatever its key is like', async () => {
    const store = await openStore()
    for (const id of ['}:entry:', '{1}:entry:a/b', 'x}:entry:{y', ':entry:%']) {
      const odd = key('calls/}:entry:', id)
      const names = namesUnder(prefix).of(odd)
      const outcome = new Uint8Array(2_000).fill(7)
      await finish(store, odd, outcome)
      assertSettled(await ask(store, odd), outcome)
      expect(Number(await redisCommand(server.url, 'EXISTS', names.entry, names.outcome))).toBe(2)
      await store.mend(odd, 'forget', 'a test')
      expect(Number(await redisCommand(server.url, 'EXISTS', names.entry, names.outcome))).toBe(0)
      expect(await store.audit(odd)).toMatchObject([{ action: 'forget', reason: 'a test', before: 'settled' }])
    }
  })

  test('a foreign or damaged value under a name fails its own key, closed, and no other of the batch', async () => {
    const store = await openStore()
    const names = namesUnder(prefix)
    const [list, short, garbled, fine] = ['list', 'short', 'garbled', 'fine'].map((id) => key('calls', id)) as [
      Key,
      Key,
      Key,
      Key,
    ]
    await redisCommand(server.url, 'RPUSH', names.of(list).entry, 'x')
    await redisCommand(server.url, 'SET', names.of(short).entry, 'settled')
    await redisCommand(server.url, 'SET', names.of(garbled).entry, 'x'.repeat(300))
    const [foreign, damaged, mangled, verdict] = await Promise.all([
      failureOf(ask(store, list)),
      failureOf(ask(store, short)),
      failureOf(ask(store, garbled)),
      ask(store, fine),
    ])
    expect([foreign.code, damaged.code, mangled.code]).toEqual([
      'STORE_UNAVAILABLE',
      'OUTCOME_UNREADABLE',
      'OUTCOME_UNREADABLE',
    ])
    assertGranted(verdict, 'fresh', 1)
  })

  test('an entry of which any one byte is damaged is never granted', async () => {
    const store = await openStore()
    const each = key('calls', 'flipped')
    await finish(store, each, bytesOf('once'))
    const { entry: name } = namesUnder(prefix).of(each)
    const whole = String(await redisCommand(server.url, 'GET', name))
    for (let index = 0; index < entryLength; index++) {
      await redisCommand(server.url, 'SET', name, `${whole.slice(0, index)} ${whole.slice(index + 1)}`)
      const answer = await ask(store, each, { onExpired: 'run' }).catch((error: unknown) => error)
      const refused = answer instanceof OnceError || (answer as Verdict).is === 'mismatch'
      expect(refused || (answer as Verdict).is === 'settled', `byte ${index}: ${JSON.stringify(answer)}`).toBe(true)
    }
  })

  test('an entry whose fence is no exact number is unreadable: the one after it could be the same', async () => {
    const store = await openStore()
    const { fingerprint, token } = request()
    const each = key('calls', 'beyond')
    const { entry: name } = namesUnder(prefix).of(each)
    const times = '0001700000000000 0004102448400000 0004102531200000'
    for (const fence of ['9007199254740993', '9999999999999999']) {
      const written = `open    fresh      ${times} 0000000001 ${fence} 0001700000000000 ${token} ${fingerprint} 0000000001`
      await redisCommand(server.url, 'SET', name, written)
      await expect(ask(store, each)).rejects.toMatchObject({ code: 'OUTCOME_UNREADABLE' })
      await expect(store.show(each)).rejects.toMatchObject({ code: 'OUTCOME_UNREADABLE' })
    }
  })

  test('what is damaged is forgotten when a person says so, whatever it is, and the audit tells', async () => {
    const store = await openStore()
    const each = key('calls', 'garbage')
    const { entry: name } = namesUnder(prefix).of(each)
    const garbage = ['', 'garbage', `running ${'x'.repeat(240)}`, 'settled'.padEnd(entryLength, '9'), '\u0000ÿ']
    for (const bytes of garbage) {
      await redisCommand(server.url, 'SET', name, bytes)
      await expect(ask(store, each)).rejects.toMatchObject({ code: 'OUTCOME_UNREADABLE' })
      await expect(store.mend(each, 'release', 'a test')).rejects.toMatchObject({ code: 'OUTCOME_UNREADABLE' })
      expect(await store.mend(each, 'forget', 'a test')).toMatchObject({ key: each, state: 'abandoned' })
      expect(await redisCommand(server.url, 'EXISTS', name)).toBe(0)
    }
    const audit = await store.audit(each)
    expect(audit).toHaveLength(garbage.length)
    expect(audit[0]).toMatchObject({ action: 'forget', before: 'abandoned', reason: 'a test' })
    assertGranted(await ask(store, each), 'fresh', 1)
  })

  test('a server without memory still takes a release, so that the key is free', async () => {
    const store = await openStore()
    const [held, other] = [await take(store, key('calls', 'full')), await take(store, key('calls', 'full, open'))]
    await redisCommand(server.url, 'CONFIG', 'SET', 'maxmemory', '1')
    try {
      expect(await store.release(held, 'forget')).toBe('done')
      await expect(ask(store, key('calls', 'no room'))).rejects.toMatchObject({ code: 'STORE_UNAVAILABLE' })
    } finally {
      await redisCommand(server.url, 'CONFIG', 'SET', 'maxmemory', '0')
    }
    assertGranted(await ask(store, held.key), 'fresh', 1)
    expect(await store.release(other, 'open')).toBe('done')
  })

  // Versions of this package share a server while they are rolled out: none may write an entry that another cannot read.
  test('the form of an entry is fixed: one that an earlier version wrote is held, extended, settled and replayed', async () => {
    const store = await openStore()
    const { fingerprint, token } = request()
    const claim = { key: key('calls', 'earlier'), token, attempt: 1, fence: 1_790_000_000_000_001 }
    const { entry: name } = namesUnder(prefix).of(claim.key)
    const times = '0004102444800000 0004102448400000 0004102531200000'
    const written = `running fresh      ${times} 0000000001 1790000000000001 0001790000000000 ${token} ${fingerprint} 0000000001`
    await redisCommand(server.url, 'SET', name, written)
    expect(await store.settle({ ...claim, fence: claim.fence - 1 }, bytesOf('zombie'), retention)).toBe('lost')
    expect(await store.extend(claim, leaseMs)).toBe('done')
    expect(await store.settle(claim, bytesOf('once'), retention)).toBe('done')
    const settled = String(await redisCommand(server.url, 'GET', name))
    expect(settled.slice(70)).toBe(`${written.slice(70)}\nonce`)
    expect(settled.slice(0, 19)).toBe('settled fresh      ')
    assertSettled(await ask(store, claim.key), bytesOf('once'))
  })

  test('an outcome that is gone while its entry says settled is unreadable, and is not run again', async () => {
    const store = await openStore()
    await finish(store, key('calls', 'gone'), new Uint8Array(10_000))
    await redisCommand(server.url, 'DEL', namesUnder(prefix).of(key('calls', 'gone')).outcome)
    expect((await failureOf(ask(store, key('calls', 'gone')))).code).toBe('OUTCOME_UNREADABLE')
  })

  test('a full server refuses new keys and still replays', async () => {
    await using full = await startRedis({ config: { ...durable, maxmemory: '100mb' } })
    const store = await openStore('node-redis', {}, full.url)
    await finish(store, key('calls', 'known'), bytesOf('known'))
    await redisCommand(full.url, 'CONFIG', 'SET', 'maxmemory', '1')
    const [replayed, refused] = await Promise.all([
      ask(store, key('calls', 'known')),
      failureOf(ask(store, key('calls', 'new'))),
    ])
    assertSettled(replayed, bytesOf('known'))
    expect([refused.code, refused.executed]).toEqual(['STORE_UNAVAILABLE', 'no'])
    expect(refused.message).toContain('OOM')
  })

  test('a pool of node-redis is one store', async () => {
    const pool = createClientPool({ url: server.url }, { minimum: 3 })
    await pool.connect()
    const store = redisStore({ client: pool, prefix })
    const keys = times(100).map((index) => key('calls', `${index}`))
    await Promise.all(keys.map((each) => finish(store, each, bytesOf(each.id))))
    const verdicts = await Promise.all(keys.map((each) => ask(store, each)))
    verdicts.forEach((verdict, index) => assertSettled(verdict, bytesOf(`${index}`)))
    expect(await store.quarantine()).toBeUndefined()
    pool.destroy()
  })

  test('two prefixes are two stores', async () => {
    const [one, two] = [await openStore(), await openStore('ioredis', { prefix: `${prefix}:two` })]
    await finish(one, key('calls', 'same'), bytesOf('one'))
    assertGranted(await ask(two, key('calls', 'same')), 'fresh', 1)
    expect((await one.list({ limit: 10 })).map((entry) => entry.state)).toEqual(['settled'])
    expect((await two.list({ limit: 10 })).map((entry) => entry.state)).toEqual(['running'])
  })
})

test('options are checked at once', () => {
  const sendCommand = (): Promise<never> => Promise.reject(new Error('not asked'))
  const client: RedisClient = { sendCommand, withTypeMapping: () => undefined }
  expect(() => redisStore({ client, evictoin: 'accept' } as never)).toThrow(
    'unknown option "evictoin", did you mean "eviction"?',
  )
  expect(() => redisStore({ client, prefix: 'a{b}' })).toThrow('expected prefix to be 1 to 64 letters')
  expect(() => redisStore({ client, timeoutMs: 0 })).toThrow(
    'expected timeoutMs to be a positive integer of milliseconds, got 0',
  )
  expect(() => redisStore({ client: {} as never })).toThrow('expected client to be a client of node-redis')
  const prefixed = { callBuffer: sendCommand, isCluster: false, options: { keyPrefix: 'app:' } }
  expect(() => redisStore({ client: prefixed as never })).toThrow('without keyPrefix, got "app:"')
})

test('a client of node-redis 4 is refused at once: it would answer with text where bytes are asked for', () => {
  const sendCommand = (): Promise<never> => Promise.reject(new Error('not asked'))
  // createClient() and createCluster() of version 4, as far as they can be told from later ones.
  for (const client of [{ sendCommand }, { sendCommand, nodeClient: sendCommand }])
    expect(() => redisStore({ client: client as never })).toThrow('expected a client of node-redis 5 or later')
})

// Resolve and keep, where Redis is special: a large outcome lies under its own name, with its own time to live.
needs('redis', { ours: true }).describe('mending a Redis entry', () => {
  let ground: RedisGround
  beforeAll(async () => {
    ground = await startRedisGround()
  })
  afterAll(() => ground[Symbol.asyncDispose]())

  test.each([
    ['small', bytesOf('found out')],
    ['large', new Uint8Array(5_000).fill(7)],
  ])('a %s outcome that a person found out is replayed, and its holder is fenced off', async (size, outcome) => {
    await using subject = await disposable(ground)
    const aKey = key('mending', `resolve ${size}`)
    const held = await take(subject.store, aKey)
    const reason = 'ünder the provider’s reference 7'
    expect(await subject.store.mend(aKey, { resolve: outcome, retention }, reason)).toMatchObject({ state: 'running' })
    assertSettled(await ask(subject.store, aKey), outcome)
    expect(await subject.store.settle(held, bytesOf('late'), retention)).toBe('lost')
    expect(await subject.store.release(held, 'open')).toBe('lost')
    assertSettled(await ask(subject.store, aKey), outcome)
    expect(await subject.store.audit(aKey)).toMatchObject([{ action: 'resolve', before: 'running', reason }])
    // Only what is not settled can be resolved.
    const again = await subject.store.mend(aKey, { resolve: bytesOf('another'), retention }, 'again')
    expect(again).toMatchObject({ state: 'settled' })
    assertSettled(await ask(subject.store, aKey), outcome)
  })

  test.each([
    ['small', bytesOf('paid')],
    ['large', new Uint8Array(5_000).fill(7)],
  ])('a %s outcome is kept for longer, and never for shorter', async (size, outcome) => {
    await using subject = await disposable(ground)
    const aKey = key('mending', `keep ${size}`)
    const brief = { keepMs: hourMs, tombstoneMs: hourMs }
    await finish(subject.store, aKey, outcome, { retention: brief })
    await subject.store.mend(aKey, { keepMs: 3 * hourMs }, 'a dispute')
    await subject.store.mend(aKey, { keepMs: hourMs / 2 }, 'too short')
    await subject.advance(3 * hourMs - 1)
    assertSettled(await ask(subject.store, aKey), outcome)
    await subject.advance(1)
    expect(await ask(subject.store, aKey)).toEqual({ is: 'expired' })
    await subject.advance(hourMs)
    expect(await ask(subject.store, aKey)).toMatchObject({ is: 'granted', how: 'fresh' })
  })
})

interface Disposable extends AsyncDisposable {
  readonly store: RedisStore
  advance(ms: number): Promise<void>
}

async function disposable(ground: RedisGround): Promise<Disposable> {
  const subject = await ground.createSubject('node-redis')
  return {
    store: subject.store as RedisStore,
    advance: async (ms) => subject.advance(ms),
    [Symbol.asyncDispose]: () => subject.destroy(),
  }
}
