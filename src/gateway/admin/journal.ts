// What this process has seen: the events of onceonly in a ring of bounded size, totals, and counts over the last minutes. The
// journal knows keys only by their hash, and drops the oldest event first. What must not be lost is in the store.

import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { systemClock } from '../../core/clock.ts'
import type { Clock } from '../../core/clock.ts'
import { eventNames } from '../../core/events.ts'
import type { EventName, PublishedEvent } from '../../core/events.ts'

export interface SeenEvent {
  /** Counts from 1, so that a reader can tell what is new to it. */
  readonly number: number
  readonly atMs: number
  readonly name: EventName
  readonly event: Partial<PublishedEvent<EventName>>
}

/** Effects that ran, and duplicates that did not: replayed, refused while one was running, in doubt or expired. */
export interface Counts {
  readonly run: number
  readonly absorbed: number
  readonly failed: number
  /** Ran without protection: the store was down, and the rules say run. */
  readonly unprotected: number
}

export interface Slice extends Counts {
  readonly fromMs: number
}

export interface EventJournal {
  /** How many events there were so far. */
  readonly seen: number
  /** What is known of one key, oldest first. */
  of(keyHash: string): readonly SeenEvent[]
  /** The newest first. */
  latest(count: number): readonly SeenEvent[]
  totals(): Counts & { readonly takenOver: number; readonly mismatched: number }
  slices(): readonly Slice[]
  /** The last time that the store was found to have lost data. It is kept for as long as the process runs. */
  dataLoss(): SeenEvent | undefined
  close(): void
}

// About 3 MB of events: the last seconds of a busy gateway, the last days of a quiet one.
const eventsMax = 10_000
// Ten minutes of five seconds: a plot of 120 columns is as fine as 390 pixels can show.
const sliceMs = 5_000
const slicesMax = 120

const meaning: Partial<Record<EventName, (event: SeenEvent['event']) => keyof Counts | undefined>> = {
  claimed: () => 'run',
  replayed: () => 'absorbed',
  doubted: () => 'absorbed',
  expired: () => 'absorbed',
  // A duplicate that waited and then got its answer is counted as replayed.
  waited: (event) => ('ended' in event && event.ended === 'in-flight' ? 'absorbed' : undefined),
  'store-failed': () => 'failed',
  unprotected: () => 'unprotected',
}

const nothing: Counts = { run: 0, absorbed: 0, failed: 0, unprotected: 0 }

export function startJournal(clock: Clock = systemClock): EventJournal {
  const ring: SeenEvent[] = []
  const byName: Partial<Record<EventName, number>> = {}
  const totals = { ...nothing }
  let loss: SeenEvent | undefined
  let slices: ({ fromMs: number } & Record<keyof Counts, number>)[] = []
  let seen = 0

  const sliceAt = (atMs: number): (typeof slices)[number] => {
    const fromMs = atMs - (atMs % sliceMs)
    const last = slices.at(-1)
    // A clock that was set back continues in the open slice: time in a plot runs one way.
    if (last && last.fromMs >= fromMs) return last
    const fresh = { fromMs, ...nothing }
    slices = [...slices.slice(1 - slicesMax), fresh]
    return fresh
  }
  const note = (name: EventName, event: SeenEvent['event']): void => {
    const atMs = clock.now()
    seen += 1
    const noted: SeenEvent = { number: seen, atMs, name, event }
    ring[(seen - 1) % eventsMax] = noted
    if (name === 'data-loss') loss = noted
    byName[name] = (byName[name] ?? 0) + 1
    const counted = meaning[name]?.(event)
    if (!counted) return
    totals[counted] += 1
    sliceAt(atMs)[counted] += 1
  }
  const close = listen(note)
  const inOrder = (): SeenEvent[] => {
    const start = seen % eventsMax
    return seen <= eventsMax ? ring.slice() : [...ring.slice(start), ...ring.slice(0, start)]
  }
  return {
    get seen() {
      return seen
    },
    of: (keyHash) => inOrder().filter(({ event }) => event.keyHash === keyHash),
    latest: (count) => inOrder().slice(-count).toReversed(),
    totals: () => ({ ...totals, takenOver: byName['taken-over'] ?? 0, mismatched: byName.mismatched ?? 0 }),
    slices: () => filled(slices, clock.now()),
    dataLoss: () => loss,
    close,
  }
}

function listen(note: (name: EventName, event: SeenEvent['event']) => void): () => void {
  const listeners = eventNames.map((name) => {
    const listener = (message: unknown): void => note(name, message as SeenEvent['event'])
    subscribe(`onceonly:${name}`, listener)
    return [`onceonly:${name}`, listener] as const
  })
  return () => listeners.forEach(([channel, listener]) => unsubscribe(channel, listener))
}

/** Every slice up to now, the empty ones too: a plot without them would hide the quiet. */
function filled(slices: readonly Slice[], nowMs: number): Slice[] {
  const lastMs = Math.max(nowMs - (nowMs % sliceMs), slices.at(-1)?.fromMs ?? 0)
  const known = new Map(slices.map((slice) => [slice.fromMs, slice]))
  return Array.from({ length: slicesMax }, (_, index) => {
    const fromMs = lastMs - (slicesMax - 1 - index) * sliceMs
    return known.get(fromMs) ?? { fromMs, ...nothing }
  })
}
