// The memory store as the contract's subject.

import { keyString } from '../../src/core/key.ts'
import { memoryData, memoryStore } from '../../src/stores/memory.ts'
import { manualClock } from '../../src/testing/manual-clock.ts'
import type { Cannot } from '../../src/testing/store-contract.ts'
import type { DumpedSubject } from './swept.ts'

export const memoryCannot: Cannot = {
  transactions: 'memory has no transactions',
  collecting: 'memory has no other writes to settle with',
  'crash-recovery': 'memory dies with its process',
  'connection-faults': 'memory has no connection to lose',
}

export async function memorySubject(): Promise<DumpedSubject> {
  const clock = manualClock()
  const data = memoryData(clock)
  return {
    store: memoryStore({ data }),
    // An instance has no clock of its own that could be wrong: time belongs to the data.
    another: async () => memoryStore({ data }),
    advance: (ms) => clock.advance(ms),
    async corrupt(key, bytes) {
      data.entries.set(keyString(key), { ...data.entries.get(keyString(key))!, outcome: bytes })
    },
    dump: async () => [
      ...[...data.entries.values()].map(({ key, ...entry }) => ({ ...key, ...entry })),
      ...[...data.operations].flatMap(([name, { records }]) =>
        [...records.values()].map((each) => ({ operation: name, ...each })),
      ),
    ],
    destroy: async () => undefined,
  }
}
