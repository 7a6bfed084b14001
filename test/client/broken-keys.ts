// Key stores with one mistake each, and the case of the contract that must notice it.

import { memoryKeys } from '../../src/client/client.ts'
import type { KeyStore, PendingRecord } from '../../src/client/client.ts'
import type { KeyStorePair } from './key-store-contract.ts'

export interface BrokenKeys {
  readonly mistake: string
  /** The case that must fail. */
  readonly fails: string
  open(): KeyStorePair
}

const shared = (change: (sound: KeyStore, records: Map<string, PendingRecord>) => Partial<KeyStore>) => {
  return (): KeyStorePair => {
    const sound = memoryKeys()
    const broken = { ...sound, ...change(sound, new Map()) }
    return { one: broken, other: broken }
  }
}

const race = 'of many that open one operation at once, one key stands for all'
const whole = 'an open record is whole, and another process has it'
const again = 'opening again returns what stands, with all that was saved'
const first = 'the first answer stays, the earliest attempt counts, the shortest window holds'
const changes = 'what is saved about a removed record, or under another key, changes nothing'
const removes = 'remove takes only the record of its key, and a new one knows nothing of it'
const differ = 'operations differ by every character of their names'

export const brokenKeys: readonly BrokenKeys[] = [
  {
    mistake: 'looks first and writes then',
    fails: race,
    open: shared((_, records) => ({
      get: (operation) => Promise.resolve(records.get(operation)),
      async open(record) {
        const standing = records.get(record.operation)
        await Promise.resolve()
        if (standing) return standing
        records.set(record.operation, record)
        return record
      },
    })),
  },
  {
    mistake: 'the last to open wins',
    fails: again,
    open: shared((sound) => ({
      async open(record) {
        const standing = await sound.get(record.operation)
        if (standing) await sound.remove(record.operation, standing.key)
        return sound.open(record)
      },
    })),
  },
  {
    mistake: 'each process has keys of its own',
    fails: whole,
    open: () => ({ one: memoryKeys(), other: memoryKeys() }),
  },
  {
    mistake: 'the body is not kept',
    fails: whole,
    open: shared((sound) => ({
      open: (record) => sound.open({ ...record, request: { ...record.request, body: null } }),
    })),
  },
  {
    mistake: 'the answer is not kept',
    fails: again,
    open: shared((sound) => ({ save: (record) => sound.save({ ...record, answer: undefined }) })),
  },
  {
    mistake: 'a later answer replaces the first',
    fails: first,
    open: shared((sound) => ({
      async save(record) {
        const standing = await sound.get(record.operation)
        if (standing?.key !== record.key) return
        await sound.remove(record.operation, record.key)
        await sound.open({ ...standing, ...record })
      },
    })),
  },
  {
    mistake: 'a late save brings a removed record back',
    fails: changes,
    open: shared((sound) => ({
      async save(record) {
        await sound.open(record)
        await sound.save(record)
      },
    })),
  },
  {
    mistake: 'remove does not look at the key',
    fails: removes,
    open: shared((sound) => ({
      async remove(operation) {
        const standing = await sound.get(operation)
        if (standing) await sound.remove(operation, standing.key)
      },
    })),
  },
  {
    mistake: 'names are compared without case',
    fails: differ,
    open: shared((sound) => ({
      open: (record) => sound.open({ ...record, operation: record.operation.toLowerCase() }),
      get: (operation) => sound.get(operation.toLowerCase()),
      save: (record) => sound.save({ ...record, operation: record.operation.toLowerCase() }),
    })),
  },
]
