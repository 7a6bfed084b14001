// The check that follows a batch of native commands on their connection. It counts the writes in the mark, and for claims looks at the
// register: is this still the dataset whose writes this instance has heard of, and may new claims be let in?

import type { RedisArgument } from '../../../clients/redis.ts'
import { markKeepMs } from '../data-loss.ts'
import type { NativeGround, Turn } from '../native.ts'
import { entryPlaces, registerPlaces, textAt } from '../places.ts'

export interface CheckCommands {
  readonly commands: readonly (readonly RedisArgument[])[]
  /** Where its reply stands, if it is asked. */
  readonly register: number | undefined
  readonly time: number | undefined
}

export interface Check {
  /** Nothing was lost, no quarantine, the same connection, and the stamps are of the server's time. */
  readonly isClean: boolean
  readonly floor: Floor
}

/** The highest fence of an entry that is gone, and its token: a claim with a lower one would come after a life with a higher one. */
export interface Floor {
  readonly fence: number
  /** Fence and token, as wide as in an entry. Empty when nothing is gone. */
  readonly text: string
}

/** When the mark was last given its time to live. */
export interface MarkKeeping {
  markKeptAtMs: number
}

// That fences grow across lives needs a bound on how long ago a claim was stamped (ARCHITECTURE.md). A slower one is the script's.
const believedMsMax = 1_000
// INCR leaves the time to live as it is.
const markKeptEveryMs = 3_600_000

/** `register` for claims. `mark` for other writes, which a quarantine does not stop. */
export function checkCommands(
  { watch, time }: NativeGround,
  keeping: MarkKeeping,
  { sent }: Turn,
  what: 'register' | 'mark',
): CheckCommands {
  const [register, mark] = watch.keys
  const commands: RedisArgument[][] = [['INCR', mark]]
  const add = (command: RedisArgument[]): number => commands.push(command) - 1
  const registerAt = what === 'register' ? add(['MGET', register, watch.floor]) : undefined
  const timeAt = time.isOld(sent) ? add(['TIME']) : undefined
  if (sent.elapsedMs - keeping.markKeptAtMs >= markKeptEveryMs) {
    keeping.markKeptAtMs = sent.elapsedMs
    add(['PEXPIRE', mark, `${markKeepMs}`])
  }
  return { commands, register: registerAt, time: timeAt }
}

const noFloor: Floor = { fence: 0, text: '' }
const unclean: Check = { isClean: false, floor: noFloor }

export function readCheck(ground: NativeGround, turn: Turn, asked: CheckCommands, raw: readonly unknown[]): Check {
  const { context, watch, time } = ground
  // Counted whatever else is wrong: it is in the mark, and would hide one write that is missing. The next script tells everybody.
  if (raw[0] instanceof Error || !watch.count(turn.known, Number(raw[0]))) return unclean
  if (raw.some(isError)) return unclean
  const now = time.here()
  const passedMs = Math.max(now.elapsedMs - turn.sent.elapsedMs, now.wallMs - turn.sent.wallMs)
  // On another connection it may be another server, and the check says nothing of what the batch wrote.
  if (context.link.connection?.() !== turn.connection || passedMs > believedMsMax) return unclean
  if (asked.time !== undefined && !isOfServerTime(ground, turn, raw[asked.time])) return unclean
  const [register, floor] = asked.register === undefined ? [] : (raw[asked.register] as (Buffer | null)[])
  if (register !== undefined && !isOpen(register, turn)) return unclean
  return { isClean: true, floor: floor ? floorOf(String(floor)) : noFloor }
}

function isError(reply: unknown): boolean {
  return reply instanceof Error
}

function floorOf(text: string): Floor {
  return { fence: Number(text.slice(0, entryPlaces.fence.width)), text }
}

/** The lineage that is known, and no quarantine: none was written, or it has ended by itself. */
function isOpen(register: Buffer | null, { known, bounds }: Turn): boolean {
  const { lineage, hold } = readRegister(register ? register.toString('latin1') : '')
  return lineage === known.lineage && (hold === '-' || Number(hold) <= bounds.earliestMs)
}

let lastRegister = { text: '', lineage: '', hold: '' }

/** Nearly always the same as the last time. */
function readRegister(text: string): typeof lastRegister {
  if (text === lastRegister.text) return lastRegister
  const hold = textAt(text, registerPlaces.hold).trimEnd()
  return (lastRegister = { text, lineage: textAt(text, registerPlaces.lineage), hold })
}

/** Learns the server's time. Returns whether it lies between the bounds that the stamps were made with. It may have been set. */
export function isOfServerTime({ time }: NativeGround, { bounds, sent }: Turn, reply: unknown): boolean {
  const [seconds, microseconds] = reply as [Buffer, Buffer]
  const serverMs = Number(String(seconds)) * 1_000 + Number(String(microseconds)) / 1_000
  const now = time.here()
  const latestMs = bounds.latestMs + Math.max(now.elapsedMs - sent.elapsedMs, now.wallMs - sent.wallMs)
  time.heard(serverMs, sent)
  return serverMs >= bounds.earliestMs && serverMs <= latestMs + 1
}
