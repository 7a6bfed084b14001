// A client: one key for one payment, chosen before the first attempt, and the same on every retry until there is an answer.

import { setTimeout as sleep } from 'node:timers/promises'

export interface Told {
  readonly tries: number
  readonly body: unknown
}

export async function pay(url: string, key: string, payment: object): Promise<Told> {
  const headers = { 'content-type': 'application/json', 'idempotency-key': key }
  for (let tries = 1; ; tries++) {
    const response = await fetch(`${url}/payments`, { method: 'POST', headers, body: JSON.stringify(payment) }).catch(
      () => undefined, // nothing was heard: it may have happened, so it is asked again with the same key
    )
    if (response?.status === 201) return { tries, body: await response.json() }
    if (response && response.status < 500 && response.status !== 409)
      throw new Error(`refused: ${await response.text()}`)
    await sleep(200)
  }
}
