// Keys in memory: for tests, and for processes whose operations may be forgotten with them.

import { advance } from '../pending.ts'
import type { KeyStore, PendingRecord } from '../pending.ts'

/**
 * Keys in the memory of this process. A crash forgets them, so an operation whose answer is unknown stays unknown.
 *
 * @example
 * ```ts
 * import { createClient, memoryKeys } from 'onceonly/client'
 *
 * const client = createClient({ keys: memoryKeys() })
 * ```
 */
export function memoryKeys(): KeyStore {
  const records = new Map<string, PendingRecord>()
  return {
    open(record) {
      const standing = records.get(record.operation)
      if (standing) return Promise.resolve({ ...standing })
      records.set(record.operation, record)
      return Promise.resolve(record)
    },
    get: (operation) => Promise.resolve(records.get(operation)),
    save(record) {
      const next = advance(records.get(record.operation), record)
      if (next) records.set(record.operation, next)
      return Promise.resolve()
    },
    remove(operation, key) {
      if (records.get(operation)?.key === key) records.delete(operation)
      return Promise.resolve()
    },
    list: () => Promise.resolve([...records.values()]),
  }
}
