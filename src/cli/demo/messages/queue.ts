// The queue of the demo, in memory. Like every queue it delivers at least once: each reader has its own copy of a message, a copy that
// was delivered is hidden for `visibilityMs`, and is delivered again unless it was acknowledged by then. A reader has one copy at a time.

import { systemClock } from '../../../core/clock.ts'
import type { Outgoing } from '../../../messages/outbox.ts'

export interface Copy {
  readonly number: number
  readonly message: Outgoing
  /** Which delivery this is, 1 for the first. */
  readonly delivery: number
}

export interface QueueReader {
  /** Takes deliveries from now on, one at a time, until `leave`. */
  read(deliver: (copy: Copy) => void): void
  /** The reader is gone. What it had not acknowledged is delivered again when its time is over. */
  leave(): void
  acknowledge(number: number): void
  /** The reader is ready for the next copy. */
  next(): void
  readonly deliveries: number
  readonly redeliveries: number
  /** Copies that are not acknowledged. */
  readonly waiting: number
  /** The ids of messages of which a copy waits, or is in the hands of the reader. */
  underWay(): ReadonlySet<string>
}

export interface Queue {
  publish(messages: readonly Outgoing[]): void
  /** Adds a new copy of each message for every reader, or of the messages of one key. */
  deliverAgain(key?: string): void
  reader(): QueueReader
  readonly published: number
  /** How many of them had been published before. */
  readonly publishedAgain: number
  /** Each message once. */
  readonly messages: readonly Outgoing[]
}

export function createQueue(visibilityMs: number): Queue {
  const known = new Map<string, Outgoing>()
  const readers: ReturnType<typeof createReader>[] = []
  let published = 0
  return {
    publish(messages) {
      published += messages.length
      for (const message of messages) {
        known.set(message.id, message)
        readers.forEach((reader) => reader.add(message))
      }
    },
    deliverAgain(key) {
      for (const message of known.values()) {
        if (key === undefined || message.key === key) readers.forEach((reader) => reader.add(message))
      }
    },
    reader() {
      const reader = createReader(visibilityMs)
      readers.push(reader)
      return reader
    },
    get published() {
      return published
    },
    get publishedAgain() {
      return published - known.size
    },
    get messages() {
      return [...known.values()]
    },
  }
}

interface Waiting {
  readonly number: number
  readonly message: Outgoing
  deliveries: number
  hiddenUntilMs: number
}

function createReader(visibilityMs: number): QueueReader & { add(message: Outgoing): void } {
  const copies = new Map<number, Waiting>()
  const count = { copies: 0, deliveries: 0, redeliveries: 0 }
  let deliver: ((copy: Copy) => void) | undefined
  let inHand: Waiting | undefined
  let cancel = (): void => {}

  const look = (): void => {
    cancel()
    if (!deliver || inHand) return
    const nowMs = systemClock.elapsed()
    const visible = [...copies.values()].find(({ hiddenUntilMs }) => hiddenUntilMs <= nowMs)
    if (visible) return hand(visible, nowMs)
    const nextMs = Math.min(...[...copies.values()].map(({ hiddenUntilMs }) => hiddenUntilMs))
    if (nextMs < Infinity) cancel = systemClock.schedule(look, nextMs - nowMs)
  }
  const hand = (copy: Waiting, nowMs: number): void => {
    inHand = copy
    copy.hiddenUntilMs = nowMs + visibilityMs
    copy.deliveries += 1
    count.deliveries += 1
    if (copy.deliveries > 1) count.redeliveries += 1
    deliver!({ number: copy.number, message: copy.message, delivery: copy.deliveries })
  }
  return {
    add(message) {
      const number = (count.copies += 1)
      copies.set(number, { number, message, deliveries: 0, hiddenUntilMs: 0 })
      look()
    },
    read(given) {
      deliver = given
      look()
    },
    leave() {
      deliver = undefined
      inHand = undefined
      cancel()
    },
    acknowledge: (number) => void copies.delete(number),
    next() {
      inHand = undefined
      look()
    },
    get deliveries() {
      return count.deliveries
    },
    get redeliveries() {
      return count.redeliveries
    },
    get waiting() {
      return copies.size
    },
    underWay() {
      const ids = [...copies.values()].map(({ message }) => message.id)
      return new Set(inHand ? [...ids, inHand.message.id] : ids)
    },
  }
}
