// How a key is asked for: the effects under torture, and the calls of the library around them, each written down before and
// after. The same code asks in the processes that are killed and in the supervisor, which asks for the rest in the end.
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Op, Result } from '../../src/core/call.ts'
import { FinalError, OnceError } from '../../src/core/errors.ts'
import { key as keyFrom } from '../../src/core/key.ts'
import { createOnce } from '../../src/core/once.ts'
import type { Once } from '../../src/core/once.ts'
import type { Recoverable, StepLedger, Store, Transactional } from '../../src/core/store.ts'
import { idempotency } from '../../src/http/node.ts'
import type { Journal, ToldAnswer } from './journal.ts'
import { type OpenedStore, openStore, type Place, writeEffect } from './place.ts'
import { type Fate, type Pass, passThrough, watched } from './points.ts'

/** `refuse` is a run that is never taken over: at most once, whatever happens. `gatewayRefuse` is the same behind a gateway. */
export const flows = ['run', 'refuse', 'transaction', 'http', 'gateway', 'gatewayRefuse', 'operation'] as const
export type Flow = (typeof flows)[number]

/** Asked for by HTTP. */
export function isServed(flow: Flow): boolean {
  return flow === 'http' || flow === 'gateway' || flow === 'gatewayRefuse'
}

/** Never run again after a crash: at most once, and in doubt then. */
export function isRefusing(flow: string | undefined): boolean {
  return flow === 'refuse' || flow === 'gatewayRefuse'
}

/** What is asked for, which is also what the effect does: see `work`. */
export const asks = ['value', 'final', 'throws', 'slow'] as const
export type Ask = (typeof asks)[number]

export interface Job {
  readonly flow: Flow
  readonly id: string
  /** `other` is another request under the same key. */
  readonly asked: Ask | 'other'
  readonly phase: 'first' | 'last'
}

export const scope = 'torture'
export const tenant = 'acme'
/** Short, so that takeovers come soon. Nothing depends on it being long enough: a process that is too slow is taken over, and fenced. */
export const leaseMs = 500
export const waitMs = 3_000

export interface Asker {
  readonly opened: OpenedStore
  ask(job: Job): Promise<ToldAnswer>
  /** Listens with the HTTP adapter. Returns the port. */
  listen(): Promise<number>
  close(): Promise<void>
}

/** What only some stores have is used only on those. */
type AskedStore = Store & Transactional<unknown> & StepLedger & Recoverable

interface Tools {
  readonly journal: Journal
  readonly once: Once<AskedStore>
  readonly pass: Pass
}

export interface AskerOptions {
  readonly place: Place
  readonly journal: Journal
  readonly fate?: Fate
  readonly opened?: OpenedStore
}

export async function openAsker({ place, journal, fate = {}, opened: given }: AskerOptions): Promise<Asker> {
  const opened = given ?? (await openStore(place))
  const pass = passThrough(journal, fate)
  const store = watched(opened.store as AskedStore, pass)
  const tools: Tools = { journal, pass, once: createOnce({ store, scope, leaseMs, waitMs }) }
  const operations =
    place.store in { sqlite: 1, postgres: 1, mysql: 1, 'redis-postgres': 1 } && 'enlist' in opened.store
  const checkout = operations ? defineCheckout(tools) : undefined
  let calls = 0
  let server: ReturnType<typeof createServer> | undefined
  return {
    opened,
    async ask(job) {
      const call = `${journal.process}/${++calls}`
      const { flow, id, asked, phase } = job
      const how = flow === 'transaction' ? 'transaction' : 'run'
      const key = keyOf(flow, id)
      journal.write({ is: 'call', call, key, asked, how, phase, waitMs })
      const answer = await answerOf(() => (flow === 'operation' ? checkout!(job) : callOf(tools, job, call)()))
      journal.write({ is: 'answer', call, answer })
      return answer
    },
    async listen() {
      server = createServer(handlerOf(tools))
      await new Promise<void>((resolve) => server!.listen(0, '127.0.0.1', resolve))
      return (server.address() as AddressInfo).port
    },
    async close() {
      server?.closeAllConnections()
      server?.close()
      await tools.once.close()
      await opened.close()
    },
  }
}

/** As the library makes it: an HTTP key is in the scope of its tenant, and a gateway's in the gateway's own. */
export function keyOf(flow: Flow, id: string): ReturnType<typeof keyFrom> {
  if (flow === 'gateway' || flow === 'gatewayRefuse') return keyFrom(`gateway:${scope}/${tenant}`, id)
  return keyFrom(flow === 'http' ? `${scope}/${tenant}` : scope, id)
}

function callOf({ once, ...tools }: Tools, { flow, id, asked }: Job, call: string): () => Promise<Result<Value>> {
  const options = { fingerprint: asked }
  const ask = asked === 'other' ? 'value' : asked
  if (flow === 'transaction') {
    return () => once.transaction(id, (tx, op) => work({ ...tools, call, op, ask, tx }), options)
  }
  const onTakeover = flow === 'refuse' ? 'refuse' : 'run'
  return () => once.run(id, (op) => work({ ...tools, call, op, ask }), { ...options, onTakeover })
}

/** The result of every effect: the outcome alone tells which attempt it belongs to. */
export interface Value {
  readonly token: string
}

export interface Work {
  readonly journal: Journal
  readonly pass: Pass
  readonly call: string
  readonly op: Op
  readonly ask: Ask
  readonly tx?: unknown
}

/** The effect: a line in the ledger, outside of the store or in its transaction. */
export async function work({ journal, pass, call, op, ask, tx }: Work): Promise<Value> {
  const { token, attempt, fence } = op
  journal.write({ is: 'execution', call, token, attempt, fence, derivedKey: op.keyFor('charge') })
  op.signal.addEventListener('abort', () => journal.write({ is: 'aborted', token }))
  const end = (ended: 'returned' | 'final' | 'threw'): void => journal.write({ is: 'ended', token, ended })
  // Longer than a lease, so that it is kept by heartbeats alone.
  if (ask === 'slow') await sleep(leaseMs * 1.4)
  try {
    await pass('effect', token, undefined, async () => {
      if (tx === undefined) journal.effect(token)
      else await writeEffect(tx, token, '', op.key.id)
    })
  } catch (error) {
    // The effect's own error: the library passes it on as it is.
    end('threw')
    effectErrors.set(error as object, token)
    throw error
  }
  if (ask === 'final') {
    end('final')
    throw new FinalError('declined', { data: { token } })
  }
  // Fails once for each key: the retry returns a value.
  if (ask === 'throws' && attempt === 1 && tx === undefined) {
    end('threw')
    throw new EffectError(token)
  }
  if (ask === 'throws' && tx !== undefined && !thrown.has(op.key.id)) {
    thrown.add(op.key.id)
    end('threw')
    throw new EffectError(token)
  }
  end('returned')
  return { token }
}

// A transaction that was rolled back leaves no trace of its attempt: once in each process.
const thrown = new Set<string>()

/** What effects have thrown, and under which token. */
const effectErrors = new WeakMap<object, string>()

class EffectError extends Error {
  readonly token: string
  constructor(token: string) {
    super('the effect failed')
    this.token = token
  }
}

export async function answerOf(call: () => Promise<Result<Value>>): Promise<ToldAnswer> {
  try {
    const { value, replayed } = await call()
    return { is: 'value', text: JSON.stringify(value), token: value.token, replayed }
  } catch (error) {
    if (error instanceof FinalError) {
      const { token } = error.data as Value
      return { is: 'failure', text: error.message + token, token, replayed: false }
    }
    if (error instanceof OnceError) {
      return { is: 'refused', code: error.code, executed: error.executed, message: error.message }
    }
    if (error instanceof EffectError) return { is: 'threw', message: error.message, token: error.token }
    const token = effectErrors.get(error as object)
    if (token !== undefined) return { is: 'threw', message: String(error), token }
    return { is: 'stray', message: String(error) }
  }
}

/** Which steps an operation must have had, each once, when it has ended with a value. */
export const transactionalSteps = ['reserve', 'ship'] as const
export const outsideSteps = ['charge', 'mail'] as const

function defineCheckout({ once, journal, pass }: Tools): (job: Job) => Promise<Result<Value>> {
  const backoff = { firstMs: 20, factor: 1, maxMs: 20 }
  const operation = once.operation('checkout', { attempts: 1_000, backoff }, async (op, asked: string) => {
    const { id } = op.key
    const said = (step: string, what: 'ran' | 'recorded' | 'undone', key: string): void =>
      journal.write({ is: 'step', id, step, what, key })
    const inside = async (step: string): Promise<void> => {
      await op.transaction(step, {
        run: async (tx, { key, token }) => {
          said(step, 'ran', key)
          await writeEffect(tx, token, step, id)
          return key
        },
        undo: (tx, { token }) => writeEffect(tx, token, `undo ${step}`, id),
      })
      said(step, 'recorded', '')
    }
    const outside = async (step: string): Promise<void> => {
      await op.step(step, {
        run({ key, token }) {
          said(step, 'ran', key)
          return pass('effect', token, undefined, async () => key)
        },
        undo: ({ key }) => said(step, 'undone', key),
      })
      said(step, 'recorded', '')
    }
    await inside('reserve')
    await outside('charge')
    if (asked === 'final') throw new FinalError('out of stock', { data: { token: id } })
    await inside('ship')
    await outside('mail')
    return { token: id }
  })
  return ({ id, asked }) => operation.run(id, asked)
}

function handlerOf({ journal, once, pass }: Tools): Parameters<typeof createServer>[1] {
  const wrap = idempotency(once as unknown as Once, { tenant: () => tenant, waitMs })
  return wrap((req, res) => {
    const call = String(req.headers['x-call'])
    const ask = String(req.headers['x-ask']) as Ask
    const op = req.idempotency!
    return work({ journal, pass, call, op, ask }).then(
      (value) => res.writeHead(201, { 'content-type': 'application/json' }).end(JSON.stringify(value)),
      (error: unknown) => {
        if (error instanceof FinalError) return res.writeHead(402).end(JSON.stringify(error.data))
        return res.writeHead(500).end(JSON.stringify({ token: (error as EffectError).token }))
      },
    )
  }) as Parameters<typeof createServer>[1]
}
