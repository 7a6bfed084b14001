// A Redis as the Redis store knows it: names with text under them and times to live, one command at a time, and the scripts of
// stores/redis-script.ts written out anew, as nothing here can run Lua. It can lose what it holds, all of it or the latest.

import {
  claimScript,
  entryLength,
  fields,
  inspectScript,
  tailLength,
  writeScript,
} from '../../../src/stores/redis/decisions.lua.ts'
import type { Field, PhaseScript } from '../../../src/stores/redis/decisions.lua.ts'

export interface RedisServer {
  /** Carries out a command; `onCall` is told of each call of a script, and what it is answered. */
  run(command: readonly (string | Buffer)[], onCall: OnCall): unknown
  /** What is lost by a restart: everything, or what was written since `remember`. */
  lose(how: 'emptied' | 'went-back'): void
  remember(): void
  /** As a person ends it. */
  endQuarantine(): void
  /** Names of entries that will not go by themselves, or should have gone. */
  leftovers(): readonly string[]
}

export interface RedisServerOptions {
  /** In microseconds. */
  nowUs(): number
  /** Told of every change of an entry, with the call by which it came. */
  onChange(name: string, before: string | undefined, after: string | undefined, call: number): void
  readonly wrong?: WrongRedis | undefined
}

/** What can be made wrong, to see whether somebody notices. */
export type WrongRedis = 'no-register' | 'no-token' | 'no-lease' | 'settles-again'

export type OnCall = (call: number, answer: string | number) => void

interface Held {
  readonly text: string
  readonly untilMs: number | undefined
}

interface Register {
  readonly lineage: string
  readonly before: string
  /** '-', 'on', or until when. */
  readonly hold: string | number
}

interface State {
  names: Map<string, Held>
  register: Register | undefined
}

const phases: readonly PhaseScript[] = [claimScript, writeScript, inspectScript]

export function createRedisServer(options: RedisServerOptions): RedisServer {
  const state: State = { names: new Map(), register: undefined }
  let remembered: State = { names: new Map(), register: undefined }
  // They were loaded long ago; a restart forgets them.
  let known = new Set(phases.map(({ sha }) => sha))

  function run(command: readonly (string | Buffer)[], onCall: OnCall): unknown {
    if (command[0] === 'INFO') return 'redis_version:7.4.0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n'
    const script = phases.find((each) => command[1] === each.sha || command[1] === each.source)
    if (!script) throw new Error(`ERR unknown command ${String(command[0])}`)
    if (command[0] === 'EVALSHA' && !known.has(script.sha)) throw new Error('NOSCRIPT No matching script.')
    known.add(script.sha)
    const count = Number(command[2])
    const keys = command.slice(3, 3 + count) as string[]
    const values = command.slice(3 + count).map((each) => (typeof each === 'string' ? each : each.toString('latin1')))
    return runPhase(script, openScript(state, options), keys, values, onCall)
  }

  return {
    run,
    remember: () => void (remembered = { names: new Map(state.names), register: state.register }),
    lose(how) {
      const left = how === 'emptied' ? { names: new Map<string, Held>(), register: undefined } : remembered
      state.names = new Map(left.names)
      state.register = left.register
      known = new Set()
    },
    endQuarantine() {
      if (state.register) state.register = { ...state.register, hold: '-' }
    },
    leftovers() {
      const nowMs = Math.floor(options.nowUs() / 1_000)
      const isLeft = ([name, { untilMs }]: [string, Held]): boolean =>
        name.includes('}:entry:') && (untilMs === undefined || untilMs > nowMs)
      return [...state.names].filter(isLeft).map(([name]) => name)
    },
  }
}

/** What a script has: the clock, which stands still meanwhile, and the names. */
interface Script {
  readonly state: State
  readonly nowUs: number
  readonly nowMs: number
  readonly wrong: WrongRedis | undefined
  /** Whether anything was written, and how many keys were granted. */
  written: boolean
  grants: number
  /** The number of the call in its command. */
  call: number
  onChange: RedisServerOptions['onChange']
}

function openScript(state: State, { nowUs, onChange, wrong }: RedisServerOptions): Script {
  const now = Math.floor(nowUs())
  return { state, nowUs: now, nowMs: Math.floor(now / 1_000), wrong, written: false, grants: 0, call: 0, onChange }
}

function runPhase(
  phase: PhaseScript,
  script: Script,
  keys: readonly string[],
  values: readonly string[],
  onCall: OnCall,
): unknown {
  const [registerName, markName, ...names] = keys as [string, string, ...string[]]
  const register = lookAtRegister(script, registerName, markName, values)
  const isLate = script.nowMs > Number(values[5])
  const width = phase.wordsLength + tailLength
  let from = 0
  const answers = names.map((name, call) => {
    script.call = call
    const record = values[6]!.slice(call * width, (call + 1) * width)
    const [words, tail] = [record.slice(0, phase.wordsLength), record.slice(phase.wordsLength)]
    const length = Number(tail.slice(4))
    const bytes = Number.isNaN(length) ? undefined : values[7]!.slice(from, from + length)
    from += bytes?.length ?? 0
    const asked: Asked = { name, words, durations: values[7 + Number(tail.slice(0, 3))] ?? '', bytes }
    const answer = answerTo(phase, script, asked, { isHeld: register.isHeld, isLate })
    onCall(call, answer)
    return typeof answer === 'number' ? answer : Buffer.from(answer, 'latin1')
  })
  let { mark } = register
  if (script.written) put(script, markName, String(++mark), script.nowMs + Number(values[4]))
  return [Buffer.from(`${register.lineage} ${mark} ${register.evidence} ${script.nowMs}`), ...answers]
}

interface Asked {
  readonly name: string
  readonly words: string
  readonly durations: string
  readonly bytes: string | undefined
}

interface Doors {
  readonly isHeld: boolean
  readonly isLate: boolean
}

function answerTo(phase: PhaseScript, script: Script, asked: Asked, doors: Doors): string | number {
  if (phase === claimScript) return doors.isLate ? 'late' : claim(script, asked, doors)
  return phase === writeScript ? write(script, asked) : inspect(script, asked)
}

interface Looked {
  readonly lineage: string
  readonly mark: number
  readonly evidence: 'none' | 'emptied' | 'replaced' | 'went-back'
  readonly isHeld: boolean
}

function lookAtRegister(script: Script, name: string, markName: string, values: readonly string[]): Looked {
  const [lineageKnown, markKnown, instance, onLoss] = values as [string, string, string, string]
  const { state, nowMs, nowUs } = script
  const found = state.names.has(name) ? state.register : undefined
  const mark = Number(textOf(script, markName) ?? 0)
  let lineage = found?.lineage ?? '-'
  let hold: Register['hold'] = found?.hold ?? '-'
  if (typeof hold === 'number' && hold <= nowMs) hold = '-'
  const evidence = script.wrong === 'no-register' ? 'none' : evidenceOf(found, lineageKnown, mark, Number(markKnown))
  if (lineage === '-' || evidence !== 'none') {
    if (evidence !== 'replaced') lineage = `${instance}-${digits(nowUs)}`
    if (evidence !== 'none' && onLoss !== '-') hold = onLoss === 'on' ? 'on' : nowMs + Number(onLoss)
    state.register = { lineage, before: lineageKnown, hold }
    put(script, name, lineage, undefined)
  }
  return { lineage, mark, evidence, isHeld: hold !== '-' }
}

function evidenceOf(found: Register | undefined, known: string, mark: number, markKnown: number): Looked['evidence'] {
  const lineage = found?.lineage ?? '-'
  if (known === lineage) return mark < markKnown ? 'went-back' : 'none'
  if (!found) return 'emptied'
  return known !== '-' && known !== found.before ? 'replaced' : 'none'
}

function textOf(script: Script, name: string): string | undefined {
  const held = script.state.names.get(name)
  if (!held || (held.untilMs !== undefined && held.untilMs < script.nowMs)) return undefined
  return held.text
}

function put({ state }: Script, name: string, text: string, untilMs: number | undefined): void {
  state.names.set(name, { text, untilMs })
}

function part(entry: string, field: Field): string {
  const [from, to] = fields[field]
  return entry.slice(from - 1, to)
}

function digits(value: number, width = 16): string {
  return `${value}`.padStart(width, '0')
}

function stateOf(entry: string): string {
  return part(entry, 'state').trimEnd()
}

/** Undefined when there is none, or none any more. */
function read(script: Script, name: string): string | undefined {
  const entry = textOf(script, name)
  return entry !== undefined && script.nowMs >= Number(part(entry, 'forgotten')) ? undefined : entry
}

function isExpired({ nowMs }: Script, entry: string): boolean {
  return nowMs >= Number(part(entry, 'expires'))
}

function change(script: Script, name: string, entry: string | undefined): void {
  script.onChange(name, textOf(script, name), entry, script.call)
  if (entry === undefined) script.state.names.delete(name)
  else put(script, name, entry, Number(part(entry, 'forgotten')))
  script.written = true
}

function timesOf(leaseMs: number, keepMs: number, tombstoneMs: number): string {
  return [leaseMs, leaseMs + keepMs, leaseMs + keepMs + tombstoneMs].map((each) => digits(each)).join(' ')
}

/** The same entry with a lease that ends then, and what followed from it. */
function withLease(entry: string, leaseUntilMs: number, state?: 'open    '): string {
  const [lease, expires, forgotten] = (['lease', 'expires', 'forgotten'] as const).map((each) =>
    Number(part(entry, each)),
  )
  const times = timesOf(leaseUntilMs, expires! - lease!, forgotten! - expires!)
  return (state ?? entry.slice(0, 8)) + entry.slice(8, 19) + times + entry.slice(69)
}

function claim(script: Script, asked: Asked, { isHeld }: Doors): string {
  const { name, words, durations, bytes } = asked
  const rest = bytes === undefined ? words : `${words}\n${bytes}`
  const grant = (how: string, attempt: number, lastFence: number, first: string, tail: string): string => {
    if (isHeld) return 'quarantined'
    script.grants++
    const fence = digits(Math.max(script.nowUs + script.grants, lastFence + 1))
    const [leaseMs, keepMs, tombstoneMs] = [0, 17, 34].map((at) => Number(durations.slice(at, at + 16)))
    const times = timesOf(script.nowMs + leaseMs!, keepMs!, tombstoneMs!)
    const granted = `${how.padEnd(10)} ${times} ${digits(attempt, 10)} ${fence}`
    change(script, name, `running ${granted} ${first} ${tail}`)
    return `granted ${granted}`
  }
  const entry = read(script, name)
  if (entry === undefined) return grant('fresh', 1, 0, digits(script.nowMs), rest)
  const fence = Number(part(entry, 'fence'))
  if (isExpired(script, entry)) {
    if (durations.slice(58) !== 'run') return entry.slice(0, entryLength)
    return grant('fresh', 1, fence, digits(script.nowMs), rest)
  }
  if (stateOf(entry) === 'settled') return withOutcome(script, entry, name)
  if (part(entry, 'fingerprint') !== words.slice(37, 80)) return entry
  const isOpen = stateOf(entry) === 'open'
  if (part(entry, 'token') === words.slice(0, 36)) {
    if (isOpen) return entry
    const renewed = withLease(entry, script.nowMs + Number(durations.slice(0, 16)))
    change(script, name, renewed)
    return `granted ${renewed.slice(8, fields.fence[1])}`
  }
  const isLeased = script.nowMs < Number(part(entry, 'lease')) && script.wrong !== 'no-lease'
  if (!isOpen && (isLeased || durations.slice(51, 57) === 'refuse')) return entry
  const tail = bytes === undefined ? rest + entry.slice(entryLength) : rest
  const how = isOpen ? 'reopened' : 'taken-over'
  return grant(how, Number(part(entry, 'attempt')) + 1, fence, part(entry, 'first'), tail)
}

function outcomeName(name: string): string {
  return name.replace('}:entry:', '}:outcome:')
}

function withOutcome(script: Script, entry: string, name: string): string {
  if (entry.length > entryLength || stateOf(entry) !== 'settled') return entry
  const outcome = textOf(script, outcomeName(name))
  return outcome === undefined ? entry : `${entry}\n${outcome}`
}

/** As in the script: an outcome above this is kept under a name of its own. */
const inlineBytesMax = 512

function write(script: Script, { name, words, durations, bytes }: Asked): number {
  const [verb, fence, token] = [words[0], words.slice(2, 18), words.slice(19)]
  const isRelease = verb === 'o' || verb === 'f'
  const entry = read(script, name)
  if (entry === undefined) return verb === 'f' ? 1 : 0
  if (isExpired(script, entry)) return 0
  const isFence = part(entry, 'fence') === fence || (isRelease && Number(fence) === 0)
  if ((part(entry, 'token') !== token || !isFence) && script.wrong !== 'no-token') return 0
  const state = stateOf(entry)
  if (state !== 'running' && !(script.wrong === 'settles-again' && verb === 's')) {
    return (verb === 's' && state === 'settled') || (isRelease && state === 'open') ? 1 : 0
  }
  if (verb === 's') settle(script, name, entry, durations, bytes ?? '')
  else if (verb === 'e') change(script, name, withLease(entry, script.nowMs + Number(durations.slice(0, 16))))
  else if (verb === 'f' && Number(part(entry, 'attempt')) === 1) change(script, name, undefined)
  else change(script, name, withLease(entry, script.nowMs, 'open    '))
  return 1
}

function settle(script: Script, name: string, entry: string, durations: string, outcome: string): void {
  const [keepMs, tombstoneMs] = [17, 34].map((at) => Number(durations.slice(at, at + 16)))
  const times = timesOf(script.nowMs, keepMs!, tombstoneMs!)
  const settled = `settled ${entry.slice(8, 19)}${times}${entry.slice(69, entryLength)}`
  if (outcome.length > inlineBytesMax) put(script, outcomeName(name), outcome, script.nowMs + keepMs!)
  change(script, name, outcome.length > inlineBytesMax ? settled : `${settled}\n${outcome}`)
}

function inspect(script: Script, { name, words }: Asked): string {
  const entry = read(script, name)
  if (entry === undefined) return 'absent'
  const before = withOutcome(script, entry, name)
  if (words === 'look   ') return before
  if (words === 'release') {
    if (isExpired(script, entry) || stateOf(entry) !== 'running') return before
    change(script, name, withLease(entry, script.nowMs, 'open    '))
  } else {
    script.state.names.delete(outcomeName(name))
    change(script, name, undefined)
  }
  return before
}
