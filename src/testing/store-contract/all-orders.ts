// Calls on one key in one tick: a store may batch them, and its answers must still be as if they had come one after the other, in
// some order. Random calls, and the answers and the final state compared with every order of the same calls on the memory store.

import assert from 'node:assert/strict'
import { systemRandom } from '../../core/clock.ts'
import { key } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type {
  Change,
  Claim,
  ClaimRequest,
  Inspectable,
  Mending,
  Recoverable,
  StepLedger,
  Store,
  Verdict,
} from '../../core/store.ts'
import { memoryStore } from '../../stores/memory.ts'
import { manualClock } from '../manual-clock.ts'
import { seededRandom } from '../seeded-random.ts'
import type { SeededRandom } from '../seeded-random.ts'
import { bytesOf, eventually, leaseMs, minuteMs, otherFingerprint, request, times } from './case.ts'
import type { ContractCase } from './case.ts'
import type { ContractSubject } from './subject.ts'

type OrderedStore = Store & Partial<Inspectable & StepLedger & Recoverable>

/** One call as data, so that it can be made on two stores. `held` is the claim that the preparation left, in each store its own. */
type OrderedCall =
  | { readonly call: 'claim' | 'enlist'; readonly request: ClaimRequest }
  | { readonly call: 'extend'; readonly leaseMs: number }
  | { readonly call: 'settle'; readonly outcome: string; readonly keepMs: number }
  | { readonly call: 'release'; readonly how: 'open' | 'forget'; readonly heard: boolean }
  | { readonly call: 'mend'; readonly action: Mending }
  | { readonly call: 'advance'; readonly record: number; readonly becomes: Change['becomes'] }

/** Where the key stands before the calls. */
interface Preparation {
  readonly token: string
  readonly operation: boolean
  readonly brought: 'nothing' | 'abandoned' | 'reopened' | 'open' | 'settled' | 'expired'
}

interface Scenario {
  readonly preparation: Preparation | undefined
  readonly calls: readonly OrderedCall[]
}

// Whole minutes, so that what real time adds on a slow machine is rounded away.
const retention = { keepMs: 60 * minuteMs, tombstoneMs: 120 * minuteMs }

export function scenarioOf(random: SeededRandom, store: OrderedStore): Scenario {
  const token = random.uuid()
  const operation = store.advance !== undefined && random.chance(0.4)
  const ends = ['nothing', 'nothing', 'abandoned', 'reopened', 'open', 'settled', 'expired'] as const
  const preparation = random.chance(0.15) ? undefined : { token, operation, brought: random.pick(ends) }
  const tokens = [token, random.uuid(), random.uuid()]
  const drawn = times(random.integer(2, 4)).map(() => callOf(random, tokens, { operation, mends: !!store.mend }))
  const calls = drawn.some(forgets) ? drawn.map((call) => withNewToken(call, random.uuid())) : drawn
  return { preparation, calls }
}

// A store may keep the remains of what was forgotten and return `busy` to a claim of that token, or keep none and grant it. Both
// are right, so no token comes again beside a forget.
function withNewToken(call: OrderedCall, token: string): OrderedCall {
  return 'request' in call ? { ...call, request: { ...call.request, token } } : call
}

function forgets(call: OrderedCall): boolean {
  return call.call === 'mend' ? call.action === 'forget' : call.call === 'release' && call.how === 'forget'
}

function callOf(
  random: SeededRandom,
  tokens: readonly string[],
  { operation, mends }: { operation: boolean; mends: boolean },
): OrderedCall {
  const call = random.weighted({
    claim: 3,
    extend: 3,
    settle: 3,
    release: 4,
    mend: mends ? 2 : 0,
    advance: operation ? 6 : 0,
  })
  if (call === 'claim')
    return { call: operation ? 'enlist' : 'claim', request: requestOf(random, random.pick(tokens), operation) }
  if (call === 'extend') return { call, leaseMs: random.pick([10, 30]) * minuteMs }
  if (call === 'settle') return { call, outcome: random.pick(['one', 'two']), keepMs: random.pick([60, 90]) * minuteMs }
  if (call === 'release') return { call, how: random.pick(['open', 'forget']), heard: random.chance(0.8) }
  if (call === 'mend') return { call, action: mendingOf(random) }
  return { call, record: random.integer(1, 2), becomes: becomingOf(random) }
}

function requestOf(random: SeededRandom, token: string, operation: boolean): ClaimRequest {
  return request({
    token,
    retention,
    onTakeover: random.pick(['run', 'refuse']),
    onExpired: random.pick(['run', 'refuse']),
    ...(random.chance(0.1) && { fingerprint: otherFingerprint }),
    ...(operation && { input: bytesOf('input') }),
  })
}

function mendingOf(random: SeededRandom): Mending {
  return random.pick<Mending>([
    'release',
    'forget',
    { resolve: bytesOf('found out'), retention },
    { keepMs: 500 * minuteMs },
  ])
}

function becomingOf(random: SeededRandom): Change['becomes'] {
  return random.pick<Change['becomes']>([
    { to: 'running', leaseMs: 20 * minuteMs },
    { to: 'settled', outcome: bytesOf('end'), retention },
    { to: 'open' },
    { to: 'open', afterMs: 5 * minuteMs },
  ])
}

interface Stage {
  readonly store: OrderedStore
  advance(ms: number): Promise<void>
}

async function prepare({ store, advance }: Stage, at: Key, preparation: Preparation | undefined): Promise<Claim> {
  if (!preparation) return { key: at, token: unusedToken, attempt: 1, fence: 1 }
  const { token, operation, brought } = preparation
  const asked = request({ token, retention, ...(operation && { input: bytesOf('input') }) })
  const take = async (given: ClaimRequest): Promise<Claim> => {
    const verdict = await (operation
      ? store.enlist!(at, { ...given, input: bytesOf('input') })
      : store.claim(at, given))
    assert.ok(verdict.is === 'granted', `the preparation was not granted: ${verdict.is}`)
    return verdict.claim
  }
  if (brought === 'reopened') {
    const first = await take({ ...asked, token: unusedToken })
    await store.release(first, 'open')
  }
  const held = await take(asked)
  if (brought === 'open') await store.release(held, 'open')
  if (brought === 'settled' || brought === 'expired') await store.settle(held, bytesOf('before'), retention)
  if (brought === 'abandoned') await advance(leaseMs + 10 * minuteMs)
  if (brought === 'expired') await advance(retention.keepMs + 30 * minuteMs)
  return held
}

const unusedToken = '00000000-0000-4000-a000-000000000000'

async function make(store: OrderedStore, held: Claim, call: OrderedCall): Promise<string> {
  switch (call.call) {
    case 'claim':
      return verdictText(await store.claim(held.key, call.request))
    case 'enlist':
      return verdictText(await store.enlist!(held.key, { ...call.request, input: bytesOf('input') }))
    case 'extend':
      return store.extend(held, call.leaseMs)
    case 'settle':
      return store.settle(held, bytesOf(call.outcome), { ...retention, keepMs: call.keepMs })
    case 'release':
      return store.release(call.heard ? held : { ...held, fence: 0 }, call.how)
    case 'mend':
      return (await store.mend!(held.key, call.action, 'a test'))?.state ?? 'nothing'
    case 'advance': {
      const records = [{ name: `step ${call.record}`, revision: 1, content: bytesOf('record') }]
      return store.advance!(held, { records, becomes: call.becomes })
    }
  }
}

// Fences and times to wait are each store's own.
function verdictText(verdict: Verdict): string {
  if (verdict.is === 'granted') return `granted ${verdict.how} ${verdict.claim.token} ${verdict.claim.attempt}`
  if (verdict.is === 'settled') return `settled ${Buffer.from(verdict.outcome).toString()} ${verdict.attempt}`
  return verdict.is === 'doubt' ? `doubt ${verdict.attempt}` : verdict.is
}

/** What is left, as far as the store under test can show it, and the verdict that a caller gets now. */
async function stateAfter(store: OrderedStore, at: Key, tested: OrderedStore): Promise<string> {
  const entry = tested.show && (await store.show!(at))
  const minutes = (ms: number): number => Math.round(ms / minuteMs)
  const shown = entry && [
    entry.state,
    entry.attempt,
    entry.fingerprint.slice(0, 4),
    minutes(entry.leaseUntilMs - entry.firstClaimedAtMs),
    minutes(entry.expiresAtMs - entry.leaseUntilMs),
    minutes(entry.forgottenAtMs - entry.expiresAtMs),
    entry.outcome && Buffer.from(entry.outcome).toString(),
  ]
  const ledger = entry?.state === 'tombstone' || !tested.ledger ? undefined : await store.ledger!(at)
  const recorded = ledger && [
    ledger.records.map(({ name, revision }) => `${name} ${revision}`).sort(),
    entry && ledger.dueAtMs !== undefined && minutes(ledger.dueAtMs - entry.firstClaimedAtMs),
  ]
  const told = await store.claim(at, request({ token: '11111111-0000-4000-a000-000000000000', onTakeover: 'refuse' }))
  return JSON.stringify({ shown, recorded, told: verdictText(told) })
}

function ordersOf<T>(items: readonly T[]): (readonly T[])[] {
  if (items.length <= 1) return [items]
  return items.flatMap((item, index) => ordersOf(items.toSpliced(index, 1)).map((rest) => [item, ...rest]))
}

/**
 * Every answer that some order of the calls gives: of each call by its number, and then of the state. The call with the number `again`
 * is made twice, and its second answer is the one that is told.
 */
async function possible(
  scenario: Scenario,
  at: Key,
  tested: OrderedStore,
  again?: number,
): Promise<ReadonlySet<string>> {
  const once = scenario.calls.map((call, number) => ({ call, number }))
  const numbered = again === undefined ? once : [...once, once[again]!]
  const answers = new Set<string>()
  for (const order of ordersOf(numbered)) {
    const clock = manualClock()
    const store = memoryStore({ clock })
    const held = await prepare({ store, advance: (ms) => clock.advance(ms) }, at, scenario.preparation)
    const told: string[] = []
    for (const { call, number } of order) told[number] = await make(store, held, call)
    answers.add(JSON.stringify([...told, await stateAfter(store, at, tested)]))
  }
  return answers
}

// A claim that meets the lock of another call may get `busy`, whatever becomes of that call. It changed nothing then, and the
// others must be explained without it.
async function explainedWithoutBusy(
  scenario: Scenario,
  told: readonly string[],
  answer: string,
  { at, tested }: { readonly at: Key; readonly tested: OrderedStore },
): Promise<boolean> {
  const isBusy = (index: number): boolean => 'request' in scenario.calls[index]! && told[index] === 'busy'
  if (!told.some((_, index) => isBusy(index))) return false
  const calls = scenario.calls.filter((_, index) => !isBusy(index))
  const [answers, state] = [told.filter((_, index) => !isBusy(index)), (JSON.parse(answer) as string[]).at(-1)!]
  return (await possible({ ...scenario, calls }, at, tested)).has(JSON.stringify([...answers, state]))
}

// A store may ask a claim once more, as a caller does who was not answered, if it cannot be sure of the first answer: its token tells. A
// person may have ended what the first one began, and nobody was told of it.
async function explainedByAskingAgain(
  scenario: Scenario,
  answer: string,
  { at, tested }: { readonly at: Key; readonly tested: OrderedStore },
): Promise<boolean> {
  for (const [index, call] of scenario.calls.entries())
    if ('request' in call && (await possible(scenario, at, tested, index)).has(answer)) return true
  return false
}

/** One scenario on the subject. `seed` gives the same one again. */
export async function checkAllOrders(subject: ContractSubject, seed: number): Promise<void> {
  const store = subject.store as OrderedStore
  const at = key('contract', `all orders ${seed}`)
  const scenario = scenarioOf(seededRandom(seed), store)
  const held = await prepare({ store, advance: (ms) => subject.advance(ms) }, at, scenario.preparation)
  const told = await Promise.all(scenario.calls.map((call) => eventually(() => make(store, held, call))))
  const answer = JSON.stringify([...told, await stateAfter(store, at, store)])
  const allowed = await possible(scenario, at, store)
  if (allowed.has(answer) || (await explainedWithoutBusy(scenario, told, answer, { at, tested: store }))) return
  if (await explainedByAskingAgain(scenario, answer, { at, tested: store })) return
  const text = (value: unknown): string =>
    JSON.stringify(value, (_, each: unknown) => (each instanceof Uint8Array ? Buffer.from(each).toString() : each))
  throw new assert.AssertionError({
    message:
      `no order of these calls explains the answers (seed ${seed}; storeContract({ seed: ${seed} }) replays it).\n` +
      `before: ${text(scenario.preparation)}\n${scenario.calls.map((call, index) => `${text(call)} -> ${told[index]}`).join('\n')}\n` +
      `got ${answer}\nsome order gives ${[...allowed].join('\n              or ')}`,
  })
}

// Some two seconds on the slowest store. Each run takes seeds that no run had before.
const scenarios = 40

export const allOrdersCases: readonly ContractCase[] = [
  {
    name: 'calls on one key in one tick are answered as some order of them would be',
    guarantee: 'any-order',
    async run(subject, seed) {
      if (seed !== undefined) return checkAllOrders(subject, seed)
      const first = seededRandom(Number.parseInt(systemRandom.uuid().slice(0, 8), 16))
      for (const _ of times(scenarios)) await checkAllOrders(subject, first.integer(1, 2 ** 31))
    },
  },
]
