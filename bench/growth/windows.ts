// Latency while something else goes on: callers that never stop, in windows with it and in windows without, side by side.

import { percentiles, ratioFrom } from '../measure.ts'
import type { Ratio } from '../measure.ts'

export interface Windows {
  readonly windows: number
  readonly windowMs: number
  readonly callers: number
  call(): Promise<unknown>
  /** Before each window. */
  prepare?(next: 'disturbed' | 'quiet'): Promise<void>
  /** Goes on until `until` is aborted, or is over before that. */
  disturb(until: AbortSignal): Promise<unknown>
}

/** p99 of the calls in windows with the disturbance, to that of the windows just before or after it. */
export async function p99During(given: Windows): Promise<{ readonly p50: Ratio; readonly p99: Ratio }> {
  const { windows, windowMs, callers, call, prepare, disturb } = given
  const quiet = async (): Promise<void> => {}
  const pairs: { p50: number; p99: number }[] = []
  await window({ windowMs, callers, call }, quiet)
  for (let count = 0; count < windows; count++) {
    const seen = new Map<boolean, ReturnType<typeof percentiles>>()
    for (const disturbed of count % 2 === 0 ? [false, true] : [true, false]) {
      await prepare?.(disturbed ? 'disturbed' : 'quiet')
      seen.set(disturbed, await window({ windowMs, callers, call }, disturbed ? disturb : quiet))
    }
    const [control, during] = [seen.get(false)!, seen.get(true)!]
    pairs.push({ p50: during.p50Ms / control.p50Ms, p99: during.p99Ms / control.p99Ms })
  }
  return { p50: ratioFrom(pairs.map(({ p50 }) => p50)), p99: ratioFrom(pairs.map(({ p99 }) => p99)) }
}

async function window(
  { windowMs, callers, call }: Pick<Windows, 'windowMs' | 'callers' | 'call'>,
  disturb: Windows['disturb'],
): Promise<ReturnType<typeof percentiles>> {
  const durationsMs: number[] = []
  const end = AbortSignal.timeout(windowMs)
  const caller = async (): Promise<void> => {
    while (!end.aborted) {
      const beganMs = performance.now()
      await call()
      durationsMs.push(performance.now() - beganMs)
    }
  }
  await Promise.all([disturb(end), ...Array.from({ length: callers }, caller)])
  return percentiles(durationsMs)
}
