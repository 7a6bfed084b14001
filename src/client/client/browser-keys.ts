// Keys of a browser: in IndexedDB, whose transactions are atomic between the tabs of one origin, or in Web Storage where there is no
// IndexedDB. Tabs run in processes, each with a copy of Web Storage that can be a moment old, and no lock makes it younger.

import { advance, parseRecord } from '../pending.ts'
import type { KeyStore, PendingRecord } from '../pending.ts'

/** The part of IndexedDB that is used. */
interface IdbRequest {
  readonly result: unknown
  readonly error: unknown
  onsuccess: (() => void) | null
  onerror: (() => void) | null
}
interface IdbObjectStore {
  get(key: string): IdbRequest
  getAll(): IdbRequest
  put(value: unknown): IdbRequest
  delete(key: string): IdbRequest
}
interface IdbTransaction {
  readonly error: unknown
  objectStore(name: string): IdbObjectStore
  oncomplete: (() => void) | null
  onabort: (() => void) | null
}
interface IdbDatabase {
  createObjectStore(name: string, options: { readonly keyPath: string }): unknown
  transaction(name: string, mode: string, options: { readonly durability: string }): IdbTransaction
}
interface Browser {
  readonly indexedDB?: { open(name: string, version: number): IdbRequest & { onupgradeneeded: (() => void) | null } }
  readonly localStorage: {
    readonly length: number
    key(index: number): string | null
    getItem(name: string): string | null
    setItem(name: string, value: string): void
    removeItem(name: string): void
  }
}

/** Reads what stands under an operation, and writes what the function returns: undefined leaves it, null removes it. */
type Change = (operation: string, next: (standing?: PendingRecord) => PendingRecord | null | undefined) => Promise<void>

/**
 * Keys in the browser's IndexedDB, or in its Web Storage where there is none. They survive a reload, and all tabs of an origin share those
 * in IndexedDB.
 *
 * @example
 * ```ts
 * import { browserKeys, createClient } from 'onceonly/client'
 *
 * const client = createClient({ keys: browserKeys() })
 * ```
 */
export function browserKeys(name?: string): KeyStore {
  return (globalThis as unknown as Browser).indexedDB ? indexedDbKeys(name) : webStorageKeys(name)
}

function keysOn(change: Change, list: KeyStore['list']): KeyStore {
  return {
    list,
    async get(operation) {
      let found: PendingRecord | undefined
      await change(operation, (standing) => void (found = standing))
      return found
    },
    async open(record) {
      let opened = record
      await change(record.operation, (standing) => {
        opened = standing ?? record
        return standing ? undefined : record
      })
      return opened
    },
    save: (record) => change(record.operation, (standing) => advance(standing, record)),
    remove: (operation, key) => change(operation, (standing) => (standing?.key === key ? null : undefined)),
  }
}

const table = 'pending'

/**
 * Keys in the browser's IndexedDB: in a database of this name, 'onceonly' unless given.
 *
 * @example
 * ```ts
 * import { createClient, indexedDbKeys } from 'onceonly/client'
 *
 * const client = createClient({ keys: indexedDbKeys() })
 * ```
 */
export function indexedDbKeys(name = 'onceonly'): KeyStore {
  const { indexedDB } = globalThis as unknown as Browser
  let opening: Promise<IdbDatabase> | undefined
  const open = (): Promise<IdbDatabase> =>
    (opening ??= new Promise<IdbDatabase>((resolve, reject) => {
      const request = indexedDB!.open(name, 1)
      request.onupgradeneeded = () => (request.result as IdbDatabase).createObjectStore(table, { keyPath: 'operation' })
      request.onsuccess = () => resolve(request.result as IdbDatabase)
      request.onerror = () => {
        opening = undefined
        reject(request.error as Error)
      }
    }))
  /** Resolves after the commit, which is on disk then. */
  const inTransaction = async (mode: string, work: (records: IdbObjectStore) => void): Promise<void> => {
    const transaction = (await open()).transaction(table, mode, { durability: 'strict' })
    const ended = new Promise<void>((resolve, reject) => {
      transaction.oncomplete = () => resolve()
      transaction.onabort = () => reject(transaction.error as Error)
    })
    work(transaction.objectStore(table))
    return ended
  }
  const change: Change = (operation, next) =>
    inTransaction('readwrite', (records) => {
      const request = records.get(operation)
      request.onsuccess = () => {
        const record = next(request.result as PendingRecord | undefined)
        if (record) records.put(record)
        if (record === null) records.delete(operation)
      }
    })
  return keysOn(change, async () => {
    let all: readonly PendingRecord[] = []
    await inTransaction('readonly', (records) => {
      const request = records.getAll()
      request.onsuccess = () => (all = request.result as PendingRecord[])
    })
    return all
  })
}

/**
 * Keys in the browser's Web Storage, for where there is no IndexedDB. They survive a reload. Another tab sees them a moment later: two tabs
 * that begin one operation in that moment have two keys.
 *
 * @example
 * ```ts
 * import { createClient, webStorageKeys } from 'onceonly/client'
 *
 * const client = createClient({ keys: webStorageKeys() })
 * ```
 */
export function webStorageKeys(name = 'onceonly'): KeyStore {
  const { localStorage } = globalThis as unknown as Browser
  const prefix = `${name}:`
  const read = (key: string): PendingRecord | undefined => {
    const text = localStorage.getItem(key)
    return text === null ? undefined : parseRecord(text, `localStorage ${key}`)
  }
  const change: Change = (operation, next) => {
    const record = next(read(prefix + operation))
    if (record) localStorage.setItem(prefix + operation, JSON.stringify(record))
    if (record === null) localStorage.removeItem(prefix + operation)
    return Promise.resolve()
  }
  return keysOn(change, () => {
    const names = Array.from({ length: localStorage.length }, (_, index) => localStorage.key(index)!)
    return Promise.resolve(names.filter((each) => each.startsWith(prefix)).map((each) => read(each)!))
  })
}
