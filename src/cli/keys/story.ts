// An entry in plain words: what it is, since when, what a retry would get now, and what to type next. Its reader was woken by
// it.

import { grantedAtMs } from '../../core/entry.ts'
import { withoutMark } from '../../core/outcome.ts'
import type { Entry, MendingName } from '../../core/store.ts'
import { isGatewayScope } from '../../gateway/gateway-key.ts'
import { commandWords, moment, span, timeText } from '../words.ts'

export interface Story {
  readonly state: string
  /** What is known of this attempt and of those before it. */
  readonly attempt: string
  /** What a retry with the same request would get now. */
  readonly retry: string
  /** What happens by itself if no person does anything. */
  readonly next: string
  /** What a person can do about it. Undefined when there is nothing to do. */
  readonly advice?: string
}

/** A command to type next, and when it is the right one. */
export interface NextCommand {
  readonly when: string
  readonly command: string
}

/** `store` is the option that names the store, such as "--store sqlite:app.db", or empty where the environment names it. */
export function nextCommands({ key, state }: Entry, store: string): readonly NextCommand[] {
  const command = (name: MendingName, found: string): string =>
    commandWords(`keys ${name}`, [key.scope, key.id], [found, "--reason 'TEXT'", store])
  const took = isGatewayScope(key.scope) ? '--response-file FILE' : `--value 'JSON'`
  return commandsIn[state].map(({ when, name, found = '' }) => ({
    when,
    command: command(name, found === 'result' ? took : found),
  }))
}

interface Suggested {
  readonly when: string
  readonly name: MendingName
  readonly found?: string
}

const tookPlace: Suggested = { when: 'if the effect took place', name: 'resolve', found: 'result' }

const commandsIn: Readonly<Record<Entry['state'], readonly Suggested[]>> = {
  running: [
    { ...tookPlace, when: 'if its process is gone and the effect took place' },
    { when: 'if its process is gone and the effect did not take place', name: 'release' },
  ],
  abandoned: [
    tookPlace,
    { when: 'if it did not: the next retry runs it', name: 'release' },
    { when: 'if that takes longer than the key is kept', name: 'keep', found: '--for 7d' },
  ],
  open: [tookPlace],
  settled: [{ when: 'if clients retry for longer than that', name: 'keep', found: '--for 7d' }],
  tombstone: [],
}

export function storyOf(entry: Entry, nowMs: number): Story {
  return { ...tellers[entry.state](entry, nowMs), attempt: attemptOf(entry, nowMs) }
}

type Teller = (entry: Entry, nowMs: number) => Omit<Story, 'attempt'>

const tellers: Readonly<Record<Entry['state'], Teller>> = {
  running: (entry, nowMs) => ({
    state: `running: an attempt holds the key until ${moment(entry.leaseUntilMs, nowMs)}`,
    retry: 'wait (waitMs), then get IN_FLIGHT, over HTTP 409 with Retry-After',
    next:
      'its holder extends the lease while the effect runs, and settles at its end. If the holder is dead, the key is abandoned ' +
      `at ${timeText(entry.leaseUntilMs)}: the next retry takes over, or, where the service says onTakeover: 'refuse', gets IN_DOUBT`,
  }),
  abandoned: (entry, nowMs) => ({
    state: `abandoned: the lease ended ${moment(entry.leaseUntilMs, nowMs)} and its attempt never reported. The effect may have happened`,
    retry:
      `take over as attempt ${entry.attempt + 1} and run the effect again; or, where the service says onTakeover: 'refuse', get ` +
      'IN_DOUBT',
    next: `unless a retry comes, it becomes a tombstone at ${timeText(entry.expiresAtMs)}`,
    advice:
      'find out whether the effect took place (the provider, the ledger). If it did, resolve the key with its true result. If it ' +
      'did not, release it. Never forget a key whose effect took place: the next retry would run it again',
  }),
  open: (entry, nowMs) => ({
    state: `open: attempt ${entry.attempt} ended without an outcome and the key was given back, ${moment(entry.leaseUntilMs, nowMs)}`,
    retry: `run the effect as attempt ${entry.attempt + 1}`,
    next: `unless a retry comes, it becomes a tombstone at ${timeText(entry.expiresAtMs)}`,
  }),
  settled: (entry, nowMs) => ({
    state: `settled: the effect is done and its outcome is stored, ${moment(entry.leaseUntilMs, nowMs)}`,
    retry: 'replay the stored outcome, and run nothing',
    next: `the outcome is kept until ${moment(entry.expiresAtMs, nowMs)}, then a tombstone until ${timeText(entry.forgottenAtMs)}`,
  }),
  tombstone: (entry, nowMs) => ({
    state: `tombstone: it expired ${moment(entry.expiresAtMs, nowMs)}; its outcome is gone`,
    retry: `get EXPIRED, over HTTP 410, and run nothing; or, where the service says onExpired: 'run', run as new`,
    next: `it is forgotten at ${moment(entry.forgottenAtMs, nowMs)}, and the key is new again`,
  }),
}

function attemptOf(entry: Entry, nowMs: number): string {
  const startedMs = grantedAtMs(entry)
  // A resolve gives the entry another fence: that is when a person gave the outcome, and when the attempt began is not known any more.
  if (isResolved(entry)) return `${entry.attempt}, its outcome was given manually ${moment(startedMs, nowMs)}`
  const since = `${entry.attempt}, since ${moment(startedMs, nowMs)}`
  const took = entry.state === 'settled' ? `, took ${span(entry.leaseUntilMs - startedMs)}` : ''
  const first = entry.attempt > 1 ? `; first asked ${moment(entry.firstClaimedAtMs, nowMs)}` : ''
  return `${since}${took}${first}`
}

/** The outcome has the mark of one that a person gave. */
function isResolved({ outcome }: Entry): boolean {
  return outcome !== undefined && withoutMark(outcome) !== outcome
}
