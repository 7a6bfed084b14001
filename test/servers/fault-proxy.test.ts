// The fault proxy in front of a plain echo server, where every byte can be followed, and in front of PostgreSQL and Redis,
// where the faults are the ones that our promises are about.
import { once } from 'node:events'
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net'
import pg from 'pg'
import { createClient } from 'redis'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type FaultProxy, startFaultProxy } from './fault-proxy.ts'
import { needs } from './needs.ts'
import { pollUntil } from './poll.ts'
import { type RunningPostgres, startPostgres } from './postgres.ts'
import { redisCommand } from './redis/command.ts'
import { startRedis } from './redis.ts'

// A client that remembers what it got and how it ended.
interface Client {
  socket: Socket
  got: string
  ended: string | undefined
}

async function open(port: number): Promise<Client> {
  const socket = connect(port, '127.0.0.1')
  const client: Client = { socket, got: '', ended: undefined }
  socket.on('data', (chunk: Buffer) => (client.got += chunk.toString()))
  socket.on('error', (error: NodeJS.ErrnoException) => (client.ended = error.code))
  socket.on('close', () => (client.ended ??= 'closed'))
  await once(socket, 'connect').catch(() => {})
  return client
}

describe('in front of an echo server', () => {
  let server: Server
  let proxy: FaultProxy
  let heard = ''
  beforeEach(async () => {
    heard = ''
    server = createServer((socket) => {
      socket.on('error', () => {})
      socket.on('data', (chunk: Buffer) => {
        heard += chunk.toString()
        socket.write(chunk)
      })
    }).listen(0, '127.0.0.1')
    await once(server, 'listening')
    proxy = await startFaultProxy({ target: { url: `tcp://127.0.0.1:${(server.address() as AddressInfo).port}` } })
  })
  afterEach(async () => {
    await proxy.close()
    server.close()
  })

  async function say(client: Client, text: string): Promise<void> {
    const before = proxy.counts.request.bytes
    client.socket.write(text)
    await pollUntil(`the proxy to have ${text}`, () => proxy.counts.request.bytes === before + text.length)
  }
  const gets = (client: Client, text: string): Promise<boolean> => pollUntil(text, () => client.got === text)
  const ends = (client: Client): Promise<string> => pollUntil('the end', () => client.ended)

  test('pass: everything arrives and is counted', async () => {
    const client = await open(proxy.port)
    await say(client, 'hello')
    await gets(client, 'hello')
    expect(proxy.counts).toEqual({
      connections: 1,
      open: 1,
      request: { messages: 1, bytes: 5 },
      reply: { messages: 1, bytes: 5 },
    })
    client.socket.end()
    await pollUntil('the end to be counted', () => proxy.counts.open === 0)
  })

  test('delay: everything arrives in order, not before its time, also when the mode changes in between', async () => {
    const client = await open(proxy.port)
    await proxy.setMode({ delayMs: 150 })
    const startMs = performance.now()
    await say(client, 'late ')
    await proxy.setMode('pass')
    await say(client, 'early')
    await gets(client, 'late early')
    expect(performance.now() - startMs).toBeGreaterThanOrEqual(145)
  })

  test('blackHole: the server hears nothing, also not of new connections; healed, what lost bytes is reset', async () => {
    const client = await open(proxy.port)
    await say(client, 'a')
    await gets(client, 'a')
    const quiet = await open(proxy.port)
    await proxy.setMode('blackHole')
    await say(client, 'b')
    const late = await open(proxy.port)
    await say(late, 'c')
    await proxy.setMode('pass')
    expect([await ends(client), await ends(late)]).toEqual(['ECONNRESET', 'ECONNRESET'])
    await say(quiet, 'd')
    await gets(quiet, 'd')
    expect(heard).toBe('ad')
  })

  test('dropRequest: the server hears nothing', async () => {
    const client = await open(proxy.port)
    await proxy.setMode('dropRequest')
    await say(client, 'lost')
    const other = await open(proxy.port)
    await proxy.setMode('pass')
    await say(other, 'x')
    await gets(other, 'x')
    expect(heard).toBe('x')
  })

  test('dropReply: the server hears everything, the client nothing', async () => {
    const client = await open(proxy.port)
    await proxy.setMode('dropReply')
    await say(client, 'one ')
    await say(client, 'two')
    await pollUntil('the server to hear', () => heard === 'one two')
    await pollUntil('the echo to vanish', () => proxy.counts.reply.bytes === 7)
    expect(client.got).toBe('')
  })

  test('refuse: new connections are refused, open ones go on, and later ones are taken again', async () => {
    const client = await open(proxy.port)
    await say(client, 'a')
    await proxy.setMode('refuse')
    expect(await ends(await open(proxy.port))).toBe('ECONNREFUSED')
    await say(client, 'b')
    await gets(client, 'ab')
    await proxy.setMode('pass')
    const later = await open(proxy.port)
    await say(later, 'c')
    await gets(later, 'c')
  })

  test('reset: open connections are reset, and new ones, too', async () => {
    const client = await open(proxy.port)
    await say(client, 'a')
    await proxy.setMode('reset')
    expect(await ends(client)).toBe('ECONNRESET')
    expect(await ends(await open(proxy.port))).toBe('ECONNRESET')
  })

  test('cutAfterBytes: exactly so many bytes are delivered', async () => {
    const cut = proxy.cutAfterBytes({ direction: 'request', bytes: 7 })
    const client = await open(proxy.port)
    client.socket.write('hello')
    await gets(client, 'hello')
    client.socket.write('world')
    await cut.happened
    expect(await ends(client)).toBe('ECONNRESET')
    await pollUntil('the rest to arrive', () => heard === 'hellowo')
  })

  test('cutAfterBytes of the reply: the client has them all and then the end', async () => {
    proxy.cutAfterBytes({ direction: 'reply', bytes: 3 })
    const client = await open(proxy.port)
    client.socket.write('hello')
    expect(await ends(client)).toBe('closed')
    expect(client.got).toBe('hel')
    expect(heard).toBe('hello')
  })

  for (const [side, expected] of [
    ['before', 'a'],
    ['after', 'ab'],
  ] as const) {
    test(`cutAt the second message, ${side} it is delivered`, async () => {
      const cut = proxy.cutAt({ direction: 'request', message: 2, side })
      const client = await open(proxy.port)
      await say(client, 'a')
      await gets(client, 'a')
      client.socket.write('b')
      await cut.happened
      expect(await ends(client)).toBe('ECONNRESET')
      await pollUntil('the server to have heard', () => heard === expected)
    })
  }

  test('a server that is not there resets the client', async () => {
    server.close()
    expect(await ends(await open(proxy.port))).toBe('ECONNRESET')
  })
})

needs('postgres').describe('in front of PostgreSQL', () => {
  let server: RunningPostgres
  let direct: pg.Pool
  let proxy: FaultProxy
  let client: pg.Client
  beforeAll(async () => {
    server = await startPostgres()
    direct = new pg.Pool({ connectionString: server.url })
    direct.on('error', () => {})
    await direct.query('CREATE TABLE effects (name text)')
  })
  afterAll(async () => {
    await direct.end()
    await server.stop()
  })
  beforeEach(async () => {
    proxy = await startFaultProxy({ target: server, framer: 'postgres' })
    client = new pg.Client({ connectionString: proxy.url })
    client.on('error', () => {})
    await client.connect()
  })
  afterEach(() => proxy.close())

  async function insertIn(name: string): Promise<void> {
    await client.query('BEGIN')
    await client.query('INSERT INTO effects VALUES ($1)', [name])
  }
  async function countOf(name: string): Promise<number> {
    return (await direct.query('SELECT FROM effects WHERE name = $1', [name])).rowCount ?? 0
  }
  const nobodyElse = (): Promise<unknown> =>
    pollUntil('the cut connection to end on the server', async () => {
      const sql = "SELECT FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
      return (await direct.query(sql)).rowCount === 0
    })

  test('the COMMIT that succeeded while the client saw a connection error', async () => {
    await insertIn('request delivered')
    proxy.cutAt({ direction: 'request', match: 'COMMIT', side: 'after' })
    await expect(client.query('COMMIT')).rejects.toThrow(/ECONNRESET|terminated/)
    await nobodyElse()
    expect(await countOf('request delivered')).toBe(1)
  })

  test('the COMMIT whose reply was lost at the last moment', async () => {
    await insertIn('reply lost')
    proxy.cutAt({ direction: 'reply', match: 'COMMIT', side: 'before' })
    await expect(client.query('COMMIT')).rejects.toThrow(/ECONNRESET|terminated/)
    expect(await countOf('reply lost')).toBe(1)
  })

  test('the COMMIT that never arrived looks the same to the client', async () => {
    await insertIn('request lost')
    proxy.cutAt({ direction: 'request', match: 'COMMIT', side: 'before' })
    await expect(client.query('COMMIT')).rejects.toThrow(/ECONNRESET|terminated/)
    await nobodyElse()
    expect(await countOf('request lost')).toBe(0)
  })

  test('messages are counted as PostgreSQL counts them', async () => {
    const before = { ...proxy.counts.request }
    await client.query('SELECT $1::int', [1])
    // Parse, bind, describe, execute, sync.
    expect(proxy.counts.request.messages - before.messages).toBe(5)
  })
})

needs('redis').describe('in front of Redis', () => {
  test('the INCR that was counted while its reply was lost', async () => {
    await using server = await startRedis()
    await using proxy = await startFaultProxy({ target: server, framer: 'redis' })
    const client = createClient({ url: proxy.url, socket: { reconnectStrategy: false } })
    client.on('error', () => {})
    await client.connect()
    proxy.cutAt({ direction: 'request', match: 'INCR', side: 'after' })
    await expect(client.incr('count')).rejects.toThrow()
    await pollUntil('the server to have counted', async () => (await redisCommand(server.url, 'GET', 'count')) === '1')
  })
})
