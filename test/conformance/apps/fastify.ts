// The fixture on Fastify: one registration for all routes, and what single routes say otherwise in their config.
import { Readable } from 'node:stream'
import fastify, { type FastifyReply, type FastifyRequest } from 'fastify'
import { idempotency } from '../../../src/http/fastify.ts'
import type { FixtureResponse } from '../picture.ts'
import { apart, type App, type AppGround, fixtureRequest, goneSignal, headersByName, pathOf } from './app.ts'

export async function startFastify(ground: AppGround): Promise<App> {
  const { once, fixture, options, log } = ground
  const app = fastify({ logger: { level: 'trace', stream: { write: log } }, bodyLimit: 64 * 1024 * 1024 })
  const tenant = (request: FastifyRequest): string | undefined =>
    fixture.scopeOf(pathOf(request.url), request.headers.authorization)

  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, body, done) => done(null, body))
  app.addHook('onRequest', async (request, reply) => {
    const front = fixture.front(request.method, pathOf(request.url), request.headers.authorization)
    for (const [name, value] of front.headers) void reply.header(name, value)
    return front.answer ? send(reply, front.answer) : undefined
  })
  await app.register(idempotency(once, { ...options('default'), tenant }))

  const handler = async (request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> => {
    const answer = await fixture.handle(
      fixtureRequest({
        method: request.method,
        url: request.url,
        header: (name) => request.headers[name] as string | undefined,
        body: Buffer.isBuffer(request.body) ? request.body : Buffer.alloc(0),
        idempotency: request.idempotency,
        gone: goneSignal(reply.raw),
      }),
    )
    return send(reply, answer)
  }
  for (const [path, protection] of Object.entries(apart)) {
    if (protection === 'transaction' && ground.transactions === 'none') continue
    const own = protection === 'none' ? false : { ...options(protection), tenant }
    app.post(path, { config: { idempotency: own } }, handler)
  }
  app.all('/*', handler)
  await app.ready()
  return { handler: (request, response) => app.routing(request, response), close: () => app.close() }
}

function send(reply: FastifyReply, { status, headers, body, afterwards }: FixtureResponse): FastifyReply {
  void reply.code(status).headers(headersByName(headers))
  void reply.send(Buffer.isBuffer(body) ? (body.length === 0 ? undefined : body) : Readable.from(body))
  if (afterwards) throw new Error('the handler failed after its answer')
  return reply
}
