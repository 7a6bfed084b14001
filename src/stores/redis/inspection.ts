// Inspecting entries and mending them. There is no index of the keys, because it would cost every claim, and would be in another
// slot of a Cluster. `list` walks over all names with SCAN, which blocks no other client but takes its time.

import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Entry, EntryFilter, Inspectable } from '../../core/store.ts'
import type { Send } from '../../clients/redis.ts'
import type { Shard, WhenFit } from './batches.ts'
import { lookCall, mendCall, readAudit, readEntry } from './entries.ts'
import type { ScriptCall } from './entries.ts'
import { storeError } from './scripts.ts'
import type { RedisContext } from './scripts.ts'

// Some 2 MB of names at a time, whatever the size of the dataset. A list that needs more of them walks again.
const namesMax = 10_000
// A SCAN of a thousand takes about a third of a millisecond of the server.
const scanCount = '1000'
// A person mends: a hundred records of one key are plenty, and few look back further than a year.
const auditKept = { auditKeepMs: 400 * 24 * 3_600_000, auditRecords: 100 }

export function inspectionOf(context: RedisContext, whenFit: WhenFit, shardOf: (key: Key) => Shard): Inspectable {
  const { names, link } = context
  const inspect = (key: Key, call: ScriptCall): Promise<Entry | undefined> =>
    whenFit(() => shardOf(key).inspect(key, call, (reply) => readEntry(key, reply)))
  const show = (key: Key): Promise<Entry | undefined> => inspect(key, lookCall(names.entryOf(key)))
  return {
    show,
    list: (filter) =>
      list(context, show, filter).catch((error: unknown) => Promise.reject(storeError(error, 'list entries', 'no'))),
    mend: (key, action, reason) => inspect(key, mendCall(names.entryOf(key), { action, reason, ...auditKept })),
    async audit(key) {
      const name = names.of(key).audit
      const records = await whenFit(() => link.send(name, ['LRANGE', name, '0', '-1'])).catch((error: unknown) => {
        throw storeError(error, `read the audit records of ${describeKey(key)}`, 'no')
      })
      return (records as Buffer[]).map((record) => readAudit(key, record))
    },
  }
}

async function list(
  context: RedisContext,
  show: (key: Key) => Promise<Entry | undefined>,
  { scope, state, after, limit }: EntryFilter,
): Promise<readonly Entry[]> {
  const found: Entry[] = []
  let from = after
  for (;;) {
    const keys = await firstKeys(context, scope, from)
    for (let start = 0; start < keys.length && found.length < limit; start += limit) {
      const entries = await Promise.all(keys.slice(start, start + limit).map(show))
      found.push(
        ...entries.filter((each) => each !== undefined && (!state || each.state === state)).map((each) => each!),
      )
    }
    if (found.length >= limit || keys.length < namesMax) return found.slice(0, limit)
    from = keys.at(-1)
  }
}

/** The first of all keys after `from`, in their order. */
async function firstKeys(
  { link, names }: RedisContext,
  scope: string | undefined,
  from: Key | undefined,
): Promise<readonly Key[]> {
  let first: Key[] = []
  // SCAN may return a name twice.
  const trim = (): void => {
    first = first.sort(inOrder).filter((key, index) => index === 0 || inOrder(key, first[index - 1]!) !== 0)
    first.length = Math.min(first.length, namesMax)
  }
  for (const send of await link.primaries()) {
    for await (const name of scan(send, names.pattern(scope))) {
      const key = names.keyOf(name)
      if (key && (!from || inOrder(key, from) > 0)) first.push(key)
      if (first.length === 2 * namesMax) trim()
    }
  }
  trim()
  return first
}

export async function* scan(send: Send, pattern: string): AsyncGenerator<string> {
  let cursor = '0'
  do {
    const [next, found] = (await send(['SCAN', cursor, 'MATCH', pattern, 'COUNT', scanCount])) as [Buffer, Buffer[]]
    for (const name of found) yield name.toString()
    cursor = String(next)
  } while (cursor !== '0')
}

function inOrder(a: Key, b: Key): number {
  return compare(a.scope, b.scope) || compare(a.id, b.id)
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0
}
