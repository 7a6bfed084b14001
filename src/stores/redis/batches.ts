// Brings calls to the server. Calls of one moment are one batch: native commands with one check where the server has them, else one
// command that runs a script. In a Cluster each bucket has its own lane, so that a primary that is down holds up only its own keys.
// A call that failed may have happened. Its token tells.

import assert from 'node:assert/strict'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import { lane } from '../../core/lane.ts'
import type { RedisArgument } from '../../clients/redis.ts'
import type { Fenced } from '../../core/store.ts'
import { dataLossWatches } from './data-loss.ts'
import type { DataLossWatch, QuarantineContext } from './data-loss.ts'
import { claimScript, inspectScript, writeScript } from './decisions.lua.ts'
import type { PhaseScript } from './decisions.lua.ts'
import { unreadable } from './entries.ts'
import type { EntryReply, NativeGrant, ScriptCall } from './entries.ts'
import { nativeCommands } from './native.ts'
import type { NativeBatch, TrustedConnection } from './native.ts'
import { headingPlaces, noBytes, numberAt, recordTail, valueNames, writerOf } from './places.ts'
import { errorOf, isServerError, runScript, storeError } from './scripts.ts'
import type { RedisContext } from './scripts.ts'
import { serverTime } from './time.ts'
import type { ServerTime } from './time.ts'

/** Does the work at once, or after the servers have been checked. */
export type WhenFit = <T>(work: () => Promise<T>) => Promise<T>

/** Brings a call to its script, and reads the reply to it. */
export type Ask<Reply> = <T>(key: Key, call: ScriptCall, read: (reply: Reply) => T) => Promise<Awaited<T>>

/** One script for each phase. */
export interface Shard {
  readonly claim: Ask<EntryReply | NativeGrant>
  /** Settle and release. */
  readonly write: Ask<Fenced>
  /** The writes of heartbeats, which wait for no other call. */
  readonly extend: Ask<Fenced>
  readonly inspect: Ask<EntryReply>
}

// A script costs some 9 µs and each call in it 3 to 8. Beyond 64 there is little left to share, and every other client waits for
// a script to end, half a millisecond then.
const batchMax = 64
// As one batch, the calls of 64 callers would keep the server and this process waiting for each other in turn: they do two thirds of what
// four batches of 16 do. Smaller ones cost more than they gain.
const batchMin = 16
// While the server works on one batch, the next is encoded and on its way.
const dispatchesMax = 4
// A heartbeat that waits behind commands without a reply can cost the lease, or be sent after its effect had to stop. There are
// few of them, one per third of a lease and running effect, so all of them may be under way.
const heartbeatDispatchesMax = Infinity
// Outcomes of a batch go as one value, which Redis refuses above 512 MB and Lua copies. Large ones share nothing worth that.
const bytesMax = 1_048_576

/** The part of the dataset that a key is in: all of it, or in a Cluster its bucket. */
export function shardsOf(context: QuarantineContext): (key: Key) => Shard {
  const { link, names } = context
  const watchOf = dataLossWatches(context)
  const known = new Map<number | undefined, Shard>()
  return (key) => {
    const bucket = link.isCluster ? names.bucketOf(key) : undefined
    let shard = known.get(bucket)
    if (!shard) known.set(bucket, (shard = openShard(context, watchOf(bucket))))
    return shard
  }
}

function openShard(context: RedisContext, watch: DataLossWatch): Shard {
  const time = serverTime(context.calls.clock)
  const ground = { context, watch, time, trusted: { is: undefined } }
  const byScript: Dispatching<Fenced> = { ...ground, script: writeScript, take: fencedOf }
  const native = nativeCommands({ ...ground, release: (calls) => dispatchByScript(byScript, calls) })
  const withTime = (bytes: unknown, nowMs: number): EntryReply => ({ bytes: bytes as Buffer, nowMs })
  const claimed = (bytes: unknown, nowMs: number): EntryReply => {
    const [letter] = bytes as Buffer
    if (letter === letters.granted || letter === letters.quarantined) native.hold(letter === letters.quarantined)
    return withTime(bytes, nowMs)
  }
  const write = phase({ ...byScript, native: native.writes })
  return {
    claim: phase({ ...ground, script: claimScript, take: claimed, native: native.claims }),
    write,
    extend: phase(byScript, heartbeatDispatchesMax),
    inspect: phase({ ...ground, script: inspectScript, take: withTime }),
  }
}

const letters = { granted: 'g'.charCodeAt(0), quarantined: 'q'.charCodeAt(0) }

function phase<Reply>(dispatching: Dispatching<Reply>, atOnceMax = dispatchesMax): Ask<Reply> {
  const { clock } = dispatching.context.calls
  const enter = lane<WaitingCall<Reply>, unknown>({
    dispatch: (batch) =>
      dispatchInTime(dispatching, batch, (replies) => replies.map((reply, at) => told(batch[at]!, reply))),
    batchMax,
    batchMin,
    dispatchesMax: atOnceMax,
    gatherTurns: clock,
  })
  // No promise per call beside the lane's: at this rate each of them counts.
  return (key, call, read) => enter({ key, call, read, sinceMs: clock.elapsed() }) as Promise<never>
}

/** What the caller gets. The failure of one call is a promise in its place, as it is no other's. */
function told<Reply>({ key, call, read }: WaitingCall<Reply>, reply: Reply | Error): unknown {
  try {
    if (!(reply instanceof Error)) return read(reply)
    if (reply.message.includes('UNREADABLE entry')) throw unreadable(key)
    const isUndone = reply instanceof NotSent || asks.has(call.what)
    throw storeError(reply, `${call.what} ${describeKey(key)}`, isUndone ? 'no' : 'unknown')
  } catch (error) {
    return Promise.reject(error as Error)
  }
}

/** Nothing runs by them before their reply is here. */
const asks: ReadonlySet<ScriptCall['what']> = new Set(['claim', 'show'])

function fencedOf(isDone: unknown): Fenced {
  return isDone === 1 ? 'done' : 'lost'
}

interface Dispatching<Reply> {
  readonly context: RedisContext
  readonly watch: DataLossWatch
  readonly time: ServerTime
  readonly trusted: TrustedConnection
  readonly script: PhaseScript
  take(raw: unknown, nowMs: number): Reply
  /** Undefined where the script is to decide. */
  readonly native?: (batch: readonly ScriptCall[]) => NativeBatch<Reply> | undefined
}

interface WaitingCall<Reply> {
  readonly key: Key
  readonly call: ScriptCall
  read(reply: Reply): unknown
  readonly sinceMs: number
}

/** What a batch resolves with, made of its replies. */
type Tell<Reply> = (replies: readonly (Reply | Error)[]) => readonly unknown[]

/**
 * Sends what its caller still waits for. A server that hangs holds up the calls behind it. When the server is back, their callers
 * no longer wait: a claim among them would be granted to no caller.
 */
function dispatchInTime<Reply>(
  dispatching: Dispatching<Reply>,
  batch: readonly WaitingCall<Reply>[],
  tell: Tell<Reply>,
): Promise<readonly unknown[]> {
  const { clock, timeoutMs } = dispatching.context.calls
  const nowMs = clock.elapsed()
  const isLate = ({ sinceMs }: WaitingCall<Reply>): boolean => nowMs - sinceMs >= timeoutMs
  // The first to come is the first in the batch.
  if (!isLate(batch[0]!)) {
    const calls = batch.map(({ call }) => call)
    return dispatch(dispatching, calls, nowMs + timeoutMs, tell)
  }
  const late = batch.filter(isLate).map(({ sinceMs }) => new NotSent(nowMs - sinceMs))
  const inTime = batch.slice(late.length)
  if (inTime.length === 0) return Promise.resolve(tell(late))
  return dispatchInTime(dispatching, inTime, (replies) => tell([...late, ...replies]))
}

class NotSent extends Error {
  constructor(waitedMs: number) {
    super(`it waited ${Math.floor(waitedMs)} ms behind calls without a reply, and was not sent`)
  }
}

/** Natively where that is possible, and by script what is left over. A claim that arrives after `untilMs` is not granted. */
function dispatch<Reply>(
  dispatching: Dispatching<Reply>,
  batch: readonly ScriptCall[],
  untilMs: number,
  tell: Tell<Reply>,
): Promise<readonly unknown[]> {
  const native = dispatching.native?.(batch)
  if (!native) return dispatchByScript(dispatching, batch, untilMs).then(tell)
  const { calls } = native
  const others = calls.length === batch.length ? [] : batch.filter((call) => !calls.includes(call))
  const byScript = others.length > 0 ? dispatchByScript(dispatching, others, untilMs) : undefined
  return native.send((replies) => {
    if (!byScript && !replies.includes(undefined)) return tell(replies as readonly (Reply | Error)[])
    return withScripted(replies).then(tell)
  })

  async function withScripted(replies: readonly (Reply | Error | undefined)[]): Promise<readonly (Reply | Error)[]> {
    const scripted = byScript ? await byScript : []
    const left = calls.filter((_, at) => replies[at] === undefined)
    const decided = left.length > 0 ? await dispatchByScript(dispatching, left, untilMs) : []
    return batch.map((call) => {
      const at = calls.indexOf(call)
      return at < 0 ? scripted[others.indexOf(call)]! : (replies[at] ?? decided[left.indexOf(call)]!)
    })
  }
}

async function dispatchByScript<Reply>(
  dispatching: Dispatching<Reply>,
  batch: readonly ScriptCall[],
  untilMs?: number,
): Promise<readonly (Reply | Error)[]> {
  if (batch.length > 1 && bytesIn(batch) > bytesMax) return eachAlone(dispatching, batch, untilMs)
  try {
    return await send(dispatching, batch, untilMs)
  } catch (error) {
    const failure = errorOf(error)
    if (batch.length === 1 || !isServerError(error)) return batch.map(() => failure)
    // One call that the server refuses (out of memory, a foreign value under a name) must not fail the others. What was
    // done before it stays done, and recognises itself.
    return eachAlone(dispatching, batch, untilMs)
  }
}

async function eachAlone<Reply>(
  dispatching: Dispatching<Reply>,
  batch: readonly ScriptCall[],
  untilMs?: number,
): Promise<readonly (Reply | Error)[]> {
  return (await Promise.all(batch.map((call) => dispatchByScript(dispatching, [call], untilMs)))).flat()
}

function bytesIn(batch: readonly ScriptCall[]): number {
  return batch.reduce((sum, { bytes }) => sum + (bytes?.length ?? 0), 0)
}

async function send<Reply>(
  { context, watch, time, trusted, script, take }: Dispatching<Reply>,
  batch: readonly ScriptCall[],
  untilMs = Infinity,
): Promise<readonly Reply[]> {
  const keys: string[] = [...watch.keys]
  for (const call of batch) keys.push(call.name)
  const { records, bytes, durations } = recordsOf(script, batch)
  let known = watch.known()
  let sent = time.here()
  let connection = context.link.connection?.()
  const values = (): RedisArgument[] => {
    known = watch.known()
    sent = time.here()
    connection = context.link.connection?.()
    const notAfterMs = `${time.at(untilMs)}`
    const named = { notAfterMs, ...watch.values(known), records, bytes }
    return [...valueNames.map((name) => named[name]), ...durations]
  }
  const learn = (reply: unknown): number => {
    const heading = (reply as [Buffer])[0].toString('latin1')
    const nowMs = numberAt(heading, headingPlaces.now)
    time.heard(nowMs, sent)
    watch.learn(known, heading)
    if (context.link.connection?.() === connection) trusted.is = connection
    return nowMs
  }
  // A reply that comes too late for its caller still tells what this dataset has acknowledged.
  const replies = (await runScript(context, { script, keys, values, late: learn })) as [Buffer, ...unknown[]]
  const nowMs = learn(replies)
  return batch.map((_, index) => take(replies[index + 1], nowMs))
}

interface Records {
  readonly records: string
  readonly bytes: RedisArgument
  readonly durations: readonly string[]
}

const tailText = writerOf(recordTail)

/** The records of all calls, their bytes one after the other, and the durations that occur, most often one. */
function recordsOf({ wordsLength }: PhaseScript, batch: readonly ScriptCall[]): Records {
  const durations: string[] = []
  const pieces: Uint8Array[] = []
  let records = ''
  for (const call of batch) {
    // One that is longer would shift all that follow, and they would be other calls.
    assert(call.words.length === wordsLength, `Bug! Expected ${wordsLength} characters, got "${call.words}".`)
    let at = durations.indexOf(call.durations)
    if (at < 0) at = durations.push(call.durations) - 1
    if (call.bytes) pieces.push(call.bytes)
    records += call.words + tailText({ durations: at + 1, bytes: call.bytes?.length ?? noBytes })
  }
  // Text where there are no bytes: a client writes each buffer by itself.
  return { records, bytes: pieces.length === 0 ? '' : Buffer.concat(pieces), durations }
}
