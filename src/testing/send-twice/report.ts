// Judges the results of a request that was sent three times. There must be one effect, and one answer for all three, in whatever
// order they came. A duplicate that comes while the first is under way may be refused (409), and an attempt that failed (5xx,
// 429) may be tried again.

export type SentAnswer =
  | { readonly is: 'answer'; readonly status: number; readonly headers: Headers; readonly body: Uint8Array }
  | { readonly is: 'error'; readonly error: unknown }

export interface Sent {
  readonly route: string
  /** Sent at the same moment. */
  readonly pair: readonly SentAnswer[]
  /** Sent when both had their answers. */
  readonly retry: SentAnswer
  readonly effects: { readonly atOnce: number; readonly byRetry: number } | undefined
  readonly effectsOnce: number
}

export interface SentRequest {
  readonly route: string
  /** How many of the duplicates got 409. */
  readonly refused: number
  /** It failed (5xx, 429) however often it was sent, which shows nothing. */
  readonly alwaysFailed: boolean
  readonly findings: readonly Finding[]
}

export interface Finding {
  readonly kind: 'answers differ' | 'effect repeated' | 'failed'
  readonly message: string
}

export interface RouteReport {
  readonly route: string
  readonly requests: number
  /** Sent again and again, they had one effect and one answer. */
  readonly replayedEqual: number
  readonly answersDiffer: number
  readonly effectRepeated: number
  readonly failed: number
  /** Answered 5xx or 429 however often they were sent: nothing is shown about them. */
  readonly alwaysFailed: number
  /** Duplicates that got 409, which is fine. */
  readonly refused: number
  /** What was wrong, each once. */
  readonly messages: readonly string[]
}

export interface SendTwiceReport {
  readonly isIdempotent: boolean
  readonly routes: readonly RouteReport[]
  /** All of it, for people. */
  readonly text: string
}

export function judge(sent: Sent): SentRequest {
  const all = [...sent.pair, sent.retry]
  const refused = all.filter((each) => each.is === 'answer' && each.status === 409).length
  const findings = [...effectFindings(sent), ...answerFindings(sent)]
  return { route: sent.route, refused, alwaysFailed: findings.length === 0 && !all.some(isKept), findings }
}

function effectFindings({ effects, effectsOnce }: Sent): Finding[] {
  if (!effects) return []
  const findings: Finding[] = []
  const found = (message: string): void => void findings.push({ kind: 'effect repeated', message })
  if (effects.atOnce > effectsOnce)
    found(`two at once had ${effects.atOnce} effects, ${effectsOnce} of them expected: the route runs both`)
  if (effects.byRetry > 0 && effects.atOnce > 0) found(`a retry had ${effects.byRetry} more: the route runs it again`)
  return findings
}

function answerFindings({ pair, retry }: Sent): Finding[] {
  const broken = [...pair, retry].find((each) => each.is === 'error')
  if (broken) return [{ kind: 'failed', message: `a request was not answered: ${String(broken.error)}` }]
  const kept = pair.filter(isKept)
  // No request got an answer that is to be kept: the retry is the first one.
  if (kept.length === 0) return []
  const first = kept[0]!
  const other = [...pair, retry].find((each) => !isRefusal(each) && !isSame(first, each))
  if (!other) return refusedForEver(retry)
  return [{ kind: 'answers differ', message: `${describe(first)} and ${describe(other)} for one request` }]
}

/** A duplicate may be refused while the first is under way. A retry after both have ended must get their result. */
function refusedForEver(retry: SentAnswer): Finding[] {
  if (!isRefusal(retry)) return []
  return [{ kind: 'answers differ', message: 'a retry is told 409 although the first request has been answered' }]
}

function isKept(answer: SentAnswer): boolean {
  return answer.is === 'answer' && answer.status < 500 && answer.status !== 409 && answer.status !== 429
}

function isRefusal(answer: SentAnswer): boolean {
  return answer.is === 'answer' && answer.status === 409
}

// What a client acts upon. Dates, request ids and marks of a replay may differ.
const comparedHeaders = ['content-type', 'location', 'etag'] as const

function isSame(one: SentAnswer, other: SentAnswer): boolean {
  if (one.is !== 'answer' || other.is !== 'answer') return false
  return (
    one.status === other.status &&
    Buffer.compare(one.body, other.body) === 0 &&
    comparedHeaders.every((name) => one.headers.get(name) === other.headers.get(name))
  )
}

function describe(answer: SentAnswer): string {
  if (answer.is === 'error') return String(answer.error)
  const text = new TextDecoder().decode(answer.body)
  return `${answer.status} ${JSON.stringify(text.length > 60 ? `${text.slice(0, 60)}…` : text)}`
}

export function reportOn(sent: readonly SentRequest[]): SendTwiceReport {
  const byRoute = Map.groupBy(sent, ({ route }) => route)
  const routes = Array.from(byRoute, ([route, requests]) => routeReport(route, requests))
  routes.sort((a, b) => (a.route < b.route ? -1 : 1))
  const isIdempotent = sent.every(({ findings }) => findings.length === 0)
  return { isIdempotent, routes, text: routes.map(describeRoute).join('\n') }
}

function routeReport(route: string, requests: readonly SentRequest[]): RouteReport {
  const having = (kind: Finding['kind']): number =>
    requests.filter(({ findings }) => findings.some((each) => each.kind === kind)).length
  return {
    route,
    requests: requests.length,
    replayedEqual: requests.filter(({ findings, alwaysFailed }) => findings.length === 0 && !alwaysFailed).length,
    answersDiffer: having('answers differ'),
    effectRepeated: having('effect repeated'),
    failed: having('failed'),
    alwaysFailed: requests.filter(({ alwaysFailed }) => alwaysFailed).length,
    refused: requests.reduce((sum, each) => sum + each.refused, 0),
    messages: [...new Set(requests.flatMap(({ findings }) => findings.map(({ message }) => message)))],
  }
}

function describeRoute(route: RouteReport): string {
  const verdict =
    route.messages.length > 0 ? 'NOT idempotent' : route.replayedEqual > 0 ? 'idempotent    ' : 'not shown     '
  const counts = [
    `${route.requests} sent twice`,
    `${route.replayedEqual} replayed equal`,
    ...(route.answersDiffer > 0 ? [`${route.answersDiffer} with differing answers`] : []),
    ...(route.effectRepeated > 0 ? [`${route.effectRepeated} with an effect repeated`] : []),
    ...(route.failed > 0 ? [`${route.failed} not answered`] : []),
    ...(route.alwaysFailed > 0 ? [`${route.alwaysFailed} always failed, which shows nothing`] : []),
    ...(route.refused > 0 ? [`${route.refused} duplicates told 409`] : []),
  ]
  return [`${verdict}  ${route.route}: ${counts.join(', ')}`, ...route.messages.map((each) => `    ${each}`)].join('\n')
}
