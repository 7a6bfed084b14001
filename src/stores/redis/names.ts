// What things are called in Redis. Two keys never share a name, every name of an entry is in one slot of a Cluster, and the
// names are the same with and without a Cluster, so that a dataset can move into one.

import { crc32 } from 'node:zlib'
import { keyString } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'

// An entry needs the register of its dataset in its own slot, so keys share 1,024 slots, each with a register. Enough to spread
// evenly over dozens of primaries. The number never changes, as another number would give every key another name.
const bucketCount = 1_024

export interface Names {
  /** What the names of an entry have in braces: it decides the slot. */
  bucketOf(key: Key): number
  of(key: Key): EntryNames
  /** The first of them, from which the scripts make the others. */
  entryOf(key: Key): string
  /** Of a bucket, or of the whole server when it is none of a Cluster. */
  register(bucket: number | undefined): string
  mark(bucket: number | undefined, instance: string): string
  quarantineLog(bucket: number | undefined): string
  /** The scripts make it from the name of the register. */
  floor(bucket: number | undefined): string
  /** A pattern for SCAN that all entries match, or all of a scope. */
  pattern(scope: string | undefined): string
  /** Undefined for what is no entry. */
  keyOf(entryName: string): Key | undefined
}

export interface EntryNames {
  readonly entry: string
  readonly outcome: string
  readonly audit: string
}

export const buckets: readonly number[] = Array.from({ length: bucketCount }, (_, bucket) => bucket)

export function namesUnder(prefix: string): Names {
  const entryName = new RegExp(`^${escapePattern(prefix)}:\\{\\d+\\}:entry:([^/]+)/(.+)$`, 's')
  const bucketOf = (key: Key): number => crc32(keyString(key)) % bucketCount
  const nameOf = (what: keyof EntryNames, key: Key): string =>
    `${prefix}:{${bucketOf(key)}}:${what}:${escapeScope(key.scope)}/${key.id}`
  const shared = (what: string, bucket: number | undefined): string =>
    bucket === undefined ? `${prefix}:${what}` : `${prefix}:{${bucket}}:${what}`
  return {
    bucketOf,
    of: (key) => ({ entry: nameOf('entry', key), outcome: nameOf('outcome', key), audit: nameOf('audit', key) }),
    entryOf: (key) => nameOf('entry', key),
    register: (bucket) => shared('register', bucket),
    mark: (bucket, instance) => shared(`mark:${instance}`, bucket),
    quarantineLog: (bucket) => shared('quarantines', bucket),
    floor: (bucket) => shared('floor', bucket),
    pattern: (scope) =>
      `${escapeGlob(prefix)}:{*}:entry:${scope === undefined ? '*' : `${escapeGlob(escapeScope(scope))}/*`}`,
    keyOf(name) {
      const [, scope, id] = entryName.exec(name) ?? []
      return scope === undefined ? undefined : { scope: unescapeScope(scope), id: id! }
    },
  }
}

let lastScope = ''
let lastEscaped = ''

// The first slash ends the scope, so that `a/b` + `c` and `a` + `b/c` stay two keys. Scopes are few: mostly it is the one before.
function escapeScope(scope: string): string {
  if (scope !== lastScope) lastEscaped = scope.replaceAll('%', '%25').replaceAll('/', '%2F')
  lastScope = scope
  return lastEscaped
}

function unescapeScope(scope: string): string {
  return scope.replaceAll('%2F', '/').replaceAll('%25', '%')
}

export function escapeGlob(text: string): string {
  return text.replaceAll(/[\\*?[\]^]/g, (character) => `\\${character}`)
}

function escapePattern(text: string): string {
  return text.replaceAll(/[.*+?^${}()|[\]\\]/g, (character) => `\\${character}`)
}
