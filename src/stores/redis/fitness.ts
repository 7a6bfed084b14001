// What a server must be like for the promise to hold: it may not evict, it must keep its data on disk, and it must know the
// commands we use. Whoever runs one that is not like that has to say so; what cannot be looked at is not assumed.

import { OnceError } from '../../core/errors.ts'
import type { RedisLink, Send } from '../../clients/redis.ts'

export interface Accepted {
  readonly eviction: 'refuse' | 'accept'
  readonly durability: 'aof' | 'relaxed'
}

/** What a server says of itself; undefined where it does not say. */
export interface ServerFacts {
  readonly version: string | undefined
  readonly evictionPolicy: string | undefined
  readonly appendOnly: boolean | undefined
  readonly appendFsync: string | undefined
}

// SET … PXAT.
const versionMin = [6, 2] as const

/** Rejects with STORE_UNSAFE when any primary is not fit for what the user has not accepted. */
export async function checkServers(link: RedisLink, accepted: Accepted): Promise<void> {
  const primaries = await link.primaries()
  const facts = await Promise.all(primaries.map((send) => factsOf(send, accepted)))
  const objections = facts.flatMap((each) => objectionsTo(each, accepted))
  if (objections.length === 0) return
  throw new OnceError('STORE_UNSAFE', { message: [...new Set(objections)].join(' ') })
}

export async function factsOf(send: Send, accepted: Accepted): Promise<ServerFacts> {
  const info = await read(send, ['INFO'])
  const field = (name: string): string | undefined => new RegExp(`^${name}:(.*?)\\r?$`, 'm').exec(info ?? '')?.[1]
  // While it loads its append-only file, Redis says that it has none.
  if (field('loading') === '1') throw new Error('LOADING Redis is loading the dataset in memory')
  const appendOnly = field('aof_enabled')
  return {
    version: field('redis_version'),
    evictionPolicy: field('maxmemory_policy'),
    appendOnly: appendOnly === undefined ? undefined : appendOnly === '1',
    appendFsync: accepted.durability === 'aof' ? await setting(send, 'appendfsync') : undefined,
  }
}

export function objectionsTo(facts: ServerFacts, accepted: Accepted): readonly string[] {
  return [
    versionObjection(facts),
    accepted.eviction === 'accept' ? undefined : evictionObjection(facts),
    accepted.durability === 'relaxed' ? undefined : durabilityObjection(facts),
  ].filter((each) => each !== undefined)
}

function versionObjection({ version }: ServerFacts): string | undefined {
  const [major = 0, minor = 0] = (version ?? '').split('.').map(Number)
  const [majorMin, minorMin] = versionMin
  // A server that does not tell fails at the first script if it is too old: nothing is lost by that.
  if (version === undefined || major > majorMin || (major === majorMin && minor >= minorMin)) return undefined
  return `Redis ${version} is too old: the store needs ${versionMin.join('.')} or later, or any Valkey.`
}

function evictionObjection({ evictionPolicy }: ServerFacts): string | undefined {
  if (evictionPolicy === 'noeviction') return undefined
  if (evictionPolicy === undefined)
    return `Redis does not tell its maxmemory-policy. Allow INFO for this user, or say eviction: 'accept'.`
  return (
    `Redis evicts (maxmemory-policy ${evictionPolicy}): under memory pressure it would forget keys that have run, and run ` +
    `them again. Set maxmemory-policy noeviction, or say eviction: 'accept'.`
  )
}

function durabilityObjection({ appendOnly, appendFsync }: ServerFacts): string | undefined {
  const cure = `or say durability: 'relaxed' if you vouch for the server or accept the loss.`
  if (appendOnly === undefined) return `Redis does not tell whether it is durable. Allow INFO for this user, ${cure}`
  if (!appendOnly) {
    return `Redis keeps no append-only file: a crash loses every key since its last snapshot. Set appendonly yes, ${cure}`
  }
  if (appendFsync === undefined) return `Redis does not tell its appendfsync. Allow CONFIG GET for this user, ${cure}`
  if (appendFsync === 'no') {
    return `Redis never syncs its append-only file (appendfsync no): a power cut loses what the system had not written. Set appendfsync everysec or always, ${cure}`
  }
  return undefined
}

async function setting(send: Send, name: string): Promise<string | undefined> {
  // Names and values in turn; with the newer protocol a map, or an object of a client's making.
  const answer: unknown = await refusable(send(['CONFIG', 'GET', name]))
  if (Array.isArray(answer)) return answer.length < 2 ? undefined : String(answer[1])
  const entries = answer instanceof Map ? [...answer] : Object.entries(answer ?? {})
  const value: unknown = entries.find(([each]) => String(each) === name)?.[1]
  return value === undefined ? undefined : String(value)
}

async function read(send: Send, command: readonly string[]): Promise<string | undefined> {
  const answer = await refusable(send(command))
  return answer === undefined ? undefined : String(answer)
}

/** Undefined where the server refuses: managed ones do not know CONFIG, and users may lack permission. */
async function refusable(answer: Promise<unknown>): Promise<unknown> {
  try {
    return await answer
  } catch (error) {
    if (error instanceof Error && /^(NOPERM|ERR unknown|ERR .*(CONFIG|INFO))/i.test(error.message)) return undefined
    throw error
  }
}
