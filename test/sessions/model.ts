// Sessions as a pure function: what a call says, and what is there after it. Written from docs/sessions.md alone, it knows nothing of the
// source. Epochs are counted: the first registration of a client is 1.

export interface ModelSession {
  readonly epoch: number
  readonly floor: number
  readonly last: number
  readonly isClosed: boolean
  readonly known: Readonly<Record<number, { readonly content: string; readonly answer?: string }>>
}

export interface ModelWorld {
  readonly sessions: Readonly<Record<string, ModelSession>>
  // Names of effects that took place.
  readonly effects: readonly string[]
}

export const emptyWorld: ModelWorld = { sessions: {}, effects: [] }

export interface ModelRequest {
  readonly do: 'apply'
  readonly client: string
  readonly epoch: number
  readonly sequence: number
  readonly acknowledged: number
  readonly content: string
  // What its effect would do: end, refuse for good, or fail.
  readonly ends: 'sold' | 'declined' | 'failed'
}

export type ModelCall =
  | ModelRequest
  | { readonly do: 'register'; readonly client: string }
  | { readonly do: 'keepAlive' | 'close'; readonly client: string; readonly epoch: number }

export interface ModelLimits {
  readonly window: number
  readonly strict: boolean
}

export interface Step {
  readonly world: ModelWorld
  readonly says: string
}

export const effectName = ({ client, epoch, sequence }: ModelRequest): string => `${client}/${epoch}/${sequence}`

export function step(world: ModelWorld, call: ModelCall, limits: ModelLimits): Step {
  const session = world.sessions[call.client]
  if (call.do === 'register') {
    const fresh = { epoch: (session?.epoch ?? 0) + 1, floor: 0, last: 0, isClosed: false, known: {} }
    return { world: withSession(world, call.client, fresh), says: 'done' }
  }
  if (!session || session.isClosed || call.epoch > session.epoch) return { world, says: 'SESSION_EXPIRED' }
  if (call.epoch < session.epoch) return { world, says: 'FENCED' }
  if (call.do === 'apply') return applied(world, session, call, limits)
  if (call.do === 'keepAlive') return { world, says: 'done' }
  return { world: withSession(world, call.client, { ...session, isClosed: true, known: {} }), says: 'done' }
}

function applied(world: ModelWorld, session: ModelSession, call: ModelRequest, limits: ModelLimits): Step {
  const { sequence, acknowledged, content } = call
  if (sequence <= session.floor) return { world, says: 'FORGOTTEN' }
  const before = session.known[sequence]
  if (before && before.content !== content) return { world, says: 'MISMATCH' }
  if (!before) {
    if (sequence - Math.max(session.floor, acknowledged) > limits.window) return { world, says: 'WINDOW_EXCEEDED' }
    if (limits.strict && sequence - session.last > 1) return { world, says: 'GAP' }
  }
  const floor = Math.max(session.floor, acknowledged)
  const answer = before?.answer ?? (call.ends === 'failed' ? undefined : call.ends)
  const kept = Object.entries(session.known).filter(([number]) => Number(number) > floor)
  const entry = answer === undefined ? { content } : { content, answer }
  const known = { ...Object.fromEntries(kept), [sequence]: entry }
  const next = withSession(world, call.client, { ...session, floor, last: Math.max(session.last, sequence), known })
  if (before?.answer !== undefined) return { world: next, says: before.answer === 'sold' ? 'sold again' : 'declined' }
  if (call.ends !== 'sold') return { world: next, says: call.ends }
  return { world: { ...next, effects: [...next.effects, effectName(call)].toSorted() }, says: 'sold' }
}

function withSession(world: ModelWorld, client: string, session: ModelSession): ModelWorld {
  return { ...world, sessions: { ...world.sessions, [client]: session } }
}

// Every world in which these calls, in some order, say just this.
export function worldsAfter(
  worlds: readonly ModelWorld[],
  calls: readonly ModelCall[],
  says: readonly string[],
  limits: ModelLimits,
): readonly ModelWorld[] {
  const found = new Map<string, ModelWorld>()
  const go = (world: ModelWorld, left: readonly number[]): void => {
    if (left.length === 0) found.set(JSON.stringify(world), world)
    for (const index of left) {
      const next = step(world, calls[index]!, limits)
      if (next.says === says[index])
        go(
          next.world,
          left.filter((each) => each !== index),
        )
    }
  }
  for (const world of worlds) go(world, [...calls.keys()])
  return [...found.values()]
}
