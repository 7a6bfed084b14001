import { once } from 'node:events'
import { createServer } from 'node:http'
import type { RequestListener, Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, describe, expect, test } from 'vitest'
import { soon } from '../../../test/soon.ts'
import { systemClock } from '../../core/clock.ts'
import { addressGuard } from './addresses.ts'
import { checkedUrl, guardedAgent } from './guard.ts'
import type { LookupAll } from './guard.ts'
import { post } from './posting.ts'
import type { Posted } from './posting.ts'

const open: Server[] = []
afterEach(async () => {
  for (const server of open.splice(0)) {
    server.closeAllConnections()
    server.close()
    await once(server, 'close')
  }
})

async function listen(address: string, listener: RequestListener, port = 0): Promise<number> {
  const server = createServer(listener)
  open.push(server)
  server.listen(port, address)
  await once(server, 'listening')
  return (server.address() as AddressInfo).port
}

interface Sending {
  readonly allow?: readonly string[]
  readonly lookup?: LookupAll
  readonly timeoutMs?: number
  readonly responseBytesMax?: number
}

async function send(
  url: string,
  { allow = [], lookup, timeoutMs = 5_000, responseBytesMax = 65_536 }: Sending = {},
): Promise<Posted> {
  const agent = guardedAgent({ guard: addressGuard(allow), connectMs: 5_000, ...(lookup && { lookup }) })
  try {
    return await post(
      agent,
      { url, headers: {}, body: Buffer.from('{}') },
      { timeoutMs, responseBytesMax },
      systemClock,
    )
  } finally {
    await agent.destroy()
  }
}

const answers = (...rounds: readonly (readonly string[])[]): LookupAll => {
  let round = 0
  return (_hostname, _options, callback) => {
    const addresses = rounds[Math.min(round++, rounds.length - 1)]!
    callback(
      null,
      addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 })),
    )
  }
}

describe('addresses', () => {
  const guard = addressGuard()
  test.each([
    '0.0.0.0',
    '0.1.2.3',
    '10.0.0.1',
    '100.64.0.1',
    '100.127.255.255',
    '127.0.0.1',
    '127.255.255.254',
    '168.63.129.16',
    '169.254.169.254',
    '169.254.0.1',
    '172.16.0.1',
    '172.31.255.255',
    '192.0.0.192',
    '192.0.2.1',
    '192.168.1.1',
    '198.18.0.1',
    '198.51.100.1',
    '203.0.113.1',
    '224.0.0.1',
    '239.255.255.255',
    '240.0.0.1',
    '255.255.255.255',
    '::',
    '::1',
    '::127.0.0.1',
    '::ffff:10.0.0.1',
    '::ffff:8.8.8.8',
    '::ffff:7f00:1',
    '64:ff9b::7f00:1',
    '64:ff9b::8.8.8.8',
    '64:ff9b:1::1',
    '100::1',
    '2001::1',
    '2001:db8::1',
    '2002:7f00:1::',
    '3fff::1',
    'fc00::1',
    'fd00:ec2::254',
    'fe80::1',
    'fe80::1%lo',
    'fec0::1',
    'ff02::1',
    'no address',
    '',
  ])('%s is refused', (address) => {
    expect(guard.refuses(address, address)).toBe(true)
  })

  test.each([
    '1.1.1.1',
    '8.8.8.8',
    '9.255.255.255',
    '11.0.0.0',
    '100.63.255.255',
    '100.128.0.0',
    '172.15.0.1',
    '172.32.0.1',
    '223.255.255.255',
    '2606:4700::1',
    '2a00:1450::1',
  ])('%s is public', (address) => expect(guard.refuses(address, address)).toBe(false))

  test('what is allowed by address, by range or by name is not refused, and nothing else is allowed with it', () => {
    const some = addressGuard(['127.0.0.1', '10.1.0.0/16', 'fd00::/8', 'hooks.internal'])
    expect(['127.0.0.1', '10.1.2.3', 'fd12::1'].map((address) => some.refuses('host.example', address))).toEqual([
      false,
      false,
      false,
    ])
    expect(some.refuses('Hooks.Internal', '192.168.0.1')).toBe(false)
    expect(['127.0.0.2', '10.2.0.1', 'fc00::1'].map((address) => some.refuses('host.example', address))).toEqual([
      true,
      true,
      true,
    ])
    for (const wrong of ['10.0.0.0/33', '10.0.0', 'http://host', '', 'a b']) {
      expect(() => addressGuard([wrong])).toThrow(`got ${JSON.stringify(wrong)}`)
    }
  })
})

describe('the URL of an endpoint', () => {
  const check = (url: unknown, httpsOnly = false): string => checkedUrl(url, { guard: addressGuard(), httpsOnly })

  test('is absolute, http or https, and holds no password', () => {
    expect(check('https://example.com/hooks?a=1#part')).toBe('https://example.com/hooks?a=1')
    expect(() => check('http://example.com/', true)).toThrow('an https URL')
    for (const wrong of ['/hooks', 'ftp://example.com', 'file:///etc/passwd', 'javascript:1', 7])
      expect(() => check(wrong)).toThrow('expected url')
    for (const secret of ['https://user@example.com', 'https://user:secret@example.com']) {
      expect(() => check(secret)).toThrow('without a user name and a password')
    }
  })

  test.each([
    'http://2130706433/',
    'http://0x7f000001/',
    'http://0177.0.0.1/',
    'http://127.1/',
    'http://0/',
    'http://0x7f.1/',
    'http://[::1]/',
    'http://[::ffff:127.0.0.1]/',
    'http://[64:ff9b::169.254.169.254]/',
    'http://169.254.169.254/latest/meta-data/',
    'http://１２７.0.0.1/',
  ])('%s is an address that is not public, however it is spelt', (url) => {
    expect(() => check(url)).toThrow('whose address is public or allowed')
  })
})

describe('connections', () => {
  test('a connection to an address that is not allowed is not opened, by address or by name', async () => {
    let connections = 0
    const port = await listen('127.0.0.1', (_req, res) => void res.end())
    open[0]!.on('connection', () => void connections++)
    expect(await send(`http://127.0.0.1:${port}/`)).toMatchObject({
      failure: expect.stringContaining('127.0.0.1 is not a public address'),
    })
    expect(await send(`http://localhost:${port}/`)).toMatchObject({ failure: expect.stringContaining('localhost is ') })
    const lookup = answers(['127.0.0.1'])
    expect(await send(`http://hooks.example:${port}/`, { lookup })).toMatchObject({
      failure:
        'ADDRESS_REFUSED: hooks.example is 127.0.0.1, which is not a public address. Allow it with the option allow, if webhooks may be sent there.',
    })
    expect(connections).toBe(0)
    expect(await send(`http://127.0.0.1:${port}/`, { allow: ['127.0.0.1'] })).toMatchObject({ status: 200 })
    expect(connections).toBe(1)
  })

  test('a name that changes its address between two connections is checked for each, and one address that is refused refuses the name', async () => {
    let inside = 0
    const port = await listen('127.0.0.2', (_req, res) => void res.writeHead(200, { connection: 'close' }).end())
    await listen('127.0.0.1', (_req, res) => void (inside++, res.end()), port)
    const agent = guardedAgent({
      guard: addressGuard(['127.0.0.2']),
      connectMs: 5_000,
      lookup: answers(['127.0.0.2'], ['127.0.0.1'], ['127.0.0.2', '127.0.0.1'], ['127.0.0.1', '127.0.0.2']),
    })
    const limits = { timeoutMs: 5_000, responseBytesMax: 100 }
    const attempt = (): Promise<Posted> =>
      post(agent, { url: `http://hooks.example:${port}/`, headers: {}, body: Buffer.from('{}') }, limits, systemClock)
    expect(await attempt()).toMatchObject({ status: 200 })
    for (let round = 0; round < 3; round++) {
      expect(await attempt()).toMatchObject({ failure: expect.stringContaining('hooks.example is 127.0.0.1') })
    }
    expect(inside).toBe(0)
    await agent.destroy()
  })

  test('a redirect is an answer, and is not followed', async () => {
    const seen: (string | undefined)[] = []
    const port = await listen('127.0.0.1', (req, res) => {
      seen.push(req.url)
      res.writeHead(307, { location: '/inside' }).end()
    })
    expect(await send(`http://127.0.0.1:${port}/hook`, { allow: ['127.0.0.1'] })).toMatchObject({ status: 307 })
    expect(seen).toEqual(['/hook'])
  })
})

describe('limits', () => {
  const allow = ['127.0.0.1']

  test('of an answer without an end only the first bytes are read, and its status counts', async () => {
    const closed = Promise.withResolvers<void>()
    const port = await listen('127.0.0.1', (_req, res) => {
      res.on('close', closed.resolve)
      const more = (): void => void (res.destroyed || res.write('x\0'.repeat(8_192), () => setImmediate(more)))
      more()
    })
    const sending = send(`http://127.0.0.1:${port}/`, { allow, timeoutMs: 60_000, responseBytesMax: 65_536 })
    const { status, response } = await soon('the attempt', sending)
    expect(status).toBe(200)
    expect(response).toBe('x\ufffd'.repeat(512))
    await closed.promise
  })

  test('an endpoint that never answers is given up, and an answer that breaks off after its status counts', async () => {
    const port = await listen('127.0.0.1', (req, res) => {
      if (req.url === '/part') res.write('so far', () => void res.socket?.destroy())
    })
    expect(await soon('the attempt', send(`http://127.0.0.1:${port}/silent`, { allow, timeoutMs: 100 }))).toMatchObject(
      {
        failure: 'no answer within 100 ms',
        response: '',
      },
    )
    expect(await send(`http://127.0.0.1:${port}/part`, { allow })).toMatchObject({ status: 200 })
  })

  test('Retry-After is read as seconds and as a date', async () => {
    const port = await listen('127.0.0.1', (req, res) => {
      const value = req.url === '/date' ? new Date(Date.now() + 60_000).toUTCString() : '30'
      res.writeHead(503, { 'retry-after': value }).end()
    })
    expect(await send(`http://127.0.0.1:${port}/`, { allow })).toMatchObject({ status: 503, retryAfterMs: 30_000 })
    const { retryAfterMs } = await send(`http://127.0.0.1:${port}/date`, { allow })
    expect(retryAfterMs).toBeGreaterThan(0)
    expect(retryAfterMs).toBeLessThanOrEqual(60_000)
  })
})
