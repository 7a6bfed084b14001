// What a broken store is: the memory store with one mistake, and the case of the contract that must find it.

import { keyString } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Claim, EntryState } from '../../core/store.ts'
import type { MemoryData, MemoryEntry, MemoryStore } from '../../stores/memory.ts'
import type { ContractSubject } from '../store-contract.ts'
import { pretendSubject } from './pretend-database.ts'
import type { Breakage } from './pretend-database.ts'

export interface BrokenStore {
  /** What is wrong with it. */
  readonly name: string
  /** The name of the case that must fail. Others may fail, too. */
  readonly caughtBy: string
  create(): Promise<ContractSubject>
}

/** The methods that the mistake replaces. The others are those of the correct store. */
export type Mistake = (store: MemoryStore, data: MemoryData, clockSkewMs: number) => Partial<MemoryStore>

export function broken(name: string, caughtBy: string, mistake: Mistake): BrokenStore {
  return brokenBy(name, caughtBy, {
    memory: (store, data, clockSkewMs) => ({ ...store, ...mistake(store, data, clockSkewMs) }),
  })
}

export function brokenBy(name: string, caughtBy: string, breakage: Breakage): BrokenStore {
  return { name, caughtBy, create: () => pretendSubject(breakage) as Promise<ContractSubject> }
}

export function entryOf(data: MemoryData, key: Key): MemoryEntry | undefined {
  return data.entries.get(keyString(key))
}

/** Writes behind the store's back. */
export function edit(data: MemoryData, key: Key, changes: Partial<MemoryEntry>): void {
  const entry = entryOf(data, key)
  if (entry) data.entries.set(keyString(key), { ...entry, ...changes })
}

export function remove(data: MemoryData, key: Key): void {
  data.entries.delete(keyString(key))
}

export async function stateOf(store: MemoryStore, key: Key): Promise<EntryState | undefined> {
  return (await store.show(key))?.state
}

/** The token alone decides, whichever life of the key it was given in. */
export function byToken(data: MemoryData, claim: Claim): Claim {
  return entryOf(data, claim.key)?.token === claim.token ? asHolder(data, claim) : claim
}

/** Every caller passes for the holder. */
export function asHolder(data: MemoryData, claim: Claim): Claim {
  const { token, fence } = entryOf(data, claim.key) ?? claim
  return { ...claim, token, fence }
}
