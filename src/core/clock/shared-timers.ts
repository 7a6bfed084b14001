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

/** Calls `run` after `delayMs`. The returned function cancels. */
export function scheduleShared(run: () => void, delayMs: number): () => void {
  let list = lists.get(delayMs)
  if (!list) lists.set(delayMs, (list = new LimitList(delayMs)))
  const limit = list.add(run)
  return () => list.remove(limit)
}

interface Limit {
  readonly run: () => void
  readonly dueMs: number
  before: Limit | undefined
  after: Limit | undefined
  isSet: boolean
}

/** A class for speed: every call of the library comes through here several times. */
class LimitList {
  readonly #delayMs: number
  #first: Limit | undefined
  #last: Limit | undefined
  #timer: NodeJS.Timeout

  constructor(delayMs: number) {
    this.#delayMs = delayMs
    this.#timer = setTimeout(() => this.#fire(), delayMs)
  }

  add(run: () => void): Limit {
    const last = this.#last
    const limit: Limit = {
      run,
      dueMs: performance.now() + this.#delayMs,
      before: last,
      after: undefined,
      isSet: true,
    }
    this.#last = limit
    if (last) last.after = limit
    else {
      this.#first = limit
      // Only a limit that is set keeps the process alive.
      this.#timer.ref()
    }
    return limit
  }

  remove(limit: Limit): void {
    if (!limit.isSet) return
    limit.isSet = false
    const { before, after } = limit
    if (before) before.after = after
    else this.#first = after
    if (after) after.before = before
    else this.#last = before
    if (!this.#first) this.#timer.unref()
  }

  #fire(): void {
    const nowMs = performance.now()
    try {
      // Node fires a timer up to a millisecond early.
      for (let limit = this.#first; limit && limit.dueMs <= nowMs + 1; limit = this.#first) {
        this.remove(limit)
        limit.run()
      }
    } finally {
      if (!this.#first) lists.delete(this.#delayMs)
      else this.#timer = setTimeout(() => this.#fire(), Math.max(1, this.#first.dueMs - nowMs))
    }
  }
}
