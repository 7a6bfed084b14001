// The contract for people who write a store of their own: every case of it, run against the store. Here it is the memory
// store, standing in for yours; `node --test examples/own-store.ts` runs it.

import { test } from 'node:test'
import { memoryData, memoryStore } from 'onceonly/memory'
import { manualClock, storeContract } from 'onceonly/testing'

storeContract({
  test,
  create: async () => {
    const clock = manualClock()
    const data = memoryData(clock)
    return {
      store: memoryStore({ data }),
      another: async () => memoryStore({ data }),
      advance: (ms) => clock.advance(ms),
      async corrupt(key, bytes) {
        for (const [name, entry] of data.entries) {
          if (entry.key.scope === key.scope && entry.key.id === key.id)
            data.entries.set(name, { ...entry, outcome: bytes })
        }
      },
      destroy: async () => {},
    }
  },
  cannot: {
    transactions: 'a map cannot roll back what others wrote',
    'no-waiting': 'a map cannot roll back what others wrote',
    'commit-faults': 'there is no commit',
    'connection-faults': 'there is no connection',
    'crash-recovery': 'a map does not survive its process',
  },
})
