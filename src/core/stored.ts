// The types of what a replay has. An outcome is stored as JSON, so a result has the type that JSON gives back, the first time
// too: a Date is a string, a method is gone, a Map does not compile. A codec changes that: what it gives back is up to it.

/** How the values of one `createOnce` are stored: as JSON, or by the codec that it was given. */
export type ValueKind = 'json' | 'codec'

/** What a replay has of a value of this type. */
export type Stored<T, Kind extends ValueKind = 'json'> = Kind extends 'codec'
  ? T
  : // `any` is both.
    0 extends 1 & T
    ? T
    : T extends undefined | void
      ? T
      : // Bytes are stored as they are.
        T extends Uint8Array
        ? Uint8Array
        : StoredJson<T>

type Primitive = string | number | boolean | null

/** The JSON form of a value that is not the outcome itself but lies in it. */
type StoredJson<T> = 0 extends 1 & T
  ? T
  : unknown extends T
    ? T
    : T extends Primitive
      ? T
      : T extends Refused
        ? NotStorable<RefusedBecause<T>>
        : T extends { toJSON(...args: never): infer Json }
          ? StoredJson<Json>
          : T extends readonly unknown[]
            ? StoredArray<T>
            : T extends object
              ? StoredObject<T>
              : never

/** JSON writes `null` where an array has nothing to say. */
type StoredArray<T extends readonly unknown[]> = {
  [Index in keyof T]: undefined extends T[Index]
    ? StoredJson<Exclude<T[Index], undefined>> | null
    : StoredJson<T[Index]>
}

/** Methods, symbols and members that are undefined are not there after a replay. */
type StoredObject<T extends object> = {
  [Name in keyof T as StoredName<T, Name> extends 'always' ? Name : never]: StoredJson<T[Name]>
} & {
  [Name in keyof T as StoredName<T, Name> extends 'sometimes' ? Name : never]?: StoredJson<Exclude<T[Name], undefined>>
} extends infer Both
  ? { [Name in keyof Both]: Both[Name] }
  : never

type StoredName<T, Name extends keyof T> = Name extends symbol
  ? 'never'
  : Exclude<T[Name], undefined> extends (...args: never) => unknown
    ? unknown extends T[Name]
      ? 'always'
      : 'never'
    : undefined extends T[Name]
      ? unknown extends T[Name]
        ? 'always'
        : 'sometimes'
      : 'always'

/** What JSON would silently turn into nothing, or cannot write at all. By shape where a global type may be missing. */
type Refused =
  | bigint
  | symbol
  | ((...args: never) => unknown)
  | Collection
  | WeakMap<never, unknown>
  | WeakSet<never>
  | RegExp
  | Promise<unknown>
  | ArrayBufferLike
  | (ArrayBufferView & { toJSON?: never })
  | FetchBody

/** A Map or a Set. */
interface Collection {
  readonly size: number
  has(...args: never): boolean
  forEach(...args: never): void
}

/** A Response or a Request. */
interface FetchBody {
  readonly bodyUsed: boolean
  json(): Promise<unknown>
}

type RefusedBecause<T> = T extends bigint
  ? 'a bigint cannot be stored as JSON: return a string, or give createOnce a codec'
  : T extends FetchBody
    ? 'a Response cannot be stored: return await response.json(), or text()'
    : T extends Collection
      ? 'a Map or Set cannot be stored as JSON: return an array of its entries, or give createOnce a codec'
      : T extends ArrayBufferLike | ArrayBufferView
        ? 'binary data cannot lie inside JSON: return a Uint8Array by itself, or a base64 string'
        : 'this cannot be stored as JSON: return its data, or give createOnce a codec'

/** A type that no value has: its name and its member say what is wrong. */
export interface NotStorable<Because extends string> {
  readonly 'cannot be stored': Because
}

/**
 * Refuses, where an effect is given, what cannot be stored: an effect that has run and whose result is lost is worse than one
 * that does not compile. Your own function that passes an effect on says `effect: (() => Promise<T>) & Storable<T>`.
 */
export type Storable<T, Kind extends ValueKind = 'json'> = Kind extends 'codec'
  ? unknown
  : [Problem<T>] extends [never]
    ? unknown
    : NotStorable<Problem<T>>

/**
 * Looks three levels deep: the types of some SDKs have no bottom. Deeper members are NotStorable when they are read. A union is
 * refused only when all of it is: a row of SQLite may hold a bigint, and mostly does not.
 */
type Problem<T, Depth extends readonly 0[] = []> = 0 extends 1 & T
  ? never
  : unknown extends T
    ? never
    : [T] extends [Primitive | undefined | void]
      ? never
      : [T, Depth] extends [Uint8Array, readonly []]
        ? never
        : [T] extends [Refused]
          ? RefusedBecause<T>
          : ProblemInside<T, Depth>

type ProblemInside<T, Depth extends readonly 0[]> = T extends Primitive | undefined | void | Refused
  ? never
  : T extends { toJSON(...args: never): infer Json }
    ? Problem<Json, Depth>
    : Depth['length'] extends 3
      ? never
      : T extends readonly (infer Each)[]
        ? Problem<Each, readonly [0, ...Depth]>
        : { [Name in keyof T]-?: ProblemOfMember<T, Name, readonly [0, ...Depth]> }[keyof T]

type ProblemOfMember<T, Name extends keyof T, Depth extends readonly 0[]> =
  StoredName<T, Name> extends 'never' ? never : Problem<T[Name], Depth>

/**
 * Refuses the input of an operation that its function would not be given as it was handed in: a worker reads it from the store,
 * so a Date is a string by then.
 */
export type StoredAsGiven<T, Kind extends ValueKind = 'json'> = Kind extends 'codec'
  ? unknown
  : [Stored<T>] extends [Lacking<T>]
    ? Storable<T>
    : NotStorable<'the function is given its input as JSON has it: declare a Date as a string, and no methods'>

/** The same with members that may be undefined left out: JSON does so. */
type Lacking<T> = T extends Primitive | undefined | void | Uint8Array
  ? T
  : unknown extends T
    ? T
    : T extends readonly unknown[]
      ? { [Index in keyof T]: Lacking<T[Index]> }
      : { [Name in keyof T as undefined extends T[Name] ? never : Name]: Lacking<T[Name]> } & {
          [Name in keyof T as undefined extends T[Name] ? Name : never]?: Lacking<T[Name]>
        }
