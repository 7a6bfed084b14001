// A careful client without keys, for the road without onceonly: it gives up on an answer after a second, and retries after a network
// error, a time-out or an answer that says so. It runs in the page and in the worker that is the second tab. Every line it reports
// is something that happened.

export const timeoutMs = 1000
const pauseMs = 200
// With longer and longer pauses, half a minute: a killed service is back by then, on a busy machine too.
const triesMax = 30
// The first tries meet the fault, later ones do not: every fault ends at some time.
export const faultyTries = 2

export const nowMs = () => performance.timeOrigin + performance.now()

export async function pay({ order, cents, faults, who, report }) {
  for (let number = 1; ; number++) {
    const fault = number <= faultyTries ? faults.join(' ') : ''
    const request = { who, number, startedMs: nowMs() }
    report({ ...request })
    const ending = await send({ order, cents, fault })
    report({ ...request, ...ending, endedMs: nowMs() })
    if (ending.final || number === triesMax) return ending
    await new Promise((resolve) =>
      setTimeout(resolve, Math.max(pauseMs * Math.min(number, 5), ending.retryAfterMs ?? 0)),
    )
  }
}

async function send({ order, cents, fault }) {
  const headers = { 'content-type': 'application/json' }
  if (fault) headers['demo-fault'] = fault
  try {
    const response = await fetch('/without/payments', {
      method: 'POST',
      headers,
      body: JSON.stringify({ order, cents }),
      signal: AbortSignal.timeout(timeoutMs),
    })
    const answer = await response.json()
    return endingOf(response, answer)
  } catch (error) {
    return nothingHeard(error.name === 'TimeoutError')
  }
}

export function nothingHeard(isLate) {
  return isLate
    ? { is: 'timeout', words: `no answer in ${timeoutMs / 1000} s`, final: false }
    : { is: 'lost', words: 'connection lost', final: false }
}

export function endingOf(response, answer) {
  const { status } = response
  if (response.ok) {
    const replayed = response.headers.get('idempotent-replayed') === 'true'
    const words = replayed ? `${status}, replayed: charge ${answer.charge}` : `${status}, charge ${answer.charge}`
    return { is: replayed ? 'replayed' : 'paid', words, final: true }
  }
  const seconds = Number(response.headers.get('retry-after') ?? 0)
  const retryable = answer.retryable ?? status >= 500
  const name = String(answer.type ?? '')
    .split('/')
    .pop()
    .replace('idempotency-', '')
    .replaceAll('-', ' ')
  const words = `${status}, ${name || answer.error || 'refused'}`
  return { is: retryable ? 'refused' : 'doubt', words, final: !retryable, retryAfterMs: Math.min(seconds * 1000, 1000) }
}
