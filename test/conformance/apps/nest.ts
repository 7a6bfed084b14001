// The fixture on Nest, on both of its platforms: controllers that return what they answer, the interceptor on each. Written
// with decorators as plain calls, as Node strips types and knows no decorators.
import 'reflect-metadata'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import { All, Controller, type LoggerService, Module, Req, Res, StreamableFile, UseInterceptors } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { ExpressAdapter, type NestExpressApplication } from '@nestjs/platform-express'
import { FastifyAdapter, type NestFastifyApplication } from '@nestjs/platform-fastify'
import express from 'express'
import { idempotency } from '../../../src/http/nest.ts'
import type { Fixture } from '../fixture.ts'
import type { FixtureResponse } from '../picture.ts'
import {
  apart,
  type App,
  type AppGround,
  fixtureRequest,
  goneSignal,
  headersByName,
  pathOf,
  type Protection,
  writeTo,
} from './app.ts'

export async function startNestExpress(ground: AppGround): Promise<App> {
  const platform = express()
  const nest = await NestFactory.create<NestExpressApplication>(
    moduleOf(ground, '{*path}'),
    new ExpressAdapter(platform),
    {
      rawBody: true,
      logger: loggerTo(ground.log),
    },
  )
  nest.use(front(ground.fixture), rulesOf(ground))
  nest.useBodyParser('text', { type: 'text/*' })
  nest.useBodyParser('raw', { type: 'application/octet-stream' })
  await nest.init()
  return { handler: platform, close: () => nest.close() }
}

export async function startNestFastify(ground: AppGround): Promise<App> {
  const platform = new FastifyAdapter()
  const nest = await NestFactory.create<NestFastifyApplication>(moduleOf(ground, '*'), platform, {
    rawBody: true,
    logger: loggerTo(ground.log),
  })
  nest.useBodyParser(['text/plain', 'application/octet-stream'])
  nest.use(front(ground.fixture))
  nest.use(rulesOf(ground))
  await nest.init()
  const instance = platform.getInstance()
  await instance.ready()
  return { handler: (request, response) => instance.routing(request, response), close: () => nest.close() }
}

/** Where no controller would answer, as docs/http.md has it. */
function rulesOf(ground: AppGround): ReturnType<typeof idempotency>['rules'] {
  return idempotency(ground.once, { ...ground.options('default'), tenant: tenantIn(ground) }).rules
}

function tenantIn({ fixture }: AppGround): (request: PlatformRequest) => string | undefined {
  return (request) => fixture.scopeOf(pathOf(request.originalUrl ?? request.url), request.headers.authorization)
}

function front(fixture: Fixture) {
  return (request: IncomingMessage & { originalUrl?: string }, response: ServerResponse, next: () => void): void => {
    const path = pathOf(request.originalUrl ?? request.url!)
    const said = fixture.front(request.method!, path, request.headers.authorization)
    for (const [name, value] of said.headers) response.setHeader(name, value)
    if (said.answer) void writeTo(response, said.answer)
    else next()
  }
}

/** The slice that both platforms have in common. */
interface PlatformRequest {
  readonly method: string
  readonly url: string
  readonly originalUrl?: string
  readonly headers: IncomingMessage['headers']
  readonly rawBody?: Buffer
  readonly idempotency?: unknown
}
interface PlatformReply {
  readonly raw?: ServerResponse
  status(code: number): unknown
  header(name: string, value: string | string[]): unknown
}

function moduleOf(ground: AppGround, everything: string): new () => object {
  const { once, fixture, options } = ground
  const tenant = tenantIn(ground)
  const controllers = Object.entries<Protection | 'none'>({ ...apart, [everything]: 'default' })
    .filter(([, protection]) => protection !== 'transaction' || ground.transactions === 'offered')
    .map(([path, protection]) =>
      controllerOf(fixture, path, protection, (each) => idempotency(once, { ...options(each), tenant })),
    )

  class FixtureModule {}
  Module({ controllers })(FixtureModule)
  return FixtureModule
}

function controllerOf(
  fixture: Fixture,
  path: string,
  protection: Protection | 'none',
  interceptor: (protection: Protection) => ReturnType<typeof idempotency>,
): new () => object {
  class FixtureController {
    async handle(request: PlatformRequest, reply: PlatformReply): Promise<StreamableFile | undefined> {
      const answer = await fixture.handle(
        fixtureRequest({
          method: request.method,
          url: request.originalUrl ?? request.url,
          header: (name) => request.headers[name] as string | undefined,
          body: request.rawBody ?? Buffer.alloc(0),
          idempotency: request.idempotency,
          gone: goneSignal(reply.raw ?? (reply as unknown as ServerResponse)),
        }),
      )
      return send(reply, answer)
    }
  }
  const { prototype } = FixtureController
  const descriptor = Object.getOwnPropertyDescriptor(prototype, 'handle')!
  Controller()(FixtureController)
  All(path)(prototype, 'handle', descriptor)
  Req()(prototype, 'handle', 0)
  Res({ passthrough: true })(prototype, 'handle', 1)
  if (protection !== 'none') UseInterceptors(interceptor(protection))(prototype, 'handle', descriptor)
  return FixtureController
}

function send(reply: PlatformReply, { status, headers, body }: FixtureResponse): StreamableFile | undefined {
  reply.status(status)
  for (const [name, value] of Object.entries(headersByName(headers))) reply.header(name, value)
  if (!Buffer.isBuffer(body)) return new StreamableFile(Readable.from(body))
  return body.length === 0 ? undefined : new StreamableFile(body)
}

function loggerTo(log: (line: string) => void): LoggerService {
  const write = (...parts: unknown[]): void => log(parts.map(String).join(' '))
  return { log: write, error: write, warn: write, debug: write, verbose: write, fatal: write }
}
