// The server's time, as this process knows it without asking each time. Its scripts decide by the server's own clock. What a native
// command writes is stamped here, so it needs bounds between which that clock is: what must not come too early takes the later
// bound, what must not be ahead of the server takes the earlier one.

import type { Clock } from '../../core/clock.ts'

export interface ServerTime {
  /** A moment of this process's count as a time on the server's clock, or the end of time while that clock is unknown. */
  at(elapsedMs: number): number
  here(): LocalMoment
  /** A reply has told the server's time. `sent` is when its command was sent. */
  heard(serverMs: number, sent: LocalMoment): void
  /** Undefined while they are not known, or too far apart. */
  bounds(now: LocalMoment): ClockBounds | undefined
  /** Whether the server should be asked again, as its clock may have been set. */
  isOld(now: LocalMoment): boolean
}

/** By both clocks of this process, as each is wrong in its own way: one stands still while the machine is suspended, the other can be set. */
export interface LocalMoment {
  readonly elapsedMs: number
  readonly wallMs: number
}

export interface ClockBounds {
  readonly earliestMs: number
  readonly latestMs: number
}

// NTP slews a clock by up to 500 ppm, and the server's likewise. After an idle week that is ten minutes.
const driftMax = 0.002
// The server's clock may be set at any time. A script would notice at once, and stamps within a fifth of a second.
const refreshMs = 200
// Farther apart they are of no use: a lease would be that much longer, and a fence that much behind.
const apartMsMax = 250

interface Sample {
  readonly serverMs: number
  readonly sent: LocalMoment
  readonly received: LocalMoment
}

export function serverTime(clock: Clock): ServerTime {
  // How far the server's clock is ahead of our count of milliseconds.
  let aheadMs: number | undefined
  let heardAtMs = 0
  let sample: Sample | undefined
  const here = (): LocalMoment => ({ elapsedMs: clock.elapsed(), wallMs: clock.now() })
  const boundsOf = ({ serverMs, sent, received }: Sample, now: LocalMoment): ClockBounds => ({
    earliestMs: serverMs + Math.min(now.elapsedMs - received.elapsedMs, now.wallMs - received.wallMs),
    latestMs: serverMs + Math.max(now.elapsedMs - sent.elapsedMs, now.wallMs - sent.wallMs),
  })
  return {
    here,
    at(elapsedMs) {
      if (aheadMs === undefined || elapsedMs === Infinity) return Number.MAX_SAFE_INTEGER
      return Math.ceil(aheadMs + elapsedMs + (elapsedMs - heardAtMs) * driftMax)
    },
    heard(serverMs, sent) {
      const received = here()
      heardAtMs = received.elapsedMs
      aheadMs = serverMs - heardAtMs
      const heard = { serverMs, sent, received }
      const known = sample && boundsOf(sample, received)
      const isBetter = !known || apart(boundsOf(heard, received)) <= apart(known)
      const isOld = !sample || received.elapsedMs - sample.received.elapsedMs >= refreshMs
      const isContradicted = known && (serverMs > known.latestMs + 1 || serverMs < known.earliestMs - apartMsMax)
      if (isBetter || isOld || isContradicted) sample = heard
    },
    bounds(now) {
      const bounds = sample && boundsOf(sample, now)
      return bounds && apart(bounds) <= apartMsMax ? bounds : undefined
    },
    isOld: (now) => !sample || now.elapsedMs - sample.received.elapsedMs >= refreshMs,
  }
}

function apart({ earliestMs, latestMs }: ClockBounds): number {
  return latestMs - earliestMs
}
