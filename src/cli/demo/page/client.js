// A careful client: it gives up on an answer after a second, and retries after a network error, a time-out or an answer that
// says so. It uses one key for all tries of one order. It runs in the page and in the worker that is the second tab. Every line
// it reports is something that happened.

const timeoutMs = 1000
const pauseMs = 200
// With longer and longer pauses, half a minute: a killed service is back by then, on a busy machine too.
const triesMax = 30
// The first tries meet the fault, later ones do not: every fault ends at some time.
const faultyTries = 2

export async function pay({ order, cents, road, key, faults, who, report }) {
  for (let number = 1; ; number++) {
    const fault = number <= faultyTries ? faults.join(' ') : ''
    const request = { who, number, startedMs: performance.timeOrigin + performance.now() }
    report({ ...request })
    const ending = await send({ order, cents, road, key, fault })
    report({ ...request, ...ending, endedMs: performance.timeOrigin + performance.now() })
    if (ending.final || number === triesMax) return ending
    await new Promise((resolve) =>
      setTimeout(resolve, Math.max(pauseMs * Math.min(number, 5), ending.retryAfterMs ?? 0)),
    )
  }
}

async function send({ order, cents, road, key, fault }) {
  const headers = { 'content-type': 'application/json' }
  if (key) headers['idempotency-key'] = key
  if (fault) headers['demo-fault'] = fault
  try {
    const response = await fetch(`/${road}/payments`, {
      method: 'POST',
      headers,
      body: JSON.stringify({ order, cents }),
      signal: AbortSignal.timeout(timeoutMs),
    })
    const answer = await response.json()
    return endingOf(response, answer)
  } catch (error) {
    return error.name === 'TimeoutError'
      ? { is: 'timeout', words: `no answer in ${timeoutMs / 1000} s`, final: false }
      : { is: 'lost', words: 'connection lost', final: false }
  }
}

function endingOf(response, answer) {
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
