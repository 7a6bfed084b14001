// Looking at entries and mending them. There is no index of the keys (it would cost every claim, and would be in another
// slot of a Cluster): `list` walks over all names with SCAN, which blocks nobody but takes its time.

import { releaseOrForget } from '../../core/entry.ts'
import type { Key } from '../../core/key.ts'
import type { Entry, EntryFilter, Inspectable } from '../../core/store.ts'
import type { Checked, RedisGround, ScriptCall, Shard } from './batches.ts'
import { unavailable } from './batches.ts'
import type { Send } from '../../clients/redis.ts'
import { lookCall, mendCall, readAudit, readEntry } from './entries.ts'

// Some 2 MB of names at a time, whatever the size of the dataset; a list that needs more of them walks again.
const namesMax = 10_000
// A SCAN of a thousand takes about a third of a millisecond of the server.
const scanCount = '1000'
// Mending is done by hand: a hundred records of one key are plenty, and a year is longer than anybody asks.
const auditKept = { keepMs: 400 * 24 * 3_600_000, records: 100 }

export function inspectionOf(
  ground: Omit<RedisGround, 'lost'>,
  checked: Checked,
  shardOf: (key: Key) => Shard,
): Inspectable {
  const { names, link } = ground
  const inspect = (key: Key, call: ScriptCall): Promise<Entry | undefined> =>
    checked(() => shardOf(key).inspect(key, call, (answer) => readEntry(key, answer)))
  const show = (key: Key): Promise<Entry | undefined> => inspect(key, lookCall(names.entryOf(key)))
  return {
    show,
    list: (filter) => list(ground, show, filter).catch((error: unknown) => Promise.reject(unavailable(error))),
    mend: (key, action, reason) =>
      inspect(key, mendCall(names.entryOf(key), { action: releaseOrForget(action), reason, ...auditKept })),
    async audit(key) {
      const name = names.of(key).audit
      const records = await checked(() => link.send(name, ['LRANGE', name, '0', '-1'])).catch((error: unknown) => {
        throw unavailable(error)
      })
      return (records as Buffer[]).map((record) => readAudit(key, record))
    },
  }
}

async function list(
  ground: Omit<RedisGround, 'lost'>,
  show: (key: Key) => Promise<Entry | undefined>,
  { scope, state, after, limit }: EntryFilter,
): Promise<readonly Entry[]> {
  const found: Entry[] = []
  let from = after
  for (;;) {
    const keys = await firstKeys(ground, scope, from)
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
  { link, names }: Omit<RedisGround, 'lost'>,
  scope: string | undefined,
  from: Key | undefined,
): Promise<readonly Key[]> {
  let first: Key[] = []
  // SCAN may tell a name twice.
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

async function* scan(send: Send, pattern: string): AsyncGenerator<string> {
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
