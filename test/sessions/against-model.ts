// Random calls of a few clients through two servers, one at a time or a few in one tick, against the model. What they say must be what the
// model says in some order of the calls, and what is stored must be what it has then. Duplicates come late, from former epochs too. Numbers
// leave gaps and are used for something else. A client registers again or closes while its requests are in flight. Sessions end by time,
// and are forgotten.
import { expect } from 'vitest'
import { FinalError, OnceError } from '../../src/index.ts'
import { seededRandom, type SeededRandom } from '../../src/testing/seeded-random.ts'
import { eventually } from '../messages/eventually.ts'
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
  readonly limits: ModelLimits
  readonly servers: readonly SessionServer[]
  // Servers whose sessions end at once, with a tombstone and without.
  readonly ending: Readonly<Record<'expire' | 'forget', SessionServer>>
  // What may come once more.
  readonly sent: ModelRequest[]
  // How often a step is a few calls in one tick.
  readonly together: number
  // The real epoch of each registration, by client and count.
  readonly epochs: Map<string, number[]>
}

export async function runAgainstModel(
  subject: SessionSubject,
  seed: number,
  { steps = 60, together = 0.35 }: { readonly steps?: number; readonly together?: number } = {},
): Promise<void> {
  const random = seededRandom(seed)
  const limits: ModelLimits = { window: random.integer(1, 5), strict: random.chance(0.4) }
  const options = { ...limits, waitMs: 25_000 }
  const servers = [await subject.server(options), await subject.server(options)]
  const run: Run = {
    random,
    limits,
    servers,
    ending: {
      expire: await subject.server({ ...options, leaseMs: 1 }),
      forget: await subject.server({ ...options, leaseMs: 1, tombstoneMs: 0 }),
    },
    sent: [],
    together,
    epochs: new Map(clients.map((client) => [client, []])),
  }
  let worlds: readonly ModelWorld[] = [emptyWorld]
  for (let count = 0; count < steps; count++) {
    const calls = drawCalls(run, worlds[0]!)
    const says = await Promise.all(calls.map((call) => carryOut(run, call)))
    run.sent.push(...calls.filter((call) => call.do === 'apply'))
    // Two registrations at once may be answered in the other order.
    for (const epochs of run.epochs.values()) epochs.sort((one, other) => one - other)
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
  const isEnd = first.do === 'expire' || first.do === 'forget'
  if (isEnd || !random.chance(run.together)) return [first]
  const calls = [first]
  while (calls.length < 2 || (calls.length < 4 && random.chance(0.5))) {
    const other = first.do === 'apply' && random.chance(0.4) ? first : drawCall(run, world, first.client)
    if (other.do !== 'expire' && other.do !== 'forget') calls.push(other)
  }
  // No client acknowledges what it has in flight.
  const floor = Math.min(...calls.map((call) => (call.do === 'apply' ? call.sequence - 1 : Infinity)))
  return calls.map((call) =>
    call.do === 'apply' ? { ...call, acknowledged: Math.min(call.acknowledged, floor) } : call,
  )
}

function drawCall({ random, sent, limits }: Run, world: ModelWorld, client: string): ModelCall {
  const session = world.sessions[client]
  const isOpen = session !== undefined && !session.ended
  const what = random.weighted({
    apply: 24,
    late: sent.length > 0 ? 4 : 0,
    register: isOpen ? 1 : 12,
    keepAlive: 1,
    close: 1,
    expire: isOpen ? 0.5 : 0,
    forget: isOpen ? 0.5 : 0,
  })
  if (what === 'late') {
    const before = random.pick(sent)
    if (before.client === client) return before
  }
  if (what === 'register' || what === 'expire' || what === 'forget') return { do: what, client }
  const epoch = random.weighted({ current: 12, older: 1, later: 1 })
  const asked = Math.max(0, (session?.epoch ?? 1) + { current: 0, older: -1, later: 1 }[epoch])
  if (what === 'keepAlive' || what === 'close') return { do: what, client, epoch: asked }
  const { floor = 0, last = 0 } = session ?? {}
  const leap = random.chance(0.1) ? limits.window + 2 : 2
  const sequence = Math.max(1, random.integer(floor - 1, last + leap))
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
    if (call.do === 'expire' || call.do === 'forget') return await end(run, call.do, call.client)
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

/** Its lease is made short, and has ended when it is shown so. */
async function end({ ending, servers, epochs }: Run, how: 'expire' | 'forget', client: string): Promise<string> {
  const { sessions } = ending[how]
  await sessions.keepAlive({ session: client, epoch: epochs.get(client)!.at(-1)! })
  await eventually(`${client} to ${how}`, async () => {
    await sessions.sweep()
    const shown = await servers[0]!.sessions.show(client)
    return how === 'forget' ? shown === undefined : shown?.state === 'expired'
  })
  return 'done'
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
    if (!session || session.ended === 'forgotten') return undefined
    const { floor, last, ended = 'open', known } = session
    return stateOf(ended, { floor, last, requests: Object.keys(known).length })
  })
}

// A request that was let in when its session ended has moved the numbers, which nobody looks at any more.
function stateOf(state: string, { floor, last, requests }: Record<'floor' | 'last' | 'requests', number>): unknown {
  return state === 'open' ? { state, floor, last, requests } : { state, requests }
}
