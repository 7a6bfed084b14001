// The routes behind the middleware. Each enters itself in the ledger first, and answers with a sequence number where it can:
// a second execution can not look like a replay of the first.
import { createHash } from 'node:crypto'
import { gzipSync } from 'node:zlib'
import type { Fixture } from './fixture.ts'
import { callerContext, type FixtureRequest, type FixtureResponse, json, tagOf } from './picture.ts'

type Route = (request: FixtureRequest, fixture: Fixture, parameter: string) => Promise<FixtureResponse>

export const routes: Readonly<Record<string, Route>> = {
  'POST /effects': created,
  'POST /required': created,
  'POST /unprotected': created,
  'POST /refunds': created,
  'POST /anonymous': created,
  'POST /v1/customers': created,
  'POST /gate/*': gated,
  'POST /slow': slow,
  'POST /status/*': withStatus,
  'POST /throw': throwing,
  'POST /flaky': flaky,
  'POST /headers': manyHeaders,
  'POST /hopbyhop': hopByHop,
  'POST /cookies': cookies,
  'POST /binary': binary,
  'POST /empty201': empty201,
  'POST /redirect/*': redirect,
  'POST /large': large,
  'POST /compressible': compressible,
  'POST /stream': streamed,
  'POST /sse': serverSentEvents,
  'POST /sse-gate/*': gatedEvents,
  'POST /echo-raw': echoRaw,
  'POST /validated': validated,
  'POST /abortable': abortable,
  'POST /limited': limited,
  'POST /evil-header': evilHeader,
  'POST /people': person,
  'PATCH /people/*': renamed,
  'PATCH /things/*': thing,
  'PUT /things/*': thing,
  'DELETE /things/*': deleteThing,
  'GET /things/*': thing,
  'POST /commit-then-crash': commitThenCrash,
  'POST /effect-then-crash': effectThenCrash,
  'POST /transaction/*': inTransaction,
  'POST /overrule/*': overruled,
  'POST /context': context,
  'POST /answer-then-throw': answeringThenThrowing,
}

function enter({ body }: FixtureRequest, { ledger }: Fixture): string {
  const tag = tagOf(body)
  ledger.invoke(tag)
  return tag
}

function receipt(request: FixtureRequest, fixture: Fixture, status = 201): FixtureResponse {
  const id = fixture.nextSequence()
  const value = { id: `effect_${id}`, object: 'effect', seq: id, echo: request.body.toString('latin1') }
  return json(status, value, [['Location', `${request.path}/${id}`]])
}

async function created(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  return receipt(request, fixture)
}

async function gated(request: FixtureRequest, fixture: Fixture, gate: string): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  await fixture.gate(gate).opened
  return receipt(request, fixture)
}

async function slow(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  const tag = enter(request, fixture)
  await fixture.sleep(knob(request, 'ms'))
  fixture.ledger.commit(tag)
  return receipt(request, fixture)
}

async function withStatus(request: FixtureRequest, fixture: Fixture, code: string): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  if (code === '204' || code === '205' || code === '304')
    return { status: Number(code), headers: [], body: Buffer.alloc(0) }
  return json(Number(code), { error: { code: `status_${code}` }, seq: fixture.nextSequence() })
}

async function throwing(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  throw new Error('the handler failed after its effect')
}

async function flaky(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  const tag = enter(request, fixture)
  const { invocations } = (await fixture.ledger.counts()).get(tag)!
  if (request.knobs.has('ms')) await fixture.sleep(knob(request, 'ms'))
  if (invocations <= knob(request, 'fail')) {
    return json(Number(request.knobs.get('status') ?? 503), { error: 'try again', seq: fixture.nextSequence() })
  }
  fixture.ledger.commit(tag)
  return receipt(request, fixture)
}

async function manyHeaders(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  const id = fixture.nextSequence()
  return json(201, { id }, [
    ['Location', `/headers/${id}`],
    ['ETag', `"v${id}"`],
    ['Content-Language', 'de, en'],
    ['Link', `</headers/${id}>; rel="self"`],
    ['Link', `</headers>; rel="collection"; title="all, of them"`],
    ['Content-Disposition', `attachment; filename="a, b ${id}.json"`],
    ['X-Custom', `first ${id}`],
    ['X-Custom', 'second, with a comma'],
  ])
}

async function hopByHop(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  return {
    status: 200,
    headers: [
      ['Content-Type', 'text/plain'],
      ['Connection', 'X-Hop'],
      ['X-Hop', '1'],
      ['Keep-Alive', 'timeout=9'],
      ['Trailer', 'X-Checksum'],
      ['Proxy-Authenticate', 'Basic'],
    ],
    // Node allows the Trailer field only with chunks.
    body: chunksOf([Buffer.from('hop '), Buffer.from(`by hop ${fixture.nextSequence()}`)]),
  }
}

async function cookies(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  return json(200, { seq: fixture.nextSequence() }, [
    ['Set-Cookie', 'session=secret; Expires=Wed, 09 Jun 2032 10:18:14 GMT; HttpOnly'],
    ['Set-Cookie', 'theme=dark; Path=/'],
    ['WWW-Authenticate', 'Bearer realm="fixture"'],
  ])
}

async function binary(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  const everyOctet = Array.from({ length: 256 }, (_, octet) => octet)
  const body = Buffer.from([...everyOctet, 0xff, 0xfe, 0xc3, 0x28, fixture.nextSequence() % 256])
  return { status: 200, headers: [['Content-Type', 'application/octet-stream']], body }
}

async function empty201(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  return { status: 201, headers: [['Location', `/empty201/${fixture.nextSequence()}`]], body: Buffer.alloc(0) }
}

async function redirect(request: FixtureRequest, fixture: Fixture, code: string): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  const location = `/effects/${fixture.nextSequence()}`
  return { status: Number(code), headers: [['Location', location]], body: Buffer.alloc(0) }
}

async function large(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  const body = Buffer.alloc(knob(request, 'bytes'), `${fixture.nextSequence()} and so on `)
  return { status: 200, headers: [['Content-Type', 'text/plain']], body }
}

async function compressible(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  const text = Buffer.from(JSON.stringify({ seq: fixture.nextSequence(), text: 'again and '.repeat(400) }))
  const headers = [['Content-Type', 'application/json'] as const, ['Vary', 'Accept-Encoding'] as const]
  const asked = (request.header('accept-encoding') ?? '').includes('gzip')
  if (fixture.settings.compression !== 'inside' || !asked) return { status: 200, headers, body: text }
  return { status: 200, headers: [...headers, ['Content-Encoding', 'gzip']], body: gzipSync(text) }
}

async function streamed(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  const failAt = request.knobs.has('failAt') ? knob(request, 'failAt') : Infinity
  const sequence = fixture.nextSequence()
  const chunks = Array.from({ length: knob(request, 'chunks') }, (_, index) =>
    Buffer.from(`chunk ${index} of ${sequence}\n`),
  )
  return { status: 200, headers: [['Content-Type', 'text/plain']], body: chunksOf(chunks, failAt) }
}

async function serverSentEvents(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  const sequence = fixture.nextSequence()
  const events = Array.from({ length: knob(request, 'n') }, (_, index) =>
    Buffer.from(`id: ${index}\ndata: {"seq":${sequence}}\n\n`),
  )
  return { status: 200, headers: [['Content-Type', 'text/event-stream']], body: chunksOf(events) }
}

async function gatedEvents(request: FixtureRequest, fixture: Fixture, gate: string): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  async function* events(): AsyncGenerator<Buffer> {
    yield Buffer.from('id: 0\ndata: before\n\n')
    await fixture.gate(gate).opened
    yield Buffer.from('id: 1\ndata: after\n\n')
  }
  return { status: 200, headers: [['Content-Type', 'text/event-stream']], body: events() }
}

async function echoRaw(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  const sha256 = createHash('sha256').update(request.body).digest('hex')
  return json(200, { sha256, length: request.body.length, seq: fixture.nextSequence() })
}

async function validated(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  const tag = enter(request, fixture)
  const { amount } = JSON.parse(request.body.toString('utf8')) as { amount?: unknown }
  if (typeof amount !== 'number') {
    request.idempotency?.notBegun()
    return json(400, { error: 'amount is missing' })
  }
  fixture.ledger.commit(tag)
  return receipt(request, fixture)
}

async function abortable(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  const tag = enter(request, fixture)
  await fixture.sleep(knob(request, 'ms'), request.gone)
  if (request.gone.aborted) throw new Error('rolled back, because the client went away')
  fixture.ledger.commit(tag)
  return receipt(request, fixture)
}

/** With the limiter behind the replay, what it refuses never began. */
async function limited(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  if (fixture.settings.limiterOrder === 'limiter-first') return created(request, fixture)
  const refused = fixture.limiter.take()
  if (refused) request.idempotency?.notBegun()
  const answer = refused ?? (await created(request, fixture))
  return { ...answer, headers: [...answer.headers, fixture.limiter.field()] }
}

/** No effect: a response that can not be sent takes it back. */
async function evilHeader(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  enter(request, fixture)
  return json(201, { seq: fixture.nextSequence() }, [['X-Evil', 'a\r\nX-Injected: 1']])
}

/** Octets that no JSON library would write again as they are. */
async function person(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  const id = `${fixture.nextSequence()}`
  const { name } = JSON.parse(request.body.toString('utf8')) as { name: string }
  fixture.people.set(id, name)
  const text = `{ "z": 1.0, "name": ${JSON.stringify(name)}, "big": 12345678901234567890, "accent": "\\u00e9", "a": ${id} }`
  return json(201, text, [['Location', `/people/${id}`]])
}

async function renamed(request: FixtureRequest, fixture: Fixture, id: string): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  const { name } = JSON.parse(request.body.toString('utf8')) as { name: string }
  fixture.people.set(id, name)
  return json(200, { id, name })
}

async function thing(request: FixtureRequest, fixture: Fixture, id: string): Promise<FixtureResponse> {
  const tag = enter(request, fixture)
  if (request.method !== 'GET') fixture.ledger.commit(tag)
  return json(200, { id, seq: fixture.nextSequence() })
}

async function deleteThing(request: FixtureRequest, fixture: Fixture, id: string): Promise<FixtureResponse> {
  const tag = enter(request, fixture)
  if (fixture.deleted.has(id)) return json(404, { error: 'gone already' })
  fixture.deleted.add(id)
  fixture.ledger.commit(tag)
  return { status: 204, headers: [], body: Buffer.alloc(0) }
}

/** The effect is written with the store's transaction; the process dies when that has committed. */
async function commitThenCrash(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  const tag = enter(request, fixture)
  await fixture.settings.commitWith!(request.idempotency?.tx, tag)
  return receipt(request, fixture)
}

/** Writes with the store's transaction, then answers with the status. */
async function inTransaction(request: FixtureRequest, fixture: Fixture, code: string): Promise<FixtureResponse> {
  const tag = enter(request, fixture)
  await fixture.settings.commitWith!(request.idempotency?.tx, tag)
  return receipt(request, fixture, Number(code))
}

/** /overrule/store/500: the handler decides what becomes of this one answer. */
async function overruled(request: FixtureRequest, fixture: Fixture, rest: string): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  const [wish, code] = rest.split('/', 2) as ['store' | 'release' | 'notBegun' | 'inDoubt', string]
  request.idempotency?.[wish]()
  return receipt(request, fixture, Number(code))
}

async function context(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  return json(201, { context: callerContext.getStore() })
}

async function answeringThenThrowing(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  return { ...receipt(request, fixture), afterwards: 'throws' }
}

async function effectThenCrash(request: FixtureRequest, fixture: Fixture): Promise<FixtureResponse> {
  fixture.ledger.commit(enter(request, fixture))
  fixture.settings.crash?.()
  return receipt(request, fixture)
}

function knob({ knobs }: FixtureRequest, name: string): number {
  const value = Number(knobs.get(name))
  if (!knobs.has(name) || !Number.isInteger(value)) throw new Error(`expected the knob ${name} to be an integer`)
  return value
}

async function* chunksOf(chunks: readonly Buffer[], failAt = Infinity): AsyncGenerator<Buffer> {
  for (const [index, chunk] of chunks.entries()) {
    if (index === failAt) throw new Error(`the handler failed after ${failAt} chunks`)
    yield chunk
    // Each chunk on its own: an answer that is buffered into one would hide what streams do.
    await new Promise((resolve) => setImmediate(resolve))
  }
}
