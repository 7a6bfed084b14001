// A client of the HTTP server and of the gateways under torture: it survives their death, and writes down its answers.
import { type Flow, type Job, keyOf, tenant, waitMs } from './asking.ts'
import type { Journal, ToldAnswer } from './journal.ts'

/** The path for which a gateway refuses what is in doubt. See gateways.ts. */
export const refusingPath = '/refusing'

const pathOf = (flow: Flow): string => (flow === 'gatewayRefuse' ? `${refusingPath}/charges` : '/charges')

export async function askByHttp(journal: Journal, port: number, job: Job): Promise<ToldAnswer | undefined> {
  const call = `${journal.process}/http/${++httpCalls}`
  const { flow, id, asked, phase } = job
  journal.write({ is: 'call', call, key: keyOf(flow, id), asked, how: 'run', phase, waitMs })
  try {
    const response = await fetch(`http://127.0.0.1:${port}${pathOf(flow)}`, {
      method: 'POST',
      body: asked,
      headers: {
        'idempotency-key': `"${id}"`,
        'x-tenant': tenant,
        'x-call': call,
        'x-ask': asked === 'other' ? 'value' : asked,
      },
    })
    const answer = toldBy(response, await response.text())
    journal.write({ is: 'answer', call, answer })
    return answer
  } catch {
    journal.write({ is: 'hung-up', call })
    return undefined
  }
}

let httpCalls = 0

interface Body {
  readonly token: string
  readonly code: string
  readonly executed: 'yes' | 'no' | 'unknown'
  readonly title: string
}

/** As `run` says it. */
const codes: Readonly<Record<string, string>> = {
  'idempotency-key-reused': 'MISMATCH',
  'idempotency-in-progress': 'IN_FLIGHT',
  'idempotency-store-unavailable': 'STORE_UNAVAILABLE',
}

function codeOf(status: number, code: string): string {
  if (code === 'idempotency-outcome-unknown') return status === 409 ? 'IN_DOUBT' : 'OUTCOME_UNKNOWN'
  return codes[code] ?? code
}

function toldBy({ status, headers }: Response, body: string): ToldAnswer {
  const { token, code, executed, title } = JSON.parse(body) as Body
  const replayed = headers.get('idempotent-replayed') === 'true'
  // What must be the same each time: the status, a header of the service, and the body.
  const text = `${status} ${headers.get('content-type')} ${headers.get('x-receipt')} ${body}`
  if (status === 201) return { is: 'value', text, token, replayed }
  if (status === 402) return { is: 'failure', text, token, replayed }
  if (status === 500) return { is: 'threw', message: body, token }
  return { is: 'refused', code: codeOf(status, code), executed, message: title }
}
