// Sessions as a pure function: what a call says, and what is there after it. Written from docs/sessions.md alone, it knows nothing of the
// source. Epochs are counted: the first registration of a client is 1.

export interface ModelSession {
  readonly epoch: number
  readonly floor: number
  readonly last: number
  // How it ended. A forgotten one is as one that never was, only that its epochs are not used again.
  readonly ended?: 'closed' | 'expired' | 'forgotten'
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
  // Its lease ends, or also its tombstone.
  | { readonly do: 'expire'; readonly client: string }
  | { readonly do: 'forget'; readonly client: string }

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
    const fresh = { epoch: (session?.epoch ?? 0) + 1, floor: 0, last: 0, known: {} }
    return { world: withSession(world, call.client, fresh), says: 'done' }
  }
  if (call.do === 'expire' || call.do === 'forget') return { world: withEnd(world, call.client, call.do), says: 'done' }
  if (!session || session.ended || call.epoch > session.epoch) return { world, says: 'SESSION_EXPIRED' }
  if (call.epoch < session.epoch) return { world, says: 'FENCED' }
  if (call.do === 'apply') return applied(world, session, call, limits)
  if (call.do === 'keepAlive') return { world, says: 'done' }
  return { world: withEnd(world, call.client, 'close'), says: 'done' }
}

const ends = { close: 'closed', expire: 'expired', forget: 'forgotten' } as const

function withEnd(world: ModelWorld, client: string, how: keyof typeof ends): ModelWorld {
  return withSession(world, client, { ...world.sessions[client]!, ended: ends[how], known: {} })
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

// Every world in which these calls, in some order, say just this. A request that was let in and then met the end of its session is
// refused, and the others have seen it: it may have come before them as one that failed.
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
      const call = calls[index]!
      const others = left.filter((each) => each !== index)
      const next = step(world, call, limits)
      if (next.says === says[index]) go(next.world, others)
      if (call.do !== 'apply' || !isEnd(says[index]!)) continue
      const letIn = step(world, { ...call, ends: 'failed' }, limits)
      if (letIn.says === 'failed') go(letIn.world, others)
    }
  }
  const isEnd = (said: string): boolean => said === 'FENCED' || said === 'SESSION_EXPIRED'
  for (const world of worlds) go(world, [...calls.keys()])
  return [...found.values()]
}
