// Random calls of a few clients through two servers, one at a time or a few at once, against the model. What they say must be what the
// model says in some order of the calls, and what is stored must be what it has then.
import { expect } from 'vitest'
import { FinalError, OnceError } from '../../src/index.ts'
import { seededRandom, type SeededRandom } from '../../src/testing/seeded-random.ts'
import {
  effectName,
  emptyWorld,
  type ModelCall,
  type ModelLimits,
  type ModelRequest,
  type ModelWorld,
  worldsAfter,
} from './model.ts'
import type { SessionServer, SessionSubject } from './session-subject.ts'

const clients = ['till-1', 'till-2']

interface Run {
  readonly random: SeededRandom
  readonly servers: readonly SessionServer[]
  // The real epoch of each registration, by client and count.
  readonly epochs: Map<string, number[]>
}

export async function runAgainstModel(subject: SessionSubject, seed: number, steps: number): Promise<void> {
  const random = seededRandom(seed)
  const limits: ModelLimits = { window: random.integer(1, 5), strict: random.chance(0.4) }
  const options = { ...limits, waitMs: 25_000 }
  const servers = [await subject.server(options), await subject.server(options)]
  const run: Run = { random, servers, epochs: new Map(clients.map((client) => [client, []])) }
  let worlds: readonly ModelWorld[] = [emptyWorld]
  for (let count = 0; count < steps; count++) {
    const calls = drawCalls(run, worlds[0]!)
    const says = await Promise.all(calls.map((call) => carryOut(run, call)))
    worlds = worldsAfter(worlds, calls, says, limits)
    const told = `seed ${seed}, step ${count}: ${JSON.stringify(limits)} ${JSON.stringify(calls)} said ${says.join(', ')}`
    expect(worlds.length, `no order of the calls says this: ${told}`).toBeGreaterThan(0)
    const stored = await storedState(run)
    worlds = worlds.filter((world) => JSON.stringify(shownBy(world)) === JSON.stringify(stored))
    expect(worlds.length, `this is not stored in any order: ${told}, stored ${JSON.stringify(stored)}`).toBeGreaterThan(
      0,
    )
  }
  const effects = (await subject.effects()).toSorted()
  expect(new Set(effects).size, `seed ${seed}: a request had two effects`).toBe(effects.length)
  // Elsewhere an effect that ran into a registration or the end of its session has taken place, and has no answer.
  if (servers[0]!.sessions.guarantee === 'one-transaction') {
    expect(worlds.map((world) => world.effects)).toContainEqual(effects)
  } else {
    expect(effects).toEqual(expect.arrayContaining([...worlds[0]!.effects]))
  }
}

function drawCalls(run: Run, world: ModelWorld): readonly ModelCall[] {
  const { random } = run
  const first = drawCall(run, world, random.pick(clients))
  if (!random.chance(0.35)) return [first]
  const others = Array.from({ length: random.integer(1, 2) }, () =>
    first.do === 'apply' && random.chance(0.5) ? first : drawCall(run, world, first.client),
  )
  const calls = [first, ...others]
  const ending = calls.find((call) => call.do === 'register' || call.do === 'close')
  const request = calls.find((call) => call.do === 'apply')
  // A request that is let in and then fenced has been seen by the others, so the end of a session meets one request at most. No client
  // acknowledges what it has in flight.
  const together = ending ? [ending, ...(request ? [request] : [])] : calls
  const floor = Math.min(...together.map((call) => (call.do === 'apply' ? call.sequence - 1 : Infinity)))
  return together.map((call) =>
    call.do === 'apply' ? { ...call, acknowledged: Math.min(call.acknowledged, floor) } : call,
  )
}

function drawCall({ random }: Run, world: ModelWorld, client: string): ModelCall {
  const session = world.sessions[client]
  const epoch = random.weighted({ current: 12, older: 1, later: 1 })
  const asked = Math.max(0, (session?.epoch ?? 1) + { current: 0, older: -1, later: 1 }[epoch])
  const what = random.weighted({ apply: 24, register: session && !session.isClosed ? 1 : 24, keepAlive: 1, close: 1 })
  if (what === 'register') return { do: what, client }
  if (what !== 'apply') return { do: what, client, epoch: asked }
  const { floor = 0, last = 0 } = session ?? {}
  const sequence = Math.max(1, random.integer(floor - 1, last + 2))
  const acknowledged = random.chance(0.5) ? 0 : random.integer(0, sequence - 1)
  return {
    do: 'apply',
    client,
    epoch: asked,
    sequence,
    acknowledged,
    content: random.chance(0.9) ? 'tea' : 'coffee',
    ends: random.weighted({ sold: 8, declined: 1, failed: 2 }),
  }
}

async function carryOut(run: Run, call: ModelCall): Promise<string> {
  const { sessions } = run.random.pick(run.servers)
  const epochs = run.epochs.get(call.client)!
  try {
    if (call.do === 'register') {
      epochs.push((await sessions.register(call.client)).epoch)
      return 'done'
    }
    // Before the first of them, and one that is not given out yet.
    const epoch = call.epoch === 0 ? 1 : (epochs[call.epoch - 1] ?? Number.MAX_SAFE_INTEGER)
    const session = { session: call.client, epoch }
    if (call.do !== 'apply') {
      await sessions[call.do](session)
      return 'done'
    }
    return await apply(run, call, session)
  } catch (error) {
    if (error instanceof OnceError) return error.code
    return (error as Error).message
  }
}

async function apply(run: Run, call: ModelRequest, session: { session: string; epoch: number }): Promise<string> {
  const server = run.random.pick(run.servers)
  const { sequence, acknowledged, content, ends } = call
  const request = { ...session, sequence, acknowledged, fingerprint: content }
  const { value, replayed } = await server.sessions.apply(request, async (tx) => {
    if (ends === 'sold' || server.sessions.guarantee === 'one-transaction') await server.effect(tx, effectName(call))
    if (ends === 'declined') throw new FinalError(ends)
    if (ends === 'failed') throw new Error(ends)
    return ends
  })
  return replayed ? `${value} again` : value
}

async function storedState({ servers }: Run): Promise<unknown> {
  const shown = await Promise.all(clients.map((client) => servers[1]!.sessions.show(client)))
  return shown.map((each) => each && stateOf(each.state, each))
}

function shownBy(world: ModelWorld): unknown {
  return clients.map((client) => {
    const session = world.sessions[client]
    if (!session) return undefined
    const { floor, last, isClosed, known } = session
    return stateOf(isClosed ? 'closed' : 'open', { floor, last, requests: Object.keys(known).length })
  })
}

// A request that was let in when its session was closed has moved the numbers, which nobody looks at any more.
function stateOf(state: string, { floor, last, requests }: Record<'floor' | 'last' | 'requests', number>): unknown {
  return state === 'closed' ? { state, requests } : { state, floor, last, requests }
}
