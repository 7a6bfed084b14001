// A stream as one consumer of a group asks it. Redis keeps for each entry that it has handed out to whom, and how long ago (the pending
// entries). Replies come as bytes, in the form of RESP 2 or 3.

import type { RedisArgument, RedisLink } from '../../clients/redis.ts'
import type { Clock } from '../../core/clock.ts'
import { lane } from '../../core/lane.ts'
import { bounded } from '../../core/timed-call.ts'
import { asError } from '../failures.ts'
import type { StreamEntry } from './entry.ts'

export interface StreamPlace {
  readonly link: RedisLink
  readonly stream: string
  readonly group: string
  readonly consumerName: string
  readonly timeoutMs: number
  readonly clock: Clock
}

export interface StreamReader {
  /** Entries that no consumer of the group has had. */
  fresh(countMax: number): Promise<readonly StreamEntry[]>
  /** Entries after this one that this consumer has had and not acknowledged. Those that were trimmed have no fields. */
  own(after: string, countMax: number): Promise<readonly PendingEntry[]>
  /** Takes entries over that their consumers have left alone for this long. */
  claim(idleMs: number, from: string, countMax: number): Promise<Claimed>
  /** How often each entry has been handed out. */
  deliveries(entries: readonly StreamEntry[]): Promise<readonly (number | undefined)[]>
  acknowledge(id: string): Promise<void>
  /** Tells Redis that these are being handled. Returns each one's error. */
  extend(entries: readonly StreamEntry[]): Promise<readonly (Error | undefined)[]>
  /** Makes the group, and the stream, if they are not there: from the first entry on. */
  createGroup(): Promise<void>
}

export type PendingEntry = StreamEntry | { readonly id: string; readonly fields: undefined }

export interface Claimed {
  readonly entries: readonly StreamEntry[]
  /** Pending entries that the stream does not have any more: it was trimmed. */
  readonly trimmed: readonly string[]
  /** Where to go on. It is the beginning when all have been looked at. */
  readonly next: string
}

/** Before every entry. */
export const beginning = '0-0'

// More than that in one command would keep Redis from others for longer than it saves.
const acknowledgementsMax = 100

export function streamOf(place: StreamPlace): StreamReader {
  const { stream, group, consumerName } = place
  const ask = commandsTo(place)
  const read = async (from: string, countMax: number): Promise<readonly PendingEntry[]> => {
    const source = ['GROUP', group, consumerName, 'COUNT', `${countMax}`, 'STREAMS', stream, from]
    return entriesIn(entriesOfOneStream(await ask(['XREADGROUP', ...source])))
  }
  const acknowledge = lane<string, undefined>({
    batchMax: acknowledgementsMax,
    dispatchesMax: 1,
    async dispatch(ids) {
      await ask(['XACK', stream, group, ...ids])
      return ids.map(() => undefined)
    },
  })
  return {
    fresh: async (countMax) => (await read('>', countMax)).filter(isWhole),
    own: read,
    async claim(idleMs, from, countMax) {
      const which = [stream, group, consumerName, `${idleMs}`, from, 'COUNT', `${countMax}`]
      const [next, entries, deleted = []] = (await ask(['XAUTOCLAIM', ...which])) as [unknown, unknown, unknown[]?]
      return { entries: entriesIn(entries).filter(isWhole), trimmed: deleted.map(String), next: String(next) }
    },
    deliveries: (entries) =>
      Promise.all(
        entries.map(async ({ id }) => {
          const [found] = (await ask(['XPENDING', stream, group, id, id, '1'])) as [unknown[]?]
          return found === undefined ? undefined : Number(found[3])
        }),
      ),
    acknowledge: async (id) => void (await acknowledge(id)),
    async extend(entries) {
      try {
        // JUSTID: it is no delivery, and is not counted as one.
        await ask(['XCLAIM', stream, group, consumerName, '0', ...entries.map(({ id }) => id), 'JUSTID'])
        return entries.map(() => undefined)
      } catch (error) {
        return entries.map(() => asError(error))
      }
    },
    async createGroup() {
      try {
        await ask(['XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM'])
      } catch (error) {
        if (codeOf(error) !== 'BUSYGROUP') throw error
      }
    },
  }
}

/** Bounded in time: a client that has lost its server keeps a command until it has another. */
export function commandsTo(
  place: Pick<StreamPlace, 'link' | 'stream' | 'timeoutMs' | 'clock'>,
): (command: readonly RedisArgument[]) => Promise<unknown> {
  const { link, stream, timeoutMs, clock } = place
  const calls = { clock, storeName: 'redis', timeoutMs }
  return (command) => bounded(calls, () => link.send(stream, command))
}

/** Redis begins its errors with a code: NOGROUP, BUSYGROUP, WRONGTYPE. */
export function codeOf(error: unknown): string | undefined {
  return error instanceof Error ? /^[A-Z]{2,}(?= |$)/.exec(error.message)?.[0] : undefined
}

const isWhole = (entry: PendingEntry): entry is StreamEntry => entry.fields !== undefined

// RESP 2 has a list of pairs of stream and entries. RESP 3 has a map, which a client may give as an object or a Map.
function entriesOfOneStream(reply: unknown): unknown {
  if (reply === null || reply === undefined) return []
  if (Array.isArray(reply)) {
    const [first] = reply as unknown[]
    return Array.isArray(first) ? (first as unknown[])[1] : (reply as unknown[])[1]
  }
  return reply instanceof Map ? [...reply.values()][0] : Object.values(reply as object)[0]
}

function entriesIn(list: unknown): PendingEntry[] {
  // Redis 6 has null for an entry that was trimmed.
  return ((list ?? []) as ([Buffer, Buffer[] | null] | null)[]).flatMap((entry): PendingEntry[] => {
    if (entry === null) return []
    const [id, values] = entry
    if (values === null) return [{ id: id.toString(), fields: undefined }]
    const fields: Record<string, Buffer> = {}
    for (let at = 0; at + 1 < values.length; at += 2) fields[values[at]!.toString()] = values[at + 1]!
    return [{ id: id.toString(), fields }]
  })
}
