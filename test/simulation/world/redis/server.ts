// A Redis as the Redis store knows it: names with text under them and times to live, one command at a time, and the scripts of
// stores/redis/decisions.lua.ts written again in TypeScript, as nothing here can run Lua. What stands where, both read from the
// same tables. It can lose what it holds, all of it or the latest.

import {
  claimScript,
  inlineBytesMax,
  inspectScript,
  shortLifeMs,
  writeScript,
} from '../../../../src/stores/redis/decisions.lua.ts'
import type { PhaseScript } from '../../../../src/stores/redis/decisions.lua.ts'
import {
  claimWords,
  durationPlaces,
  entryLength,
  entryPlaces,
  fitted,
  headingPlaces,
  inspectWords,
  keyAt,
  lengthOf,
  mendingPlaces,
  numberAt,
  recordTail,
  registerPlaces,
  textAt,
  valueAt,
  writeWords,
  writerOf,
} from '../../../../src/stores/redis/places.ts'
import { namesUnder } from '../../../../src/stores/redis/names.ts'
import { swapScripts } from '../../../../src/stores/redis/native/swap.ts'
import { takeScript } from '../../../../src/stores/redis/native/take.ts'
import type { Script as NamedScript } from '../../../../src/stores/redis/scripts.ts'
import type { Place } from '../../../../src/stores/redis/places.ts'

export interface RedisServer {
  /** Carries out a command. `onCall` gets each call of a script and its answer. */
  run(command: readonly (string | Buffer)[], onCall: OnCall): unknown
  /** Has the script from now on, or throws NOSCRIPT when the command brings a hash that says nothing to it. */
  load(command: readonly (string | Buffer)[], script: NamedScript): void
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
  /** Called for every change of an entry, with the call by which it came. */
  onChange(name: string, before: string | undefined, after: string | undefined, call: number): void
}

export type OnCall = (call: number, answer: string | number) => void

interface Held {
  readonly text: string
  readonly untilMs: number | undefined
}

interface SimulatedRegister {
  readonly lineage: string
  readonly before: string
  /** '-', 'on', or until when. */
  readonly hold: string | number
  readonly sinceMs: number
  readonly evidence: string
}

interface State {
  names: Map<string, Held>
  register: SimulatedRegister | undefined
}

const phases: readonly PhaseScript[] = [claimScript, writeScript, inspectScript]
const shortScripts = [takeScript, swapScripts.ifeq, swapScripts.script]

export function createRedisServer(options: RedisServerOptions): RedisServer {
  const state: State = { names: new Map(), register: undefined }
  let remembered: State = { names: new Map(), register: undefined }
  // They were loaded long ago. A restart forgets them.
  let known = new Set(phases.map(({ sha }) => sha))

  function load([verb]: Command, { sha }: NamedScript): void {
    if (verb === 'EVALSHA' && !known.has(sha)) throw new Error('NOSCRIPT No matching script.')
    known.add(sha)
  }

  function run(command: readonly (string | Buffer)[], onCall: OnCall): unknown {
    if (command[0] === 'INFO') return infoOf('redis_version:7.4.0')
    const short = shortScriptOf(command)
    if (short) load(command, short)
    if (isNativeCommand(command)) return runNative(openScript(state, options), command, onCall)
    const script = phases.find((each) => command[1] === each.sha || command[1] === each.source)
    if (!script) throw new Error(`ERR unknown command ${String(command[0])}`)
    load(command, script)
    const count = Number(command[2])
    const keys = command.slice(3, 3 + count) as string[]
    const values = command.slice(3 + count).map((each) => (typeof each === 'string' ? each : each.toString('latin1')))
    return runPhase(script, openScript(state, options), keys, values, onCall)
  }

  return {
    run,
    load,
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

/** What a server that calls itself this says of itself. */
export function infoOf(version: string): string {
  return `${version}\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n`
}

export function isNativeCommand(command: Command): boolean {
  return shortScriptOf(command) !== undefined || ['SET', 'INCR', 'MGET', 'TIME', 'PEXPIRE'].includes(String(command[0]))
}

/** By its text or by its hash. */
export function shortScriptOf([, text]: Command): NamedScript | undefined {
  return shortScripts.find(({ source, sha }) => text === source || text === sha)
}

type Command = readonly (string | Buffer)[]

/** What a short script does as commands, and its reply from the replies to them. */
export interface Unfolded {
  readonly commands: readonly Command[]
  fold(replies: readonly unknown[]): readonly unknown[]
}

export function unfolded(command: Command): Unfolded {
  const keys = command.slice(3, 3 + Number(command[2]))
  const values = command.slice(3 + keys.length)
  return shortScriptOf(command) === takeScript ? unfoldedTake(keys, values) : unfoldedSwap(keys, values)
}

function unfoldedTake([mark, register, floor, ...names]: Command, values: Command): Unfolded {
  const sets = names.map((name, at) => ['SET', name, values[2 * at]!, 'NX', 'GET', 'PXAT', values[2 * at + 1]!])
  return {
    commands: [...sets, ['INCR', mark!], ['MGET', register!, floor!]],
    fold: (replies) => [replies.at(-2), ...(replies.at(-1) as unknown[]), ...replies.slice(0, -2)],
  }
}

function unfoldedSwap([mark, ...names]: Command, values: Command): Unfolded {
  const sets = names.map((name, at) => {
    const [expected, entry, until] = values.slice(3 * at)
    return ['SET', name, entry!, 'IFEQ', expected!, 'PXAT', until!]
  })
  return {
    commands: [...sets, ['INCR', mark!]],
    fold: (replies) => [replies.at(-1), ...replies.slice(0, -1).map((reply) => (reply === null ? 0 : 1))],
  }
}

/** As the server's own commands do it: they know nothing of what an entry says, and look at no register. */
function runNative(script: Script, [verb, ...given]: readonly (string | Buffer)[], onCall: OnCall): unknown {
  // Text travels as UTF-8, and is kept here as one letter for each byte.
  const name = String(given[0] ?? '')
  const values = given.slice(1).map((each) => Buffer.from(each as string).toString('latin1'))
  const told = (text: string | undefined): Buffer | null => (text === undefined ? null : Buffer.from(text, 'latin1'))
  switch (verb) {
    case 'EVAL':
    case 'EVALSHA': {
      const { commands, fold } = unfolded([verb, ...given])
      return fold(
        commands.map((each, call) => {
          script.call = call
          return runNative(script, each, onCall)
        }),
      )
    }
    case 'TIME':
      return [told(`${Math.floor(script.nowUs / 1e6)}`), told(`${script.nowUs % 1e6}`)]
    case 'MGET':
      return [name, ...values].map((each) => told(nativeText(script, each)))
    case 'INCR': {
      const count = Number(textOf(script, name) ?? 0) + 1
      put(script, name, `${count}`, script.state.names.get(name)?.untilMs)
      return count
    }
    case 'PEXPIRE': {
      const text = textOf(script, name)
      if (text !== undefined) put(script, name, text, script.nowMs + Number(values[0]))
      return text === undefined ? 0 : 1
    }
    default:
      return values.includes('NX')
        ? setIfNone(script, name, values[0]!, onCall)
        : setIfEqual(script, name, values, onCall)
  }
}

const registerText = writerOf(registerPlaces)

/** The register is kept as what it says. */
function nativeText(script: Script, name: string): string | undefined {
  const { register } = script.state
  if (!name.endsWith(':register') || !register || !script.state.names.has(name)) return textOf(script, name)
  const { lineage, before, hold, sinceMs: since, evidence } = register
  return registerText({ lineage, before, hold, since, evidence })
}

function setIfNone(script: Script, name: string, text: string, onCall: OnCall): Buffer | null {
  const found = textOf(script, name)
  if (found !== undefined) {
    onCall(0, found)
    return Buffer.from(found, 'latin1')
  }
  change(script, name, text)
  onCall(0, `granted ${text.slice(entryPlaces.how.from - 1, entryPlaces.fence.to)}`)
  return null
}

function setIfEqual(script: Script, name: string, values: readonly string[], onCall: OnCall): string | null {
  const [text, condition, expected] = values
  if (condition === 'IFEQ' && textOf(script, name) !== expected) return null
  change(script, name, text)
  onCall(0, 1)
  return 'OK'
}

/** What a script has: the clock, which stands still meanwhile, and the names. */
interface Script {
  readonly state: State
  readonly nowUs: number
  readonly nowMs: number
  /** Whether anything was written, and how many keys were granted. */
  written: boolean
  grants: number
  /** The number of the call in its command. */
  call: number
  onChange: RedisServerOptions['onChange']
}

function openScript(state: State, { nowUs, onChange }: RedisServerOptions): Script {
  const now = Math.floor(nowUs())
  return { state, nowUs: now, nowMs: Math.floor(now / 1_000), written: false, grants: 0, call: 0, onChange }
}

function runPhase(
  phase: PhaseScript,
  script: Script,
  keys: readonly string[],
  values: readonly string[],
  onCall: OnCall,
): unknown {
  const named = namedValues(values)
  const [registerName, markName] = [keys[keyAt.register - 1]!, keys[keyAt.mark - 1]!]
  const names = keys.slice(keysBefore)
  const register = lookAtRegister(script, registerName, markName, named)
  const isLate = script.nowMs > Number(named('notAfterMs'))
  const width = phase.wordsLength + lengthOf(recordTail)
  let from = 0
  const answers = names.map((name, call) => {
    script.call = call
    const record = named('records').slice(call * width, (call + 1) * width)
    const [words, tail] = [record.slice(0, phase.wordsLength), record.slice(phase.wordsLength)]
    const length = numberAt(tail, recordTail.bytes)
    const bytes = Number.isNaN(length) ? undefined : named('bytes').slice(from, from + length)
    from += bytes?.length ?? 0
    const durations = values[valueAt.bytes - 1 + numberAt(tail, recordTail.durations)] ?? ''
    const answer = answerTo(phase, script, { name, words, durations, bytes }, { isHeld: register.isHeld, isLate })
    onCall(call, answer)
    return typeof answer === 'number' ? answer : Buffer.from(answer, 'latin1')
  })
  let { mark } = register
  if (script.written) put(script, markName, String(++mark), script.nowMs + Number(named('markKeepMs')))
  const heading = headingText({ now: script.nowMs, lineage: register.lineage, mark, evidence: register.evidence })
  return [Buffer.from(heading), ...answers]
}

const keysBefore = Object.keys(keyAt).length
const headingText = writerOf(headingPlaces)

type NamedValues = (name: keyof typeof valueAt) => string

function namedValues(values: readonly string[]): NamedValues {
  return (name) => values[valueAt[name] - 1]!
}

interface SimulatedCall {
  readonly name: string
  readonly words: string
  readonly durations: string
  readonly bytes: string | undefined
}

interface Doors {
  readonly isHeld: boolean
  readonly isLate: boolean
}

function answerTo(phase: PhaseScript, script: Script, asked: SimulatedCall, doors: Doors): string | number {
  if (phase === claimScript) return doors.isLate ? 'late' : claim(script, asked, doors)
  return phase === writeScript ? write(script, asked) : inspect(script, asked)
}

interface Looked {
  readonly lineage: string
  readonly mark: number
  readonly evidence: 'none' | 'emptied' | 'replaced' | 'went-back'
  readonly isHeld: boolean
}

function lookAtRegister(script: Script, name: string, markName: string, named: NamedValues): Looked {
  const [lineageKnown, onLoss] = [named('lineage'), named('onLoss')]
  const { state, nowMs, nowUs } = script
  const found = state.names.has(name) ? state.register : undefined
  const mark = Number(textOf(script, markName) ?? 0)
  let lineage = found?.lineage ?? '-'
  let hold: SimulatedRegister['hold'] = found?.hold ?? '-'
  if (typeof hold === 'number' && hold <= nowMs) hold = '-'
  const evidence = evidenceOf(found, lineageKnown, mark, Number(named('mark')))
  if (lineage === '-' || evidence !== 'none') {
    if (evidence !== 'replaced') lineage = `${named('instance')}-${fitted(nowUs, entryPlaces.fence)}`
    if (evidence !== 'none' && onLoss !== '-') hold = onLoss === 'on' ? 'on' : nowMs + Number(onLoss)
    state.register = { lineage, before: lineageKnown, hold, sinceMs: nowMs, evidence }
    put(script, name, lineage, undefined)
  }
  return { lineage, mark, evidence, isHeld: hold !== '-' }
}

function evidenceOf(
  found: SimulatedRegister | undefined,
  known: string,
  mark: number,
  markKnown: number,
): Looked['evidence'] {
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

function stateOf(entry: string): string {
  return textAt(entry, entryPlaces.state).trimEnd()
}

/** Undefined when there is none, or none any more. */
function read(script: Script, name: string): string | undefined {
  const entry = textOf(script, name)
  return entry !== undefined && script.nowMs >= numberAt(entry, entryPlaces.forgotten) ? undefined : entry
}

function isExpired({ nowMs }: Script, entry: string): boolean {
  return nowMs >= numberAt(entry, entryPlaces.expires)
}

/** The highest fence of what is gone, or will be gone soon. */
function raiseFloor(script: Script, entry: string): void {
  const raised = textOf(script, floorName)
  const gone = `${textAt(entry, entryPlaces.fence)} ${textAt(entry, entryPlaces.token)}`
  if (raised === undefined || raised < gone) put(script, floorName, gone, script.nowMs + 60_000)
}

const floorName = namesUnder('onceonly').floor(undefined)

/** By a script. */
function changeByScript(script: Script, name: string, entry: string | undefined): void {
  const gone = entry ?? textOf(script, name)!
  if (entry === undefined || numberAt(gone, entryPlaces.forgotten) < script.nowMs + shortLifeMs)
    raiseFloor(script, gone)
  change(script, name, entry)
}

function change(script: Script, name: string, entry: string | undefined): void {
  script.onChange(name, textOf(script, name), entry, script.call)
  if (entry === undefined) script.state.names.delete(name)
  else put(script, name, entry, numberAt(entry, entryPlaces.forgotten))
  script.written = true
}

const timesText = (leaseMs: number, expiresMs: number, forgottenMs: number): string =>
  `${fitted(leaseMs, entryPlaces.lease)} ${fitted(expiresMs, entryPlaces.expires)} ${fitted(forgottenMs, entryPlaces.forgotten)}`

function timesOf(leaseMs: number, keepMs: number, tombstoneMs: number): string {
  return timesText(leaseMs, leaseMs + keepMs, leaseMs + keepMs + tombstoneMs)
}

/** The same entry in this state and with these times. */
function changedTo(entry: string, state: string, times: string): string {
  const how = entry.slice(entryPlaces.how.from - 1, entryPlaces.lease.from - 1)
  return `${fitted(state, entryPlaces.state)} ${how}${times}${entry.slice(entryPlaces.forgotten.to)}`
}

/** The same entry with a lease that ends then, and what followed from it. */
function withLease(entry: string, leaseUntilMs: number, state?: 'open'): string {
  const [lease, expires, forgotten] = (['lease', 'expires', 'forgotten'] as const).map((each) =>
    numberAt(entry, entryPlaces[each]),
  )
  const times = timesOf(leaseUntilMs, expires! - lease!, forgotten! - expires!)
  return changedTo(entry, state ?? stateOf(entry), times)
}

const numbersIn = (text: string, ...places: readonly Place[]): number[] => places.map((place) => numberAt(text, place))

function claim(script: Script, asked: SimulatedCall, { isHeld }: Doors): string {
  const { name, words, durations, bytes } = asked
  const rest = bytes === undefined ? words : `${words}\n${bytes}`
  const grant = (how: string, attempt: number, lastFence: number, first: string, tail: string): string => {
    if (isHeld) return 'quarantined'
    script.grants++
    const fence = fitted(Math.max(script.nowUs + script.grants, lastFence + 1), entryPlaces.fence)
    const { lease, keep, tombstone } = durationPlaces
    const [leaseMs, keepMs, tombstoneMs] = numbersIn(durations, lease, keep, tombstone)
    const times = timesOf(script.nowMs + leaseMs!, keepMs!, tombstoneMs!)
    const granted = `${fitted(how, entryPlaces.how)} ${times} ${fitted(attempt, entryPlaces.attempt)} ${fence}`
    changeByScript(script, name, `running ${granted} ${first} ${tail}`)
    return `granted ${granted}`
  }
  const entry = read(script, name)
  if (entry === undefined) return grant('fresh', 1, 0, fitted(script.nowMs, entryPlaces.first), rest)
  const fence = numberAt(entry, entryPlaces.fence)
  if (isExpired(script, entry)) {
    if (textAt(durations, durationPlaces.onExpired).trimEnd() !== 'run') return entry.slice(0, entryLength)
    return grant('fresh', 1, fence, fitted(script.nowMs, entryPlaces.first), rest)
  }
  if (stateOf(entry) === 'settled') return withOutcome(script, entry, name)
  if (textAt(entry, entryPlaces.fingerprint) !== textAt(words, claimWords.fingerprint)) return entry
  const isOpen = stateOf(entry) === 'open'
  if (textAt(entry, entryPlaces.token) === textAt(words, claimWords.token)) {
    if (isOpen) return entry
    const renewed = withLease(entry, script.nowMs + numberAt(durations, durationPlaces.lease))
    changeByScript(script, name, renewed)
    return `granted ${renewed.slice(entryPlaces.how.from - 1, entryPlaces.fence.to)}`
  }
  const isLeased = script.nowMs < numberAt(entry, entryPlaces.lease)
  if (!isOpen && (isLeased || textAt(durations, durationPlaces.onTakeover) === 'refuse')) return entry
  const tail = bytes === undefined ? rest + entry.slice(entryLength) : rest
  const how = isOpen ? 'reopened' : 'taken-over'
  return grant(how, numberAt(entry, entryPlaces.attempt) + 1, fence, textAt(entry, entryPlaces.first), tail)
}

function outcomeName(name: string): string {
  return name.replace('}:entry:', '}:outcome:')
}

function withOutcome(script: Script, entry: string, name: string): string {
  if (entry.length > entryLength || stateOf(entry) !== 'settled') return entry
  const outcome = textOf(script, outcomeName(name))
  return outcome === undefined ? entry : `${entry}\n${outcome}`
}

function write(script: Script, { name, words, durations, bytes }: SimulatedCall): number {
  const { verb: verbPlace, fence: fencePlace, token: tokenPlace } = writeWords
  const [verb, fence, token] = [textAt(words, verbPlace), textAt(words, fencePlace), textAt(words, tokenPlace)]
  const isRelease = verb === 'o' || verb === 'f'
  const entry = read(script, name)
  if (entry === undefined) return verb === 'f' ? 1 : 0
  if (isExpired(script, entry)) return 0
  const isFence = textAt(entry, entryPlaces.fence) === fence || (isRelease && Number(fence) === 0)
  if (textAt(entry, entryPlaces.token) !== token || !isFence) return 0
  const state = stateOf(entry)
  if (state !== 'running') {
    return (verb === 's' && state === 'settled') || (isRelease && state === 'open') ? 1 : 0
  }
  if (verb === 's') settle(script, name, entry, durations, bytes ?? '')
  else if (verb === 'e')
    changeByScript(script, name, withLease(entry, script.nowMs + numberAt(durations, durationPlaces.lease)))
  else if (verb === 'f' && numberAt(entry, entryPlaces.attempt) === 1) changeByScript(script, name, undefined)
  else changeByScript(script, name, withLease(entry, script.nowMs, 'open'))
  return 1
}

function settle(script: Script, name: string, entry: string, durations: string, outcome: string): void {
  const [keepMs, tombstoneMs] = numbersIn(durations, durationPlaces.keep, durationPlaces.tombstone)
  settleAs(script, { name, entry, outcome, keepMs: keepMs!, tombstoneMs: tombstoneMs! })
}

interface Settling {
  readonly name: string
  readonly entry: string
  readonly outcome: string
  readonly keepMs: number
  readonly tombstoneMs: number
}

function settleAs(script: Script, { name, entry, outcome, keepMs, tombstoneMs }: Settling): void {
  const times = timesOf(script.nowMs, keepMs, tombstoneMs)
  const settled = changedTo(entry.slice(0, entryLength), 'settled', times)
  const isLarge = outcome.length > inlineBytesMax
  if (isLarge) put(script, outcomeName(name), outcome, script.nowMs + keepMs)
  changeByScript(script, name, isLarge ? settled : `${settled}\n${outcome}`)
}

function inspect(script: Script, { name, words, durations, bytes = '' }: SimulatedCall): string {
  const entry = read(script, name)
  if (entry === undefined) return 'absent'
  const before = withOutcome(script, entry, name)
  const action = textAt(words, inspectWords.action).trimEnd()
  if (action === 'look' || !isFor(script, action, entry)) return before
  const [keepMs, tombstoneMs] = numbersIn(durations, mendingPlaces.keep, mendingPlaces.tombstone)
  if (action === 'release') changeByScript(script, name, withLease(entry, script.nowMs, 'open'))
  else if (action === 'keep') keep(script, name, entry, keepMs!)
  else if (action === 'resolve') {
    const outcome = bytes.slice(numberAt(durations, mendingPlaces.reason))
    const { from, to } = entryPlaces.fence
    const fence = fitted(Math.max(script.nowUs, numberAt(entry, entryPlaces.fence) + 1), entryPlaces.fence)
    const fenced = `${entry.slice(0, from - 1)}${fence}${entry.slice(to)}`
    settleAs(script, { name, entry: fenced, outcome, keepMs: keepMs!, tombstoneMs: tombstoneMs! })
  } else {
    script.state.names.delete(outcomeName(name))
    changeByScript(script, name, undefined)
  }
  return before
}

function isFor(script: Script, action: string, entry: string): boolean {
  if (action === 'forget') return true
  if (isExpired(script, entry)) return false
  const state = stateOf(entry)
  if (action === 'release') return state === 'running'
  if (action === 'resolve') return state !== 'settled'
  return state !== 'running' || script.nowMs >= numberAt(entry, entryPlaces.lease)
}

function keep(script: Script, name: string, entry: string, keepMs: number): void {
  const [lease, expires, forgotten] = numbersIn(entry, entryPlaces.lease, entryPlaces.expires, entryPlaces.forgotten)
  const kept = Math.max(expires!, script.nowMs + keepMs)
  changeByScript(script, name, changedTo(entry, stateOf(entry), timesText(lease!, kept, kept + forgotten! - expires!)))
  const outcome = textOf(script, outcomeName(name))
  if (outcome !== undefined) put(script, outcomeName(name), outcome, kept)
}
