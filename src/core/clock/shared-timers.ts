// One timer of Node for all time limits of the same length. A call of the library sets up to four limits and cancels nearly all of
// them, and a timer of Node costs more than the rest of a limit. Limits of one length end in the order in which they were set, so
// a list and one timer for its head are enough. A list that stays empty for its whole length is dropped with its timer.

/** Delays of whole milliseconds from here on share a timer. Shorter ones are pauses, which are seldom cancelled. */
const sharedFromMs = 1_000
// setTimeout takes a signed 32-bit number of milliseconds (24.8 days) and fires at once beyond it.
const sharedToMs = 2 ** 31 - 1

export function isShared(delayMs: number): boolean {
  return delayMs >= sharedFromMs && delayMs <= sharedToMs && Number.isInteger(delayMs)
}

const lists = new Map<number, LimitList>()

export function sharedList(delayMs: number): LimitList {
  let list = lists.get(delayMs)
  if (!list) lists.set(delayMs, (list = new LimitList(delayMs)))
  return list
}

/** Calls `run` after `delayMs`. The returned function cancels. */
export function scheduleShared(run: () => void, delayMs: number): () => void {
  const list = sharedList(delayMs)
  const limit = { passed: run, ...notListed }
  list.add(limit)
  return () => list.remove(limit)
}

/** What stands in a list. It is its own element: a call of the library sets several limits, and each object for them counts. */
export interface Listed {
  /** Its time has passed. It is in no list any more. */
  passed(): void
  dueMs: number
  before: Listed | undefined
  after: Listed | undefined
  isSet: boolean
}

export const notListed: Readonly<Omit<Listed, 'passed'>> = {
  dueMs: 0,
  before: undefined,
  after: undefined,
  isSet: false,
}

/** A class for speed: every call of the library comes through here several times. */
export class LimitList {
  readonly #delayMs: number
  #first: Listed | undefined
  #last: Listed | undefined
  #timer: NodeJS.Timeout

  constructor(delayMs: number) {
    this.#delayMs = delayMs
    this.#timer = setTimeout(() => this.#fire(), delayMs)
  }

  add(limit: Listed, nowMs: number = performance.now()): void {
    const last = this.#last
    limit.dueMs = nowMs + this.#delayMs
    limit.before = last
    limit.after = undefined
    limit.isSet = true
    this.#last = limit
    if (last) last.after = limit
    else {
      this.#first = limit
      // Only a limit that is set keeps the process alive.
      this.#timer.ref()
    }
  }

  remove(limit: Listed): void {
    if (!limit.isSet) return
    limit.isSet = false
    const { before, after } = limit
    if (before) before.after = after
    else this.#first = after
    if (after) after.before = before
    else this.#last = before
    // An old one that is not collected yet would keep all that came after it: by it, each of them would grow old, too.
    limit.before = undefined
    limit.after = undefined
    if (!this.#first) this.#timer.unref()
  }

  #fire(): void {
    const nowMs = performance.now()
    try {
      // Node fires a timer up to a millisecond early.
      for (let limit = this.#first; limit && limit.dueMs <= nowMs + 1; limit = this.#first) {
        this.remove(limit)
        limit.passed()
      }
    } finally {
      if (!this.#first) lists.delete(this.#delayMs)
      else this.#timer = setTimeout(() => this.#fire(), Math.max(1, this.#first.dueMs - nowMs))
    }
  }
}
