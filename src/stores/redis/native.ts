// Claims and settles by native commands, where the server has them: `SET … NX GET` takes a key or shows what is there (native/take.ts),
// `SET … IFEQ` writes if the entry is still as its holder last wrote it (native/swap.ts). Scripts of a few lines bring them to the server
// together with their check. They write what the phase scripts write, byte for byte, so that both ways, and processes of an older
// version, work on the same entries.
//
// A native command cannot look at the register, count in the mark, or read the server's clock. So a batch is followed by a check on the same
// connection, and nothing is told that the check does not bear out: a grant is taken back by a phase script, and what is in doubt is asked of
// it. It decides whatever is not plain: takeovers, expiry, mending, damage, losses. Heartbeats are few, and must be told within one round
// trip: they are its, too.

import type { Fenced } from '../../core/store.ts'
import { missing } from './data-loss.ts'
import type { DataLossWatch, Known } from './data-loss.ts'
import { shortLifeMs } from './decisions.lua.ts'
import { HeldClaim, releaseOf } from './entries.ts'
import type { EntryReply, NativeClaim, NativeGrant, ScriptCall, WrittenEntry } from './entries.ts'
import { checkCommands, isOfServerTime, readCheck } from './native/check.ts'
import type { Check, Floor, MarkKeeping } from './native/check.ts'
import { sendAll } from './native/send.ts'
import { swapCommands, swapScripts } from './native/swap.ts'
import type { Swap } from './native/swap.ts'
import { takeChecked, takeScript, takeUnchecked } from './native/take.ts'
import type { Taking } from './native/take.ts'
import { entryLength, entryPlaces } from './places.ts'
import { errorOf, isUnknownScript } from './scripts.ts'
import type { RedisContext, Script } from './scripts.ts'
import type { LocalMoment, ServerTime, ClockBounds } from './time.ts'

export interface NativeGround {
  readonly context: RedisContext
  readonly watch: DataLossWatch
  readonly time: ServerTime
  readonly trusted: TrustedConnection
  /** Takes claims back by script. */
  release(calls: readonly ScriptCall[]): Promise<readonly (Fenced | Error)[]>
}

/**
 * The connection on which a script has found the dataset complete. A native batch counts in the mark before anything looks at it: on
 * a server that has lost a write, a batch without a reply would hide that. So after each of these a script comes first.
 */
export interface TrustedConnection {
  is: number | undefined
}

/** The calls of a batch that there are native commands for. */
export interface NativeBatch<Reply> {
  readonly calls: readonly ScriptCall[]
  /** Resolves with what `tell` makes of the replies. A promise and a turn of the queue in between are a tenth of a call. */
  send<Told>(tell: Tell<Reply, Told>): Promise<Told>
}

/** Is given the replies to the calls in their order: undefined where the script has to decide. */
type Tell<Reply, Told> = (replies: readonly (Reply | Error | undefined)[]) => Told | Promise<Told>

export interface NativeCommands {
  /** Undefined if none of the calls can be asked natively. */
  claims(batch: readonly ScriptCall[]): NativeBatch<EntryReply | NativeGrant> | undefined
  writes(batch: readonly ScriptCall[]): NativeBatch<Fenced> | undefined
  /** Whether a script has let a claim in: a quarantine has begun, or there is none any more. */
  hold(isHeld: boolean): void
}

/** A batch on its way. */
export interface Turn {
  readonly connection: number
  readonly sent: LocalMoment
  readonly bounds: ClockBounds
  readonly known: Known
}

export function nativeCommands(ground: NativeGround): NativeCommands {
  const state: State = {
    expectsGrants: true,
    isHeld: false,
    lastFence: 0,
    markKeptAtMs: -Infinity,
    loaded: new Set(),
  }
  return {
    claims(batch) {
      const turn = state.isHeld || !ground.context.commands.claims ? undefined : beginTurn(ground)
      const stamped = turn && present(batch, (call) => stampedClaim(state, turn, call))
      return stamped && { calls: callsOf(stamped), send: (tell) => claims(ground, state, turn, stamped, tell) }
    },
    writes(batch) {
      const way = ground.context.commands.writes
      const turn = way && beginTurn(ground)
      const writing = turn && present(batch, (call) => writingOf(turn, call))
      return writing && { calls: callsOf(writing), send: (tell) => writes(ground, state, turn, writing, tell) }
    },
    hold: (isHeld) => void (state.isHeld = isHeld),
  }
}

function callsOf(native: readonly { readonly call: ScriptCall }[]): readonly ScriptCall[] {
  return native.map(({ call }) => call)
}

interface State extends MarkKeeping {
  /**
   * The last claims brought a grant, so a lone one brings its check along. A replay needs none, and is a command that writes nothing. Several
   * claims always bring theirs: in one script it costs next to nothing.
   */
  expectsGrants: boolean
  /** The register may hold new claims back. Only a script can tell. */
  isHeld: boolean
  lastFence: number
  /** The short scripts that the server has run, so that their hash will do. */
  readonly loaded: Set<Script>
}

function evaluate({ loaded }: State, script: Script): readonly [string, string] {
  return loaded.has(script) ? ['EVALSHA', script.sha] : ['EVAL', script.source]
}

/** Returns false when the server does not have it any more, and so did nothing: the next batch brings its text. */
function wasRun({ loaded }: State, script: Script, reply: unknown): boolean {
  const isUnknown = isUnknownScript(reply)
  if (isUnknown) loaded.delete(script)
  else loaded.add(script)
  return !isUnknown
}

function beginTurn({ context, watch, time, trusted }: NativeGround): Turn | undefined {
  const connection = context.link.connection?.()
  if (connection === undefined || connection !== trusted.is) return undefined
  const known = watch.known()
  const sent = time.here()
  const bounds = time.bounds(sent)
  // A mark that was not heard of for days may be gone, and INCR would begin one that stays forever.
  if (!bounds || known.mark === 0 || known.mark === missing) return undefined
  return { connection, sent, bounds, known }
}

/** What there is for these calls. Undefined if there is nothing at all. */
function present<Native>(
  batch: readonly ScriptCall[],
  of: (call: ScriptCall) => Native | undefined,
): readonly Native[] | undefined {
  const found: Native[] = []
  for (const call of batch) {
    const native = of(call)
    if (native) found.push(native)
  }
  return found.length > 0 ? found : undefined
}

interface StampedClaim {
  readonly call: ScriptCall
  readonly taking: Taking
  readonly fence: number
  readonly written: WrittenEntry
}

function claims<Told>(
  ground: NativeGround,
  state: State,
  turn: Turn,
  stamped: readonly StampedClaim[],
  tell: Tell<EntryReply | NativeGrant, Told>,
): Promise<Told> {
  const isChecked = state.expectsGrants || stamped.length > 1
  const along = isChecked ? checkCommands(ground, state, turn, 'register') : undefined
  // A process that only replays must hear of the server's time, too: what is expired or abandoned is judged by it.
  const asksTime = !along && ground.time.isOld(turn.sent)
  const takings = stamped.map(({ taking }) => taking)
  const { commands, foundIn, restOf } = along
    ? takeChecked(takings, along.commands, evaluate(state, takeScript))
    : takeUnchecked(takings[0]!, asksTime ? [['TIME']] : [])
  const grantedIn = (raw: readonly unknown[]): readonly StampedClaim[] =>
    stamped.filter((_, at) => foundIn(raw, at) === null)
  const read = (raw: readonly unknown[]): Check | undefined => along && readCheck(ground, turn, along, restOf(raw))
  const failed = (error: Error): Told | Promise<Told> => tell(stamped.map(() => error))
  return sendAll(ground, commands, {
    heard(raw) {
      if (along && !wasRun(state, takeScript, raw[0])) return tell(stamped.map(() => undefined))
      if (asksTime && Array.isArray(raw.at(-1))) isOfServerTime(ground, turn, raw.at(-1))
      const granted = grantedIn(raw)
      state.expectsGrants = granted.length > 0
      const told = (check: Check | undefined): Told | Promise<Told> => {
        const found = (at: number): unknown => foundIn(raw, at)
        if (check?.isClean === false) state.isHeld = true
        const unfit = check && granted.filter((each) => !check.isClean || isBelow(each, check.floor))
        if (!unfit || unfit.length === 0) return tell(repliesTo(ground, stamped, found))
        return takeBack(ground, unfit).then((errors) => tell(repliesTo(ground, stamped, found, { unfit, errors })))
      }
      // A check that came along is read whatever was granted: it has counted in the mark, and what it counted must be known.
      if (along || granted.length === 0) return told(read(raw))
      return checkNow(ground, state, turn).then(told, (error: unknown) => failed(errorOf(error)))
    },
    late(raw) {
      read(raw)
      void takeBack(ground, grantedIn(raw))
    },
    failed,
  })
}

interface TakenBack {
  readonly unfit: readonly StampedClaim[]
  readonly errors: ReadonlyMap<StampedClaim, Error>
}

function repliesTo(
  ground: NativeGround,
  stamped: readonly StampedClaim[],
  foundAt: (at: number) => unknown,
  back?: TakenBack,
): readonly (EntryReply | NativeGrant | Error | undefined)[] {
  return stamped.map((each, at) => {
    const found = foundAt(at)
    if (found !== null) return foundEntry(ground, each.call, found)
    // Nothing was there, so it is written.
    if (back?.unfit.includes(each)) return back.errors.get(each)
    return { fence: each.fence, written: each.written }
  })
}

/** Its own entry may be in the floor: somebody has removed it already, and its claim was granted before that. */
function isBelow({ call, fence }: StampedClaim, floor: Floor): boolean {
  // Nearly all are far above it, and need no text.
  if (fence > floor.fence) return false
  const own = `${digits(fence)} ${call.words.slice(0, entryPlaces.token.width)}`
  return own < floor.text
}

/** For claims that were expected to find their outcomes, and brought no check along. */
function checkNow(ground: NativeGround, state: State, turn: Turn): Promise<Check> {
  const asked = checkCommands(ground, state, turn, 'register')
  const heard = (raw: readonly unknown[]): Check => readCheck(ground, turn, asked, raw)
  const failed = (error: Error): never => {
    throw error
  }
  return sendAll(ground, asked.commands, { heard, late: heard, failed })
}

/** No effect runs under them. Returns the errors: what could not be taken back is held until its lease ends. */
async function takeBack(
  ground: NativeGround,
  granted: readonly StampedClaim[],
): Promise<ReadonlyMap<StampedClaim, Error>> {
  if (granted.length === 0) return new Map()
  const released = await ground.release(granted.map(({ call, fence }) => releaseOf(call, fence)))
  const failed = granted.flatMap((each, at): [StampedClaim, Error][] => {
    const reply = released[at]
    return reply instanceof Error ? [[each, reply]] : []
  })
  return new Map(failed)
}

// One of a replay and of a running key, as nearly all are. What is expired, abandoned, open or damaged is the script's.
function foundEntry({ time }: NativeGround, { words }: ScriptCall, reply: unknown): EntryReply | undefined {
  if (!(reply instanceof Buffer)) return undefined
  const bounds = time.bounds(time.here())
  if (!bounds) return undefined
  const nowMs = Math.ceil(bounds.latestMs)
  const isSettled = reply[0] === settledLetter && reply.length > entryLength
  if (!isSettled && reply[0] !== runningLetter) return undefined
  const { from, to } = isSettled ? entryPlaces.expires : entryPlaces.lease
  if (digits(nowMs) >= reply.toString('latin1', from - 1, to)) return undefined
  const { token } = entryPlaces
  if (!isSettled && words.startsWith(reply.toString('latin1', token.from - 1, token.to))) return undefined
  return { bytes: reply, nowMs }
}

const settledLetter = 's'.charCodeAt(0)
const runningLetter = 'r'.charCodeAt(0)

/** As wide as a time or a fence in an entry. */
function digits(value: number): string {
  return `${value}`.padStart(entryPlaces.lease.width, '0')
}

// A fence is a time in microseconds, so nearly all of it stands in the one before: to make the text of so large a number is slow.
const thousandths = Array.from({ length: 1_000 }, (_, at) => `${at}`.padStart(3, '0'))
let lastThousand = { of: 0, text: digits(0).slice(3) }

function fenceText(fence: number): string {
  const of = Math.floor(fence / 1_000)
  if (of !== lastThousand.of) lastThousand = { of, text: digits(of).slice(3) }
  return lastThousand.text + thousandths[fence - of * 1_000]!
}

const running = 'running fresh      '
const settled = 'settled fresh      '
const firstAttempt = '1'.padStart(entryPlaces.attempt.width, '0')

function stampedClaim(state: State, { bounds }: Turn, call: ScriptCall): StampedClaim | undefined {
  const { name, words, native } = call
  if (native?.is !== 'claim' || lifeOf(native) < shortLifeMs) return undefined
  const { leaseMs, retention } = native
  const { keepMs, tombstoneMs } = retention
  // The lease counts from the later bound: it must not end before the caller counts it as ended. The fence must not be ahead.
  const nowMs = Math.ceil(bounds.latestMs)
  const fence = Math.max(Math.floor(bounds.earliestMs * 1_000), state.lastFence + 1)
  state.lastFence = fence
  const { now, text, expiresAtMs, forgotten } = claimTimes(nowMs, leaseMs, keepMs, tombstoneMs)
  const rest = ` ${firstAttempt} ${fenceText(fence)} ${now} ${words}`
  const written = { name, times: text, rest, expiresAtMs }
  return { call, taking: { name, entry: running + text + rest, until: forgotten }, fence, written }
}

function lifeOf({ leaseMs, retention }: NativeClaim): number {
  return leaseMs + retention.keepMs + retention.tombstoneMs
}

interface Times {
  readonly nowMs: number
  readonly leaseMs: number
  readonly keepMs: number
  readonly tombstoneMs: number
  readonly now: string
  /** When the lease ends, and when the entry expires and is forgotten. */
  readonly text: string
  readonly expiresAtMs: number
  /** For PXAT. */
  readonly forgotten: string
}

type TimesOf = (nowMs: number, leaseMs: number, keepMs: number, tombstoneMs: number) => Times

/** Nearly always the same as the last time: calls of one moment have the same times. */
function timesMemo(): TimesOf {
  let last: Times | undefined
  return (nowMs, leaseMs, keepMs, tombstoneMs) => {
    const isLast =
      last?.nowMs === nowMs && last.leaseMs === leaseMs && last.keepMs === keepMs && last.tombstoneMs === tombstoneMs
    if (isLast) return last!
    const leaseUntilMs = nowMs + leaseMs
    const expiresAtMs = leaseUntilMs + keepMs
    const forgottenMs = expiresAtMs + tombstoneMs
    const text = `${digits(leaseUntilMs)} ${digits(expiresAtMs)} ${digits(forgottenMs)}`
    const [now, forgotten] = [digits(nowMs), `${forgottenMs}`]
    return (last = { nowMs, leaseMs, keepMs, tombstoneMs, now, text, expiresAtMs, forgotten })
  }
}

// Of claims and of settles, which come in turn.
const [claimTimes, settleTimes] = [timesMemo(), timesMemo()]

interface Writing {
  readonly call: ScriptCall
  readonly swap: Swap
}

function writes<Told>(
  ground: NativeGround,
  state: State,
  turn: Turn,
  writing: readonly Writing[],
  tell: Tell<Fenced, Told>,
): Promise<Told> {
  const asked = checkCommands(ground, state, turn, 'mark')
  const swaps = writing.map(({ swap }) => swap)
  const script = swapScripts[ground.context.commands.writes!]
  const { commands, checkOf, isDone } = swapCommands(swaps, asked.commands, evaluate(state, script))
  const read = (raw: readonly unknown[]): Check => readCheck(ground, turn, asked, checkOf(raw))
  return sendAll(ground, commands, {
    heard(raw) {
      if (!wasRun(state, script, raw[0])) return tell(writing.map(() => undefined))
      const { isClean } = read(raw)
      // What is not as its holder wrote it may have been settled by this very call, and only its reply lost. The script tells.
      return tell(writing.map((_, at) => (isDone(raw, at) && isClean ? 'done' : undefined)))
    },
    late: read,
    failed: (error) => tell(writing.map(() => error)),
  })
}

/**
 * SET does not look at the time. A settle that is under way while its entry expires would make a result of a tombstone, so one that could
 * be is the script's. Far longer than a command that is still believed takes.
 */
const underWayMsMax = 60_000

function writingOf({ bounds }: Turn, call: ScriptCall): Writing | undefined {
  const { name, native } = call
  if (native?.is !== 'settle') return undefined
  const { outcome, retention } = native
  const { keepMs, tombstoneMs } = retention
  const written = HeldClaim.writtenOf(native.held)
  if (!written || keepMs + tombstoneMs < shortLifeMs) return undefined
  const nowMs = Math.ceil(bounds.latestMs)
  if (nowMs + underWayMsMax >= written.expiresAtMs) return undefined
  const { text, forgotten } = settleTimes(nowMs, 0, keepMs, tombstoneMs)
  const head = `${settled}${text}${written.rest}\n`
  const entry = typeof outcome === 'string' ? head + outcome : Buffer.concat([Buffer.from(head), outcome])
  return { call, swap: { name, expected: running + written.times + written.rest, entry, until: forgotten } }
}
