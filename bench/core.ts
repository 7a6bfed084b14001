// P14: what `once.run` costs this process, on the memory store, where the library is all there is. Machines differ by a factor of three,
// and one machine from hour to hour, so the cost is told in units of a fixed piece of work that runs in the same rounds.

import { hash } from 'node:crypto'
import { createOnce } from '../src/core/once.ts'
import type { Once } from '../src/core/once.ts'
import { memoryStore } from '../src/stores/memory.ts'
import { compareAll, ratioIn } from './measure.ts'
import type { Variant } from './measure.ts'
import { report, reportComparison } from './report.ts'

const outcome = { receipt: 'x'.repeat(280) }
const comparison = { concurrency: 64, operations: 20_000, rounds: 9 }

// Half of what a call cost before it had its straight path. Commit 7cde4ca, asked by this file on the same machine, cost 9.9 and 4.2 units
// (the medians of three quick runs: 8.9, 9.9 and 10.6 fresh, 3.1, 4.2 and 4.4 replayed).
const freshAtMost = 4.9
const replayAtMost = 2.1

export async function benchCore(): Promise<void> {
  const fresh = await compareAll([unit(), aMap('fresh'), calls('fresh')], comparison)
  const ofFresh = ratioIn(fresh, 'cpuMs', 'onceonly', 'unit of work')
  report({ id: 'P14', what: 'once.run in memory, fresh: CPU in units of work', ...ofFresh, atMost: freshAtMost })
  reportComparison('once.run in memory, fresh', fresh)
  const replayed = await compareAll([unit(), aMap('replay'), calls('replay')], comparison)
  const ofReplay = ratioIn(replayed, 'cpuMs', 'onceonly', 'unit of work')
  report({ id: 'P14', what: 'once.run in memory, replay: CPU in units of work', ...ofReplay, atMost: replayAtMost })
  reportComparison('once.run in memory, replay', replayed)
}

/**
 * The unit: what any library would do for a call. The request is hashed, its result becomes text and is remembered under its key, and the
 * caller is answered a microtask later. It has the same mix as a call (native code, a growing Map, garbage that survives for a while), so a
 * machine that is slow at one of them is slow at both, and no change of ours makes it faster.
 */
function unit(): Variant {
  let remembered = new Map<string, string>()
  return {
    name: 'unit of work',
    prepare: async () => void (remembered = new Map()),
    async work(index) {
      const digest = hash('sha256', `order ${index}`, 'base64url')
      remembered.set(`bench\norder-${index}`, digest + JSON.stringify(outcome))
      await Promise.resolve()
    },
  }
}

/** The limit of the machine: a Map that is asked, with no claim, no fence, no copy and no time. */
function aMap(what: 'fresh' | 'replay'): Variant {
  let remembered = new Map<string, unknown>()
  let from = -1
  return {
    name: 'a Map',
    async prepare(operations) {
      remembered = new Map()
      from = -1
      if (what === 'replay') for (let each = 0; each < operations; each++) remembered.set(`order-${each}`, outcome)
    },
    async work(index) {
      if (from < 0) from = index
      const id = `order-${index - from}`
      if (!remembered.has(id)) remembered.set(id, outcome)
    },
  }
}

function calls(what: 'fresh' | 'replay'): Variant {
  let once: Once = open()
  let from = -1
  let ran = 0
  const effect = (): unknown => (ran++, outcome)
  // A string of its own for every call, as one that comes in with a request is.
  const call = (index: number): Promise<unknown> => once.run(`order-${index}`, effect, { fingerprint: 'bench' })
  return {
    name: 'onceonly',
    async prepare(operations) {
      await once.close()
      once = open()
      from = -1
      if (what === 'replay') for (let each = 0; each < operations; each++) await call(each)
      ran = 0
    },
    async work(index) {
      if (from < 0) from = index
      await call(index - from)
    },
    async verify(operations) {
      const wanted = what === 'fresh' ? operations : 0
      if (ran !== wanted) throw new Error(`${ran} effects ran instead of ${wanted}`)
    },
  }
}

function open(): Once {
  return createOnce({ store: memoryStore({ entriesMax: 1_000_000 }), scope: 'bench', sweepEveryMs: false })
}
