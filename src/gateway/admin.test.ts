import { connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { request } from 'node:http'
import type { IncomingHttpHeaders } from 'node:http'
import { expect, describe, test } from 'vitest'
import { systemClock } from '../core/clock.ts'
import { InDoubtError } from '../core/errors.ts'
import { createOnce } from '../core/once.ts'
import type { Once } from '../core/once.ts'
import type { Store } from '../core/store.ts'
import { encodeAnswer } from '../http/exchange.ts'
import { memoryStore } from '../stores/memory.ts'
import type { MemoryStore } from '../stores/memory.ts'
import { manualClock } from '../testing/manual-clock.ts'
import { operationsSection } from './admin/operations.ts'
import { startAdmin } from './admin.ts'
import type { Admin, AdminOptions } from './admin.ts'

const token = 'a token of enough characters'
const secret = 'card wxyz wxyz wxyz wxyz'

interface World {
  readonly admin: Admin
  readonly once: Once<MemoryStore>
  readonly port: number
}

async function withAdmin(given: Partial<AdminOptions>, body: (world: World) => Promise<void>): Promise<void> {
  const store = (given.store ?? memoryStore()) as MemoryStore
  const once = createOnce({ store, scope: 'shop' })
  const listen = { host: '127.0.0.1', port: 0 }
  const metrics = { text: () => 'requests_total 1\n' }
  const admin = await startAdmin({ once, store, metrics, listen, notReady: () => undefined, ...given })
  try {
    await body({ admin, once, port: Number(new URL(admin.url).port) })
  } finally {
    await admin.close()
    await once.close()
  }
}

interface Asked {
  readonly method?: string
  readonly headers?: Record<string, string>
  readonly body?: string
}

interface Answered {
  readonly status: number
  readonly headers: IncomingHttpHeaders
  readonly text: string
}

/** Not fetch: it decides itself about Host and Sec-Fetch-Site. */
function ask(port: number, path: string, { method = 'GET', headers = {}, body = '' }: Asked = {}): Promise<Answered> {
  return new Promise((resolve, reject) => {
    const asked = request({ host: '127.0.0.1', port, path, method, headers, agent: false }, (answer) => {
      const chunks: Buffer[] = []
      answer.on('data', (chunk: Buffer) => chunks.push(chunk))
      answer.on('end', () => {
        resolve({ status: answer.statusCode!, headers: answer.headers, text: Buffer.concat(chunks).toString() })
      })
    })
    asked.on('error', reject).end(body)
  })
}

function change(port: number, action: string, body: unknown, headers: Record<string, string> = {}): Promise<Answered> {
  return ask(port, `/api/${action}`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', Authorization: `Bearer ${token}`, ...headers },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  })
}

async function pay(once: Once, id: string): Promise<void> {
  const headers = [['Content-Type', 'application/json']] as const
  const answer = { status: 201, headers, body: Buffer.from(JSON.stringify({ secret })) }
  await once.run(id, () => encodeAnswer(answer, { replaySetCookie: false, replayHeader: 'Idempotent-Replayed' }))
}

describe('starting', () => {
  const start = (given: Partial<AdminOptions>): Promise<void> => withAdmin(given, async () => {})

  test('an address that other machines can reach needs a token', async () => {
    for (const host of ['0.0.0.0', '::', '192.0.2.1', 'admin.example']) {
      await expect(start({ listen: { host, port: 0 } })).rejects.toThrow(
        /can be reached from other machines, and no token/,
      )
    }
    await start({ listen: { host: '0.0.0.0', port: 0 }, token })
  })

  test('a token that could be guessed is refused', async () => {
    await expect(start({ token: 'secret' })).rejects.toThrow('expected token to have at least 16 characters, got 6')
  })

  test('unknown and wrong options are refused at once', async () => {
    await expect(start({ tokn: token } as never)).rejects.toThrow('unknown option "tokn", did you mean "token"?')
    await expect(start({ listen: 8081 as never })).rejects.toThrow('expected listen to be an object with host and port')
  })

  test('a port that is taken is an error, and nothing keeps running', async () => {
    await withAdmin({}, async ({ port }) => {
      await expect(start({ listen: { host: '127.0.0.1', port } })).rejects.toMatchObject({ code: 'EADDRINUSE' })
    })
  })
})

describe('who may ask', () => {
  test('every answer forbids inline scripts, other origins, frames and caches', async () => {
    await withAdmin({}, async ({ port }) => {
      for (const path of ['/', '/dashboard.js', '/api/entries', '/healthz', '/nothing-here']) {
        const { headers } = await ask(port, path)
        const policy = headers['content-security-policy']!
        expect(policy).toContain("default-src 'none'; script-src 'self'; style-src 'self'")
        expect(policy).toContain("frame-ancestors 'none'")
        expect(policy).not.toContain('unsafe')
        expect(headers['cache-control']).toBe('no-store')
        expect(headers['x-content-type-options']).toBe('nosniff')
        expect(headers['access-control-allow-origin']).toBeUndefined()
      }
    })
  })

  test('the page has no inline script or style and names nothing elsewhere', async () => {
    await withAdmin({}, async ({ port }) => {
      const { text } = await ask(port, '/')
      expect(text).not.toMatch(/<script>|<style|style=|\son\w+=|https?:/)
    })
  })

  test('a request with two Host lines is refused, as two readers could believe either', async () => {
    await withAdmin({}, async ({ port }) => {
      const socket = connect(port, '127.0.0.1')
      socket.end(`GET /api/entries HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n`)
      expect(await text(socket)).toMatch(/^HTTP\/1\.1 400 /)
    })
  })

  test('a name that was rebound to this machine is not served', async () => {
    await withAdmin({}, async ({ port }) => {
      expect((await ask(port, '/api/entries', { headers: { Host: `evil.example:${port}` } })).status).toBe(421)
      expect((await ask(port, '/api/entries', { headers: { Host: `localhost:${port}` } })).status).toBe(200)
      // Through a tunnel the port is another one.
      expect((await ask(port, '/api/entries', { headers: { Host: 'localhost:9000' } })).status).toBe(200)
      for (const host of ['localhost.evil.example', 'evil.example#localhost']) {
        expect((await ask(port, '/api/entries', { headers: { Host: host } })).status, host).toBe(421)
      }
    })
  })

  test('a target that is none, a method of a tunnel and a HEAD of what never ends are answered, and nothing is left open', async () => {
    await withAdmin({}, async ({ port }) => {
      expect((await ask(port, 'http://[')).status).toBe(400)
      expect((await ask(port, '//elsewhere/api/about')).status).toBe(200)
      expect((await ask(port, '/metrics', { method: 'POST', body: 'x'.repeat(100_000) })).status).toBe(405)
      expect(await ask(port, '/api/live', { method: 'HEAD' })).toMatchObject({ status: 200, text: '' })
      await expect(ask(port, '127.0.0.1:80', { method: 'CONNECT' })).rejects.toThrow()
    })
  })

  test('a page of another origin is told nothing; a person who follows a link sees the page', async () => {
    await withAdmin({ token }, async ({ port, once }) => {
      await pay(once, 'k')
      const status = async (path: string, headers: Record<string, string>): Promise<number> =>
        (await ask(port, path, { headers })).status
      const own = `http://127.0.0.1:${port}`
      expect(await status('/api/entries', { Origin: own, 'Sec-Fetch-Site': 'same-origin' })).toBe(200)
      expect(await status('/api/entries', { Origin: 'https://evil.example' })).toBe(403)
      expect(await status('/api/entries', { Origin: 'null' })).toBe(403)
      expect(await status('/api/entries', { Origin: `http://127.0.0.1:${port + 1}` })).toBe(403)
      expect(await status('/api/entries', { 'Sec-Fetch-Site': 'cross-site', 'Sec-Fetch-Mode': 'no-cors' })).toBe(403)
      expect(await status('/', { 'Sec-Fetch-Site': 'cross-site', 'Sec-Fetch-Mode': 'navigate' })).toBe(200)
      const stolen = await change(
        port,
        'forget',
        { scope: 'shop', id: 'k', reason: 'x' },
        { Origin: 'https://evil.example' },
      )
      expect(stolen.status).toBe(403)
      expect((await once.get('k'))?.state).toBe('settled')
    })
  })

  test('where others can reach it, keys are shown only with the token; health and metrics to all', async () => {
    await withAdmin({ listen: { host: '0.0.0.0', port: 0 }, token }, async ({ port }) => {
      const authorised = { headers: { Authorization: `Bearer ${token}` } }
      for (const path of [
        '/api/entries',
        '/api/entry?scope=shop&id=k',
        '/api/find?text=k',
        '/api/scopes',
        '/api/live',
      ]) {
        expect((await ask(port, path)).status, path).toBe(401)
      }
      expect((await ask(port, '/api/entries', authorised)).status).toBe(200)
      for (const path of ['/', '/healthz', '/readyz', '/metrics'])
        expect((await ask(port, path)).status, path).toBe(200)
    })
  })
})

describe('changes', () => {
  const forget = { scope: 'shop', id: 'k', reason: 'the provider has no such charge' }

  test('without a token at the start nothing can be changed, whatever is sent', async () => {
    await withAdmin({}, async ({ port, once }) => {
      await pay(once, 'k')
      expect((await change(port, 'forget', forget)).status).toBe(403)
      expect((await ask(port, '/api/outcome?scope=shop&id=k')).status).toBe(403)
      expect((await once.get('k'))?.state).toBe('settled')
    })
  })

  test('need the right token, by POST, as JSON, with a reason, and of a reasonable size', async () => {
    await withAdmin({ token }, async ({ port, once }) => {
      await pay(once, 'k')
      const status = async (body: unknown, headers: Record<string, string> = {}): Promise<number> =>
        (await change(port, 'forget', body, headers)).status
      expect(await status(forget, { Authorization: '' })).toBe(401)
      expect(await status(forget, { Authorization: `Bearer ${token}x` })).toBe(401)
      expect(await status(forget, { Authorization: `Basic ${token}` })).toBe(401)
      expect(await status(forget, { 'Content-Type': 'text/plain' })).toBe(400)
      expect(await status('{')).toBe(400)
      expect(await status('null')).toBe(400)
      expect(await status({ scope: 'shop', id: 'k' })).toBe(400)
      expect(await status({ ...forget, reason: '   ' })).toBe(400)
      expect(await status({ ...forget, reason: 'x'.repeat(501) })).toBe(400)
      expect(await status({ ...forget, reason: 'x'.repeat(9_000) })).toBe(400)
      expect(await status({ ...forget, id: 'line\nbreak' })).toBe(400)
      expect(await status({ ...forget, and: 'more' })).toBe(400)
      expect((await ask(port, '/api/forget', { headers: { Authorization: `Bearer ${token}` } })).status).toBe(405)
      expect((await once.get('k'))?.state).toBe('settled')
      expect(await status(forget)).toBe(200)
      expect(await once.get('k')).toBeUndefined()
    })
  })

  test('are audited, and the timeline shows them with their reason', async () => {
    // The audit has the store's time, the events have this machine's. Two clocks that agree may differ by a millisecond.
    const clock = { ...systemClock, now: () => systemClock.now() + 1_000 }
    await withAdmin({ token, store: memoryStore({ clock }) }, async ({ port, once }) => {
      await pay(once, 'k')
      await change(port, 'forget', forget)
      const { timeline } = JSON.parse((await ask(port, '/api/entry?scope=shop&id=k')).text) as {
        timeline: { what: string; detail: string }[]
      }
      expect(timeline.at(-1)).toMatchObject({
        what: 'forgotten manually',
        detail: 'It was settled. Reason: the provider has no such charge',
      })
    })
  })
})

describe('resolving and keeping', () => {
  const key = { scope: 'shop', id: 'k' }
  const inDoubt = async (once: Once): Promise<void> => {
    const attempt = once.run('k', () => Promise.reject(new InDoubtError('who knows')), { leaseMs: 1 })
    await attempt.catch(() => undefined)
  }

  test('a key in doubt gets the response that was pasted, and every retry replays it', async () => {
    await withAdmin({ token }, async ({ port, once }) => {
      await inDoubt(once)
      const pasted = 'HTTP/1.1 201 Created\nContent-Type: application/json\n\n{"receipt":"r1"}'
      const found = { ...key, reason: 'the bank shows it', as: 'response', text: pasted }
      expect((await change(port, 'resolve', { ...found, text: 'no response' })).status).toBe(400)
      expect((await change(port, 'resolve', { ...found, as: 'guess' })).status).toBe(400)
      expect((await change(port, 'resolve', { ...found, reason: ' ' })).status).toBe(400)
      expect((await change(port, 'resolve', found, { Authorization: '' })).status).toBe(401)
      expect((await change(port, 'resolve', { ...found, text: `${pasted}${'x'.repeat(270_000)}` })).status).toBe(400)
      expect((await once.get('k'))?.state).not.toBe('settled')
      const { status, text } = await change(port, 'resolve', found)
      expect(status).toBe(200)
      expect(JSON.parse(text)).toMatchObject({
        entry: { state: 'settled', outcome: { kind: 'response', status: 201 } },
      })
      const shown = await ask(port, '/api/outcome?scope=shop&id=k', { headers: { Authorization: `Bearer ${token}` } })
      expect(JSON.parse(shown.text)).toMatchObject({ text: expect.stringContaining('{"receipt":"r1"}') as string })
      const life = (await ask(port, '/api/entry?scope=shop&id=k')).text
      expect(life).toContain('resolved manually')
      expect(life).toContain('the bank shows it')
      // Only once: what is settled stays as it is.
      const again = await change(port, 'resolve', { ...found, as: 'value', text: '2' })
      expect([again.status, again.text]).toEqual([400, expect.stringContaining('It is settled: nothing was changed')])
    })
  })

  test('a value and a failure are for keys of once.run, and are kept for as long as the entry says', async () => {
    await withAdmin({ token }, async ({ port, once }) => {
      const doubt = { leaseMs: 1, keepMs: 123_000, tombstoneMs: 456_000 }
      await once.run('k', () => Promise.reject(new InDoubtError('who knows')), doubt).catch(() => undefined)
      const found = { ...key, reason: 'looked', as: 'value', text: '{"receipt":"r1"}' }
      expect((await change(port, 'resolve', found)).status).toBe(200)
      const entry = (await once.get('k'))!
      expect(entry).toMatchObject({ state: 'settled', outcome: { kind: 'value', value: { receipt: 'r1' } } })
      expect(entry.expiresAtMs - entry.leaseUntilMs).toBe(123_000)
      expect(entry.forgottenAtMs - entry.expiresAtMs).toBe(456_000)
    })
  })

  test('a window is prolonged from now on, and audited', async () => {
    await withAdmin({ token }, async ({ port, once }) => {
      await pay(once, 'k')
      const before = (await once.get('k'))!
      const keep = { ...key, reason: 'slow partner', forMs: 30 * 86_400_000 }
      for (const forMs of [0, -1, 1.5, '1d', undefined]) {
        expect((await change(port, 'keep', { ...keep, forMs })).status, String(forMs)).toBe(400)
      }
      expect((await change(port, 'keep', { ...keep, id: 'nobody' })).status).toBe(400)
      expect((await change(port, 'keep', keep)).status).toBe(200)
      expect((await once.get('k'))!.expiresAtMs - before.expiresAtMs).toBeGreaterThan(28 * 86_400_000)
      expect((await ask(port, '/api/entry?scope=shop&id=k')).text).toContain('kept longer manually')
    })
  })
})

describe('resuming', () => {
  test('needs the token and a reason, is only for what is parked, and is audited before it takes effect', async () => {
    const store = memoryStore()
    const shop = createOnce({ store, scope: 'shop' })
    const mail = shop.operation('mail', { version: 1 }, (op) =>
      op.step('send', { run: () => Promise.reject(new InDoubtError(secret)), inDoubt: 'park' }),
    )
    for (let attempt = 1; attempt <= 2; attempt++) await mail.run('m', 1).catch(() => undefined)
    const subject = { scope: 'shop/operations/mail', id: 'm' }
    await withAdmin({ store, token }, async ({ port, once }) => {
      await pay(once, 'paid')
      const resume = async (body: unknown, headers = {}): Promise<[number, string]> => {
        const { status, text } = await change(port, 'resume', body, headers)
        return [status, text]
      }
      expect((await resume({ ...subject, reason: 'x' }, { Authorization: 'Bearer wrong' }))[0]).toBe(401)
      expect(await resume({ ...subject, reason: ' ' })).toEqual([400, expect.stringContaining('expected a reason')])
      expect((await resume({ ...subject, id: 'nobody', reason: 'x' }))[1]).toContain('no such operation')
      expect((await resume({ scope: 'shop', id: 'paid', reason: 'x' }))[0]).toBe(400)
      expect(await mail.status('m')).toMatchObject({ state: 'parked' })
      expect(await store.audit(subject)).toEqual([])
      expect((await resume({ ...subject, reason: 'the provider has it' }))[0]).toBe(200)
      expect(await mail.status('m')).toMatchObject({ state: 'waiting', failures: 0 })
      expect(await store.audit(subject)).toMatchObject([{ action: 'release', reason: 'resume: the provider has it' }])
      expect((await resume({ ...subject, reason: 'again' }))[1]).toContain('not parked: nothing was changed')
      const { text } = await ask(port, `/api/entry?${new URLSearchParams(subject)}`)
      expect(text).toContain('resumed manually')
      expect(text).not.toContain('wxyz')
    })
    await shop.close()
  })
})

describe('what is shown', () => {
  test('an answer is its status and its size; what it says only with the token', async () => {
    await withAdmin({ token }, async ({ port, once }) => {
      await pay(once, 'k')
      const list = await ask(port, '/api/entries')
      const life = await ask(port, '/api/entry?scope=shop&id=k')
      const found = await ask(port, '/api/find?text=k')
      const { rows } = JSON.parse(list.text) as { rows: unknown[] }
      expect(rows).toMatchObject([{ id: 'k', state: 'settled', outcome: { kind: 'response', status: 201, bytes: 37 } }])
      for (const { text } of [list, life, found]) expect(text).not.toContain('wxyz')
      expect((await ask(port, '/api/outcome?scope=shop&id=k')).status).toBe(401)
      const revealed = await ask(port, '/api/outcome?scope=shop&id=k', {
        headers: { Authorization: `Bearer ${token}` },
      })
      expect((JSON.parse(revealed.text) as { text: string }).text).toContain(secret)
    })
  })

  test('pages follow each other without a gap, and a search finds by the beginning of a key in every scope', async () => {
    await withAdmin({}, async ({ port, once }) => {
      const ids = Array.from({ length: 60 }, (_, index) => `k-${String(index).padStart(2, '0')}`)
      for (const id of ids) await once.run(id, () => 1)
      await once.run({ scope: 'other', id: 'k-07' }, () => 1)
      const seen: string[] = []
      let query = ''
      for (;;) {
        const page = JSON.parse((await ask(port, `/api/entries?scope=shop${query}`)).text) as {
          rows: { scope: string; id: string }[]
          more: boolean
        }
        seen.push(...page.rows.map(({ id }) => id))
        if (!page.more) break
        const last = page.rows.at(-1)!
        query = `&afterScope=${last.scope}&afterId=${last.id}`
      }
      expect(seen).toEqual(ids)
      const found = JSON.parse((await ask(port, '/api/find?text=k-07')).text) as { rows: { scope: string }[] }
      expect(found.rows.map(({ scope }) => scope)).toEqual(['other', 'shop'])
      expect(JSON.parse((await ask(port, '/api/scopes')).text)).toEqual(['other', 'shop'])
      expect((await ask(port, '/api/entries?state=sleeping')).status).toBe(400)
      expect((await ask(port, '/api/find?text=')).status).toBe(400)
    })
  })

  test('a store that cannot list, or that is down, is said to be so, and the rest goes on', async () => {
    const { claim, extend, settle, release } = memoryStore()
    const plain: Store = { name: 'plain', claim, extend, settle, release }
    await withAdmin({ store: plain }, async ({ port }) => {
      const { status, text } = await ask(port, '/api/entries')
      expect(status).toBe(501)
      expect(text).toContain('The plain store cannot show its entries.')
      expect((await ask(port, '/healthz')).status).toBe(200)
    })
    const down = { ...memoryStore(), list: () => Promise.reject(new Error('the disk is gone')) }
    await withAdmin({ store: down }, async ({ port, admin }) => {
      expect((await ask(port, '/api/entries')).status).toBe(503)
      const picture = await firstPicture(admin, (each) => 'problem' in each)
      expect(picture['problem']).toContain('the disk is gone')
      expect(picture['totals']).toMatchObject({ run: expect.any(Number) })
    })
  })

  test('metrics, health and readiness', async () => {
    let why: string | undefined
    await withAdmin({ notReady: () => why }, async ({ port }) => {
      expect((await ask(port, '/metrics')).text).toBe('requests_total 1\n')
      expect((await ask(port, '/readyz')).status).toBe(200)
      why = 'Redis has lost data'
      expect((await ask(port, '/readyz')).status).toBe(503)
      expect((await ask(port, '/healthz')).status).toBe(200)
      expect((await ask(port, '/healthz', { method: 'HEAD' })).text).toBe('')
      expect((await ask(port, '/..%2f..%2fpackage.json')).status).toBe(404)
      expect((await ask(port, '/admin.ts')).status).toBe(404)
    })
  })
})

/** The first of the live pictures that is as it should be. */
async function firstPicture(
  admin: Admin,
  fits: (picture: Record<string, unknown>) => boolean,
): Promise<Record<string, unknown>> {
  const response = await fetch(`${admin.url}/api/live`)
  let text = ''
  for await (const chunk of response.body!.pipeThrough(new TextDecoderStream())) {
    text += chunk
    const pictures = text.split('\n\n').slice(0, -1)
    const found = pictures.map((each) => JSON.parse(each.slice('data: '.length)) as Record<string, unknown>).find(fits)
    if (found) return found
  }
  throw new Error('the stream ended')
}

describe('live', () => {
  test('the picture has what waits, what happened, and every section that there is', async () => {
    const sections = [
      {
        name: 'operations',
        title: 'Operations',
        columns: ['Key', 'State'],
        rows: async () => [{ cells: ['order-1', 'parked'], counts: ['parked', 'inDoubt'] as const }],
      },
      { name: 'outbox', title: 'Outbox', columns: ['Lag'], rows: async () => undefined },
    ]
    await withAdmin({ sections }, async ({ admin, once }) => {
      await pay(once, 'k')
      await once.run('k', () => 'never')
      await once.store.claim(
        { scope: 'shop', id: 'held' },
        {
          token: 't',
          fingerprint: 'f'.repeat(43),
          leaseMs: 60_000,
          retention: { keepMs: 1_000, tombstoneMs: 1_000 },
          version: 0,
          onTakeover: 'refuse',
          onExpired: 'refuse',
        },
      )
      const picture = await firstPicture(admin, (each) => 'waiting' in each)
      expect(picture).toMatchObject({
        store: 'memory',
        waiting: { running: 1, abandoned: 0, open: 0, inDoubt: 1, parked: 1 },
        sections: [{ name: 'operations', rows: [{ cells: ['order-1', 'parked'] }] }],
      })
      expect(JSON.stringify(picture)).not.toContain('wxyz')
    })
  })

  test('unfinished operations are a section, the parked ones first; what is finished, and what only looks alike, is not', async () => {
    const clock = manualClock()
    const store = memoryStore({ clock })
    const shop = createOnce({ store, scope: 'shop', clock })
    const checkout = shop.operation('checkout', { version: 1 }, async (op, how: string) => {
      await op.step('reserve', { run: () => how })
      if (how === 'well') return 'paid'
      return op.step('charge', { run: () => Promise.reject(new InDoubtError(secret)), inDoubt: 'park' })
    })
    await checkout.run('1', 'well')
    for (const id of ['2', '3']) await checkout.run(id, 'badly').catch(() => undefined)
    await clock.advance(700_000)
    await checkout.run('3', 'badly').catch(() => undefined)
    await shop
      .run({ scope: 'shop/operations/x', id: 'a tenant' }, () => Promise.reject(new Error(secret)))
      .catch(() => {})
    const sections = [operationsSection(shop, store)]
    await withAdmin({ store, sections }, async ({ admin }) => {
      const picture = await firstPicture(admin, (each) => 'waiting' in each)
      const steps = 'reserve done, charge began'
      expect(picture['sections']).toMatchObject([
        {
          name: 'operations',
          rows: [
            { cells: ['3 (shop/operations/checkout)', 'parked', steps, 'charge', '2'], key: { id: '3' } },
            { cells: ['2 (shop/operations/checkout)', 'waiting', steps, 'charge', '1'], key: { id: '2' } },
          ],
        },
      ])
      expect(picture['waiting']).toMatchObject({ inDoubt: 2, parked: 1 })
      expect(JSON.stringify(picture)).not.toContain('wxyz')
    })
    await shop.close()
  })

  test('an operation whose records cannot be read hides no other, and a store without operations has no section', async () => {
    const store = memoryStore()
    const shop = createOnce({ store, scope: 'shop' })
    const mail = shop.operation('mail', { version: 1 }, () => Promise.reject(new Error('no')))
    for (const id of ['1', '2']) await mail.run(id, 1).catch(() => undefined)
    const garbled: typeof store = {
      ...store,
      async ledger(key) {
        const found = await store.ledger(key)
        if (key.id !== '2' || !found) return found
        return { ...found, records: [{ name: '', revision: 1, atMs: 0, content: Buffer.from('garbage') }] }
      },
    }
    const rows = await operationsSection(shop, garbled).rows()
    expect(rows?.map(({ cells: [name, state] }) => [name, state])).toEqual([
      ['2 (shop/operations/mail)', 'unreadable'],
      ['1 (shop/operations/mail)', 'waiting'],
    ])
    const { ledger: _ledger, ...plain } = store
    expect(await operationsSection(shop, plain).rows()).toBeUndefined()
    await shop.close()
  })

  test('one dashboard too many is refused, and a closed one makes room', async () => {
    await withAdmin({}, async ({ admin }) => {
      const open = await Promise.all(Array.from({ length: 32 }, () => fetch(`${admin.url}/api/live`)))
      expect(open.every(({ status }) => status === 200)).toBe(true)
      const refused = await fetch(`${admin.url}/api/live`)
      expect(refused.status).toBe(503)
      await refused.text()
      await open[0]!.body!.cancel()
      await expect.poll(async () => (await fetch(`${admin.url}/api/live`)).status).toBe(200)
    })
  })
})
