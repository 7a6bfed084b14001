// How often a case is played, and with which knobs: what its config says, what its precondition says in words, and one run
// for each alternative that it names.
import type { OnceOptions } from '../../src/core/settings.ts'
import type { Case } from './cases.ts'
import type { FixtureSettings } from './fixture.ts'
import type { World } from './world.ts'

export interface Variant {
  readonly name: string | undefined
  /** Options of the adapter. */
  readonly config: Readonly<Record<string, unknown>>
  readonly settings: Partial<FixtureSettings>
  readonly once: Partial<OnceOptions>
  readonly expect: Readonly<Record<string, unknown>>
  readonly before: ((world: World) => void) | undefined
}

type Alternative = Partial<Omit<Variant, 'name' | 'expect'>>

/** Alternatives that `expect` names. */
const named: Readonly<Record<string, Alternative>> = {
  default: {},
  enabled: { config: { methods: ['POST', 'PATCH', 'PUT', 'DELETE'] } },
  tenant: { settings: { scope: 'tenant' } },
  credential: { settings: { scope: 'credential' } },
  'not-stored': { config: { stream: 'not-stored' } },
  record: { config: { stream: 'record' } },
}

/** Alternatives that the precondition names; all of them are expected the same. */
const both: Readonly<Record<string, Readonly<Record<string, Alternative>>>> = {
  'RF-12': {
    'compression inside': { settings: { compression: 'inside' } },
    'compression outside': { settings: { compression: 'outside' } },
  },
  'RL-03': {
    'limiter first': { settings: { limiterOrder: 'limiter-first' }, before: budget(2) },
    // A replay costs nothing here.
    'replay first': { settings: { limiterOrder: 'replay-first' }, before: budget(1) },
  },
}

/** What the precondition says in words. */
const preconditions: Readonly<Record<string, Alternative>> = {
  'CT-05': { config: { leaseMs: 1_000 } },
  'EX-01': { config: { keepMs: 24 * 3_600_000 } },
  'EX-03': { config: { keepMs: 24 * 3_600_000 } },
  'SD-01': { before: (world) => world.line.setMode('cut') },
  'SE-m1': { before: (world) => world.line.setMode('cut') },
  'SD-m1': { before: (world) => world.line.setMode('cut') },
  'SD-04': { once: { storeTimeoutMs: 500 }, before: (world) => world.line.setMode('slow') },
  'ST-h1': { before: (world) => world.line.setMode('narrow') },
  'RL-01': { before: budget(0) },
}

export function variantsOf(theCase: Case): Variant[] {
  const base = preconditions[theCase.id] ?? {}
  const alternatives = both[theCase.id]
  if (alternatives) {
    return Object.entries(alternatives).map(([name, each]) => variant(theCase, [base, each], name, theCase.expect))
  }
  const names = Object.keys(theCase.expect).filter((each) => each in named)
  if (names.length === 0) return [variant(theCase, [base], undefined, theCase.expect)]
  return names.map((name) => variant(theCase, [base, named[name]!], name, theCase.expect[name] as Variant['expect']))
}

function variant(
  theCase: Case,
  parts: readonly Alternative[],
  name: string | undefined,
  expect: Variant['expect'],
): Variant {
  return {
    name,
    config: Object.assign(nested(theCase.config), ...parts.map((each) => each.config)) as Variant['config'],
    settings: Object.assign({}, ...parts.map((each) => each.settings)) as Variant['settings'],
    once: Object.assign({}, ...parts.map((each) => each.once)) as Variant['once'],
    expect,
    before: parts.findLast((each) => each.before)?.before,
  }
}

/** 'fingerprint.body': 'jcs' is { fingerprint: { body: 'jcs' } }. */
export function nested(config: Case['config']): Record<string, unknown> {
  const options: Record<string, unknown> = {}
  for (const [name, value] of Object.entries(config)) {
    const [outer, inner] = name.split('.', 2) as [string, string | undefined]
    if (inner === undefined) options[outer] = value
    else options[outer] = { ...(options[outer] as object | undefined), [inner]: value }
  }
  return options
}

function budget(left: number): (world: World) => void {
  return (world) => void (world.fixture.limiter.left = left)
}
