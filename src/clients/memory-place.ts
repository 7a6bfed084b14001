// The memory behind a memory store, for what other rooms keep beside its entries: sessions. A store offers it when it is created, and
// `memoryOf` finds it, as `databaseOf` finds a SQL database.

export interface MemoryPlace {
  /** The same for all stores on the same data. */
  readonly data: object
  /** The store's clock, in milliseconds since 1970. */
  now(): number
}

const places = new WeakMap<object, MemoryPlace>()

/** Called by a store for itself. */
export function offerMemory<S extends object>(store: S, place: MemoryPlace): S {
  places.set(store, place)
  return store
}

/** Undefined for every other store, and for one that was wrapped by somebody's own code. */
export function memoryOf(store: object): MemoryPlace | undefined {
  return places.get(store)
}
