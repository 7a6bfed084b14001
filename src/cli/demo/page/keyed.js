// The road with onceonly: the client of `onceonly/client`, with its keys in IndexedDB, as an application has it. It runs in the page
// and in the worker that is the second tab, which share the keys. Every line it reports is something that happened.

import { createClient, indexedDbKeys, retryBudget } from '/onceonly.js'
import { endingOf, faultyTries, nothingHeard, nowMs, timeoutMs } from './client.js'

const keys = indexedDbKeys('onceonly-demo')

/** Keeps key and request, sends them until there is an answer, and lets go of them when the answer was read. */
export async function payOnce({ order, cents, faults, who, report }) {
  const tries = watch({ faults, who, report })
  const init = {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ order, cents }),
  }
  try {
    const client = clientOf(tries.fetch, () => order)
    const response = await client.fetch('/with/payments', init, { operation: `pay:${order}` })
    const ending = endingOf(response, await response.json())
    await response.settled()
    return tries.conclude(ending)
  } catch (error) {
    // In doubt, or no answer in time. The record stays, and the list of what is pending shows it.
    return tries.conclude({ is: 'refused', words: error.message })
  }
}

/** What this browser has begun and not finished, before a reload or in another tab. */
export const pending = () => clientOf(fetch).pending()

export const forget = (operation) => clientOf(fetch).forget(operation)

/** Finishes what is pending, with the same keys. Resolves to the orders that are paid now. */
export async function resume(report) {
  const tries = watch({ faults: [], who: '', report })
  const { settled } = await clientOf(tries.fetch).resume((response) => response.json())
  return settled.map((operation) => operation.replace('pay:', ''))
}

/** Patient: a service that was killed is back within a minute, on a busy machine too. */
function clientOf(send, newKey) {
  return createClient({
    keys,
    fetch: send,
    ...(newKey && { newKey }),
    retry: { attemptMs: timeoutMs, totalMs: 60_000 },
    budget: retryBudget({ burst: 30 }),
  })
}

/** A fetch that reports each try, and gives the first ones the faults. */
function watch({ faults, who, report }) {
  let number = 0
  let last
  return {
    async fetch(url, init) {
      number += 1
      const request = { who, number, startedMs: nowMs() }
      report({ ...request })
      const headers = new Headers(init.headers)
      if (number <= faultyTries && faults.length > 0) headers.set('demo-fault', faults.join(' '))
      try {
        const response = await fetch(url, { ...init, headers })
        const body = await response.text()
        last = endingOf(response, JSON.parse(body))
        return new Response(body, response)
      } catch (error) {
        last = nothingHeard(init.signal.aborted)
        throw error
      } finally {
        report({ ...request, ...last, endedMs: nowMs() })
      }
    },
    /** The other tab may have got the answer, which is kept beside the key: then no try of this one has it. */
    conclude(ending) {
      if (last?.final) return last
      const atMs = nowMs()
      report({ who, number: number + 1, startedMs: atMs, ...ending, endedMs: atMs })
      return ending
    },
  }
}
