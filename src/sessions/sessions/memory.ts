// Sessions in the memory of a process, beside a memory store. Every function decides and writes in one go, so that nothing comes between.

import type { MemoryPlace } from '../../clients/memory-place.ts'
import type { Key } from '../../core/key.ts'
import type { Claim, ClaimRequest, Fenced, Store, Verdict } from '../../core/store.ts'
import type { ScopedFilter, ScopedSession, SessionGround, SessionInFull, SessionSettings } from './ground.ts'
import { inOrder, isWanted, shownState } from './ground.ts'
import { afterRegistration, afterRequest, refusedBySession, requestRefusal, sessionRefusal } from './rules.ts'
import type { NumberedRequest, AskedSession, SessionState } from './rules.ts'

interface HeldRequest {
  readonly fingerprint: string
  /** Empty once it was given back. */
  readonly token: string
  readonly attempt: number
  readonly fence: number
  readonly leaseUntilMs: number
  readonly outcome?: Uint8Array
}

interface MemorySession extends SessionState {
  readonly forgetAtMs: number
  readonly requests: Map<number, HeldRequest>
}

type Table = Map<string, MemorySession>

/** By data and scope: two memory stores on the same data are two instances of one store. */
const tables = new WeakMap<object, Map<string, Table>>()

function tableIn({ data }: MemoryPlace, scope: string): Table {
  const scopes = tables.get(data) ?? new Map<string, Table>()
  tables.set(data, scopes)
  const table: Table = scopes.get(scope) ?? new Map<string, MemorySession>()
  scopes.set(scope, table)
  return table
}

interface MemoryContext {
  readonly table: Table
  readonly settings: SessionSettings
  now(): number
}

export function sessionsInMemory(place: MemoryPlace, settings: SessionSettings): SessionGround {
  const context: MemoryContext = { table: tableIn(place, settings.scope), settings, now: place.now }
  const { table, now } = context
  const { tombstoneMs } = settings
  return {
    guarantee: 'claim-and-settle',
    schema: [],
    migrate: async () => {},
    async register(client) {
      const session = afterRegistration(table.get(client), { ...settings, nowMs: now() })
      table.set(client, { ...session, forgetAtMs: session.leaseUntilMs + tombstoneMs, requests: new Map() })
      return { epoch: session.epoch }
    },
    async keepAlive(asked) {
      renew(context, asked, foundSession(context, asked))
    },
    async close(asked) {
      const session = foundSession(context, asked)
      const forgetAtMs = now() + tombstoneMs
      table.set(asked.client, { ...session, isClosed: true, leaseUntilMs: now(), forgetAtMs, requests: new Map() })
    },
    show: async (client) => shown(context, client),
    sweep: async (limit) => sweep(context, limit),
    storeFor: (asked) => storeOf(context, asked),
  }
}

/** The sessions of all services. */
export async function listInMemory(place: MemoryPlace, filter: ScopedFilter): Promise<readonly ScopedSession[]> {
  const names = [...(tables.get(place.data) ?? [])].flatMap(([scope, table]) =>
    Array.from(table.keys(), (session) => ({ scope, session })).filter((name) => isWanted(filter, name)),
  )
  const found: ScopedSession[] = []
  for (const { scope, session } of names.toSorted(inOrder)) {
    if (found.length >= (filter.limit ?? 100)) break
    const inFull = shown({ table: tableIn(place, scope), now: place.now }, session)
    if (!inFull) continue
    const { answered: _answered, unanswered: _unanswered, ...rest } = inFull
    found.push({ scope, ...rest })
  }
  return found
}

function sweep({ table, now }: MemoryContext, limit: number): number {
  let swept = 0
  for (const [client, session] of table) {
    if (swept >= limit) break
    if (now() >= session.forgetAtMs) table.delete(client)
    else if (now() >= session.leaseUntilMs && session.requests.size > 0) session.requests.clear()
    else continue
    swept += 1
  }
  return swept
}

function foundSession({ table, now, settings }: MemoryContext, asked: AskedSession): MemorySession {
  const session = table.get(asked.client)
  const refusal = sessionRefusal(session, asked, now())
  if (refusal) throw refusedBySession(refusal, asked, settings)
  return session!
}

function renew({ table, now, settings }: MemoryContext, { client }: AskedSession, session: MemorySession): void {
  const leaseUntilMs = now() + settings.leaseMs
  table.set(client, { ...session, leaseUntilMs, forgetAtMs: leaseUntilMs + settings.tombstoneMs })
}

function shown({ table, now }: Pick<MemoryContext, 'table' | 'now'>, client: string): SessionInFull | undefined {
  const session = table.get(client)
  if (!session || now() >= session.forgetAtMs) return undefined
  const { epoch, floor, last, leaseUntilMs, window } = session
  const state = shownState(session, now())
  const held = [...session.requests].toSorted(([one], [other]) => one - other)
  return {
    session: client,
    epoch,
    state,
    floor,
    last,
    requests: state === 'open' ? held.length : 0,
    leaseUntilMs,
    window,
    answered: held.flatMap(([sequence, { outcome }]) => (outcome ? [sequence] : [])),
    unanswered: held.flatMap(([sequence, { outcome }]) => (outcome ? [] : [sequence])),
  }
}

function storeOf(context: MemoryContext, asked: NumberedRequest): Store {
  return {
    name: 'memory',
    claim: async (key, request) => admit(context, { ...asked, key }, request),
    extend: async (claim, leaseMs) =>
      write(context, asked, claim, (held) => ({ ...held, leaseUntilMs: context.now() + leaseMs })),
    settle: async (claim, outcome) =>
      write(context, asked, claim, (held) => ({ ...held, outcome: held.outcome ?? new Uint8Array(outcome) })),
    release: async (claim) =>
      write(context, asked, claim, (held) =>
        held.outcome ? undefined : { ...held, token: '', leaseUntilMs: context.now() },
      ),
  }
}

function admit(context: MemoryContext, asked: NumberedRequest & { readonly key: Key }, request: ClaimRequest): Verdict {
  const { table, now, settings } = context
  const found = foundSession(context, asked)
  const { sequence } = asked
  const known = found.requests.get(sequence)
  const refusal = requestRefusal(found, known, { ...asked, fingerprint: request.fingerprint }, settings)
  if (refusal) throw refusedBySession(refusal, asked, settings)
  const session = afterRequest(found, asked, { ...settings, nowMs: now() })
  for (const number of found.requests.keys()) if (number <= session.floor) found.requests.delete(number)
  const forgetAtMs = session.leaseUntilMs + settings.tombstoneMs
  table.set(asked.client, { ...session, forgetAtMs, requests: found.requests })
  if (known?.outcome) return { is: 'settled', outcome: known.outcome, version: 0, attempt: known.attempt }
  const isOurs = known?.token === request.token
  if (known && !isOurs && now() < known.leaseUntilMs) {
    return { is: 'busy', retryAfterMs: known.leaseUntilMs - now() }
  }
  const { fingerprint, token, leaseMs } = request
  const attempt = isOurs ? known.attempt : (known?.attempt ?? 0) + 1
  const fence = isOurs ? known.fence : session.fence
  found.requests.set(sequence, { fingerprint, token, attempt, fence, leaseUntilMs: now() + leaseMs })
  const how = !known || (isOurs && attempt === 1) ? 'fresh' : known.token === '' ? 'reopened' : 'taken-over'
  return { is: 'granted', how, claim: { key: asked.key, token, attempt, fence } }
}

/** What a claim writes while it holds its number. Fence 0 is a claim whose answer was never heard. */
function write(
  context: MemoryContext,
  asked: NumberedRequest,
  claim: Claim,
  change: (held: HeldRequest) => HeldRequest | undefined,
): Fenced {
  const session = context.table.get(asked.client)
  if (!session) return 'lost'
  if (session.epoch !== asked.epoch) throw refusedBySession({ code: 'FENCED', session }, asked, context.settings)
  if (session.isClosed) throw refusedBySession({ code: 'SESSION_EXPIRED' }, asked, context.settings)
  const held = session.requests.get(asked.sequence)
  if (!held || held.token !== claim.token || (claim.fence !== 0 && held.fence !== claim.fence)) return 'lost'
  const changed = change(held)
  if (changed) session.requests.set(asked.sequence, changed)
  return 'done'
}
