// What a ground is asked outside of a request, bounded in time and with errors of one kind. Requests are bounded by the core, which claims
// and settles them.

import { callStore } from '../../core/timed-call.ts'
import type { StoreCalls } from '../../core/timed-call.ts'
import type { SessionGround } from './ground.ts'

// A SQL database takes a transaction for each session that it sweeps, and all of these are one call.
const sweptPerCall = 50

export function timedGround(ground: SessionGround, calls: StoreCalls): SessionGround {
  const change = <T>(call: () => Promise<T>): Promise<T> => callStore(calls, 'session', undefined, call)
  return {
    ...ground,
    register: (client) => change(() => ground.register(client)),
    keepAlive: (asked) => change(() => ground.keepAlive(asked)),
    close: (asked) => change(() => ground.close(asked)),
    show: (client) => callStore(calls, 'inspect', undefined, () => ground.show(client)),
    async sweep(limit) {
      let swept = 0
      while (swept < limit) {
        const wanted = Math.min(sweptPerCall, limit - swept)
        const found = await callStore(calls, 'sweep', undefined, () => ground.sweep(wanted))
        swept += found
        if (found < wanted) break
      }
      return swept
    },
  }
}
