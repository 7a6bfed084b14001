// Sends every request of an existing test-suite twice at once, and once more when both have their answers, and reports which
// routes do not bear it. The test that sent the request gets one of the answers and goes on as before.

import assert from 'node:assert/strict'
import { systemRandom } from '../core/clock.ts'
import { aFunction, checkOptions, oneOf, optional, positiveInteger } from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import { judge, reportOn } from './send-twice/report.ts'
import type { SentAnswer, SentRequest, SendTwiceReport } from './send-twice/report.ts'
import { openTarget } from './send-twice/target.ts'
import type { SendTwiceTarget } from './send-twice/target.ts'

export type { RouteReport, SendTwiceReport } from './send-twice/report.ts'
export type { SendTwiceTarget } from './send-twice/target.ts'

export interface SendTwiceOptions {
  /** `add`: a request without an Idempotency-Key is given one, the same each time it is sent. Default: keys are as they are. */
  readonly key?: 'as it is' | 'add'
  /**
   * Counts what really happened: rows, charges, mails. With it, requests are sent one after the other, so that each count belongs
   * to one request.
   */
  readonly effects?: () => number | Promise<number>
  /** How often a request that is sent once counts. Default 1. */
  readonly effectsOnce?: number
  /** Requests with other methods are sent once. Default POST, PUT, PATCH, DELETE. */
  readonly methods?: readonly string[]
  /** Names the route of a request in the report. Default: method and path, with numbers and long ids as `:id`. */
  readonly route?: (request: Request) => string
}

export interface SendTwice {
  /** To be used in place of the suite's own fetch. */
  fetch(input: string | URL | Request, init?: RequestInit): Promise<Response>
  /** What was found so far. */
  report(): SendTwiceReport
  /** Closes what was opened, and fails with the report when something was not idempotent, or when nothing was shown. */
  end(): Promise<SendTwiceReport>
}

const usualMethods = ['POST', 'PUT', 'PATCH', 'DELETE'] as const

const methodNames: Rule = (value) =>
  Array.isArray(value) && value.every((each) => typeof each === 'string' && /^[A-Z]+$/.test(each))
    ? undefined
    : 'a list of methods in upper case'

/**
 * Returns a fetch that sends each request twice at once and then once more, and fails in `end` where that made a difference.
 * `target` is a base URL, a fetch or a handler of Requests, an object with such a `fetch`, or a Node server.
 *
 * @example
 * import { sendTwice } from 'onceonly/testing'
 *
 * const twice = sendTwice('http://localhost:3000', { key: 'add' })
 * await twice.fetch('/orders', { method: 'POST', body: '{"amount":5}' })
 * console.log(twice.report().text)
 * await twice.end()
 */
export function sendTwice(target: SendTwiceTarget, options: SendTwiceOptions = {}): SendTwice {
  checkOptions('sendTwice', options, {
    key: optional(oneOf('as it is', 'add')),
    effects: optional(aFunction),
    effectsOnce: optional(positiveInteger),
    methods: optional(methodNames),
    route: optional(aFunction),
  })
  const opened = openTarget(target)
  const methods: readonly string[] = options.methods ?? usualMethods
  const sent: SentRequest[] = []
  let turn: Promise<unknown> = Promise.resolve()

  const fetch = async (input: string | URL | Request, init?: RequestInit): Promise<Response> => {
    const request = withKey(await opened.requestOf(input, init), options)
    if (!methods.includes(request.method)) return opened.send(request)
    const work = async (): Promise<Response> => {
      const { record, response } = await sendRepeatedly(opened.send, request, options)
      sent.push(record)
      return response()
    }
    if (!options.effects) return work()
    const mine = turn.then(work)
    turn = mine.catch(() => {})
    return mine
  }

  return {
    fetch,
    report: () => reportOn(sent),
    async end() {
      await turn
      await opened.close()
      const report = reportOn(sent)
      assert.ok(
        sent.length > 0,
        'sendTwice: nothing was sent twice. Give its fetch to the tests in place of their own.',
      )
      assert.ok(!sent.every(({ alwaysFailed }) => alwaysFailed), `sendTwice: everything failed.\n${report.text}`)
      assert.ok(report.isIdempotent, `sendTwice: not everything is idempotent.\n${report.text}`)
      return report
    },
  }
}

function withKey(request: Request, { key }: SendTwiceOptions): Request {
  if (key === 'add' && !request.headers.has('idempotency-key')) {
    request.headers.set('Idempotency-Key', systemRandom.uuid())
  }
  return request
}

async function sendRepeatedly(
  send: (request: Request) => Promise<Response>,
  request: Request,
  options: SendTwiceOptions,
): Promise<{ record: SentRequest; response: () => Response }> {
  const bytes = request.body ? await request.arrayBuffer() : undefined
  const copy = (): Request => new Request(request, bytes ? { body: bytes } : {})
  const answer = async (): Promise<SentAnswer> => readAnswer(send(copy()))
  const count = async (): Promise<number | undefined> => options.effects?.()
  const before = await count()
  const pair = await Promise.all([answer(), answer()])
  const between = await count()
  const retry = await answer()
  const after = await count()
  const route = options.route ? options.route(copy()) : routeOf(request)
  const effects = before === undefined ? undefined : { atOnce: between! - before, byRetry: after! - between! }
  const record = judge({ route, pair, retry, effects, effectsOnce: options.effectsOnce ?? 1 })
  return { record, response: () => toResponse(pair, retry) }
}

async function readAnswer(sending: Promise<Response>): Promise<SentAnswer> {
  try {
    const response = await sending
    const body = new Uint8Array(await response.arrayBuffer())
    return { is: 'answer', status: response.status, headers: response.headers, body }
  } catch (error) {
    return { is: 'error', error }
  }
}

/** What the test would have been given had the request been sent once: it never sees the refusal of a duplicate. */
function toResponse(pair: readonly SentAnswer[], retry: SentAnswer): Response {
  const good = pair.find((each) => each.is === 'answer' && each.status < 500 && each.status !== 409)
  const chosen = good ?? (retry.is === 'answer' && retry.status < 500 ? retry : pair[0]!)
  if (chosen.is === 'error') throw chosen.error
  const { status, headers, body } = chosen
  // Their body may have none.
  const hasBody = ![204, 205, 304].includes(status)
  return new Response(hasBody ? body.slice() : null, { status, headers })
}

function routeOf(request: Request): string {
  const { pathname } = new URL(request.url)
  // A number, a UUID, or anything long with a digit in it names one thing, not a route.
  const path = pathname.replace(/\/(?:\d+|(?=[^/]*\d)[A-Za-z0-9_-]{16,})(?=\/|$)/g, '/:id')
  return `${request.method} ${path}`
}
