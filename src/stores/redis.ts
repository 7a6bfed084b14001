// Redis and Valkey. A native command or a script decides each call, calls of one moment share a batch, and a replay is one
// command. Entries carry their own time to live: Redis forgets them by itself, and there is nothing to sweep.
//
// What it cannot promise: an acknowledged write is lost when Redis loses it (a power cut within the last second of the
// append-only file, a replica that was behind and is promoted). The store notices and refuses new claims: see docs/stores.md.
//
// How it keeps the invariants, and what that costs:
// - one script per phase, time by `TIME` inside it, token and fence checked in each. 1,024 hash-tag buckets, the same names with
//   and without a Cluster. The same scripts read and write a register and a write counter. So the store finds out a server that
//   came back empty or older, publishes an event, and refuses new keys until the quarantine ends. A test reproduces what Redis
//   cannot promise (a lagging replica that is promoted). Scripts make the names of outcome and audit from that of the entry (same
//   slot), so a server that insists on declared keys will not do. Costs: server-side Lua (docs/stores.md, figures).
// - on one connection that keeps its order (redis/native.ts), `SET NX GET` and `SET IFEQ` (or a compare and set in Lua) write
//   the same entries, followed by a check of register and mark. Costs: the server's clock is known in bounds only, and a grant may
//   have to be taken back.

import { systemClock, systemRandom } from '../core/clock.ts'
import type { Clock } from '../core/clock.ts'
import { OnceError } from '../core/errors.ts'
import { describeKey } from '../core/key.ts'
import type { Key } from '../core/key.ts'
import { checkOptions, oneOf, optional, positiveMs, withMethods } from '../core/options.ts'
import type { Rule } from '../core/options.ts'
import { bounded } from '../core/timed-call.ts'
import type { Claim, ClaimRequest, Fenced, Inspectable, Store, Verdict } from '../core/store.ts'
import { linkTo, offerRedis } from '../clients/redis.ts'
import type { RedisClient, RedisServers } from '../clients/redis.ts'
import { shardsOf } from './redis/batches.ts'
import type { Shard, WhenFit } from './redis/batches.ts'
import { quarantineOf } from './redis/data-loss.ts'
import type { Quarantinable, QuarantineContext } from './redis/data-loss.ts'
import {
  claimCall,
  extendCall,
  nativeSettleCall,
  readVerdict,
  rememberedName,
  releaseCall,
  settleCall,
} from './redis/entries.ts'
import type { ScriptCall } from './redis/entries.ts'
import { checkServers } from './redis/fitness.ts'
import type { Accepted, NativeAbilities } from './redis/fitness.ts'
import { inspectionOf, scan } from './redis/inspection.ts'
import { escapeGlob, namesUnder } from './redis/names.ts'
import { runScript, scriptOf, storeError } from './redis/scripts.ts'
import type { CommandsInUse, Script } from './redis/scripts.ts'

export type { RedisClient } from '../clients/redis.ts'
export { dataLossChannel, isQuarantinable } from './redis/data-loss.ts'
export type { DataLoss, Quarantinable, Quarantine } from './redis/data-loss.ts'
export { redisFitness } from './redis/fitness.ts'

export interface RedisStoreOptions {
  /** A connected client of node-redis or ioredis: one server, a pool, Sentinel or Cluster. It stays yours to close. */
  readonly client: RedisClient
  /** The beginning of all names. Default onceonly. */
  readonly prefix?: string
  /** A server that evicts is refused, unless you accept that keys which have run may run again. Default refuse. */
  readonly eviction?: 'refuse' | 'accept'
  /** A server without an append-only file is refused, unless you vouch for it or accept the loss. Default aof. */
  readonly durability?: 'aof' | 'relaxed'
  /** When Redis has lost data: refuse new claims until it is looked at, or only publish it. Default quarantine. */
  readonly onDataLoss?: 'quarantine' | 'report'
  /** Ends a quarantine after this time, for when no client retries what may have been lost. Default: a person ends it. */
  readonly quarantineMs?: number
  /** The bound on any one command. Default 4 s, below the 5 s of storeTimeoutMs, so that the error of this store is seen. */
  readonly timeoutMs?: number
  readonly clock?: Clock
}

export interface RedisStore extends Store, Inspectable, Quarantinable {}

const prefixRule: Rule = (value) =>
  typeof value === 'string' && /^[\w.:-]{1,64}$/.test(value)
    ? undefined
    : '1 to 64 letters, digits, underscores, dots, colons and dashes'

const rules = {
  client: () => undefined, // checked by linkTo, which knows what each kind must have
  prefix: optional(prefixRule),
  eviction: optional(oneOf('refuse', 'accept')),
  durability: optional(oneOf('aof', 'relaxed')),
  onDataLoss: optional(oneOf('quarantine', 'report')),
  quarantineMs: optional(positiveMs),
  timeoutMs: optional(positiveMs),
  clock: optional(withMethods('now', 'elapsed', 'schedule')),
}

/**
 * Keeps keys in Redis or Valkey, with a client of node-redis or ioredis that stays yours to connect and to close.
 *
 * @example
 * import { createClient } from 'redis'
 * import { createOnce } from 'onceonly'
 * import { redisStore } from 'onceonly/redis'
 *
 * const client = await createClient({ url: 'redis://localhost:6379' }).connect()
 * const once = createOnce({ store: redisStore({ client }), scope: 'payments' })
 */
export function redisStore(options: RedisStoreOptions): RedisStore {
  checkOptions('redisStore', options, rules)
  const context = contextOf(options)
  const { names } = context
  const whenFit = serversChecked(context, options)
  const shardOf = shardsOf(context)
  const nameOf = (held: Claim): string => rememberedName(held) ?? names.entryOf(held.key)
  const write = (key: Key, call: ScriptCall): Promise<Fenced> =>
    whenFit(() => shardOf(key).write(key, call, (fenced) => fenced))
  const store: RedisStore = {
    name: 'redis',
    claim(key, request) {
      const call = claimCall(names.entryOf(key), request)
      return whenFit(() => claim(shardOf(key), { key, request, call, timeoutMs: context.calls.timeoutMs }))
    },
    extend(held, leaseMs) {
      const call = extendCall(nameOf(held), held, leaseMs)
      return whenFit(() => shardOf(held.key).extend(held.key, call, (fenced) => fenced))
    },
    settle: (held, outcome, retention) =>
      write(
        held.key,
        (context.commands.writes && nativeSettleCall(held, outcome, retention)) ||
          settleCall(nameOf(held), held, outcome, retention),
      ),
    release: (held, how) => write(held.key, releaseCall(nameOf(held), held, how)),
    ...inspectionOf(context, whenFit, shardOf),
    ...quarantineOf(context),
  }
  return offerRedis(store, placeOf(context, whenFit, options.prefix ?? defaultPrefix))
}

const defaultPrefix = 'onceonly'

function placeOf(context: QuarantineContext, whenFit: WhenFit, prefix: string): RedisServers {
  const scripts = new Map<string, Script>()
  const known = (source: string): Script => {
    const script = scripts.get(source) ?? scriptOf(source)
    scripts.set(source, script)
    return script
  }
  return {
    prefix,
    run: ({ script, key, values, what, executed }) =>
      whenFit(() => runScript(context, { script: known(script), keys: [key], values })).catch((error: unknown) =>
        Promise.reject(storeError(error, what, executed)),
      ),
    async *names(beginning) {
      try {
        for (const send of await context.link.primaries()) yield* scan(send, `${escapeGlob(beginning)}*`)
      } catch (error) {
        throw storeError(error, 'list the sessions', 'no')
      }
    },
  }
}

interface FoundCommands extends CommandsInUse {
  found(abilities: NativeAbilities): void
}

function commandsInUse(): FoundCommands {
  const none: Pick<CommandsInUse, 'claims' | 'writes'> = { claims: false, writes: undefined }
  let use = none
  return {
    get claims() {
      return use.claims
    },
    get writes() {
      return use.writes
    },
    // Only what a native command has written is settled by one.
    found: ({ nxGet, ifEq }) => void (use = nxGet ? { claims: true, writes: ifEq ? 'ifeq' : 'script' } : none),
    none: () => void (use = none),
  }
}

interface StoreContext extends QuarantineContext {
  readonly commands: FoundCommands
}

function contextOf(options: RedisStoreOptions): StoreContext {
  const clock = options.clock ?? systemClock
  const quarantine = options.quarantineMs === undefined ? 'on' : `${options.quarantineMs}`
  return {
    link: linkTo(options.client),
    names: namesUnder(options.prefix ?? defaultPrefix),
    calls: { clock, storeName: 'redis', timeoutMs: options.timeoutMs ?? 4_000 },
    commands: commandsInUse(),
    instance: systemRandom.uuid(),
    onLoss: options.onDataLoss === 'report' ? '-' : quarantine,
  }
}

/** Checks the servers before the first call, and again when the client comes back: it may be another server. */
function serversChecked(context: StoreContext, options: RedisStoreOptions): WhenFit {
  const accepted: Accepted = { eviction: options.eviction ?? 'refuse', durability: options.durability ?? 'aof' }
  let checking: Promise<void> | undefined
  let areFit = false
  const check = (): Promise<void> => {
    const mine = bounded(context.calls, () => checkServers(context.link, accepted)).then(
      (abilities) => {
        areFit = checking === mine
        if (areFit) context.commands.found(abilities)
      },
      (error: unknown) => {
        if (checking === mine) checking = undefined
        throw storeError(error, 'say whether it is fit', 'no')
      },
    )
    return mine
  }
  const client = options.client as { on?: (event: 'ready', listener: () => void) => unknown }
  client.on?.('ready', () => {
    checking = undefined
    areFit = false
  })
  return (work) => (areFit ? work() : (checking ??= check()).then(work))
}

interface RedisClaim {
  readonly key: Key
  readonly request: ClaimRequest
  readonly call: ScriptCall
  readonly timeoutMs: number
}

// A claim that has lain somewhere until its caller had given up must not be granted: no caller would be there to run it. It is
// late, too, when the server's clock was set since the store last heard of it. Hence the second try.
function claim(shard: Shard, claiming: RedisClaim, tries = 2): Promise<Verdict> {
  const { key, request, call, timeoutMs } = claiming
  return shard.claim(key, call, (reply): Verdict | Promise<Verdict> => {
    const verdict = readVerdict(key, request, reply)
    if (verdict) return verdict
    if (tries > 1) return claim(shard, claiming, tries - 1)
    throw new OnceError('STORE_UNAVAILABLE', {
      message: `Redis received the claim of ${describeKey(key)} more than ${timeoutMs} ms after it was sent, so it was not granted. Retry.`,
    })
  })
}
