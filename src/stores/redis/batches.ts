// Brings calls to the scripts: calls of one moment share one command, and in a Cluster each bucket has its own lane, so that a
// primary that is down holds up only its own keys. A call that failed may have happened. Its token tells.

import assert from 'node:assert/strict'
import type { Clock } from '../../core/clock.ts'
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
import type { EntryReply, ScriptCall } from './entries.ts'
import { headingPlaces, noBytes, numberAt, recordTail, valueNames, writerOf } from './places.ts'
import { isServerError, runScript, unavailable } from './scripts.ts'
import type { RedisContext } from './scripts.ts'

/** Does the work at once, or after the servers have been checked. */
export type WhenFit = <T>(work: () => Promise<T>) => Promise<T>

/** Brings a call to its script, and reads the reply to it. */
export type Ask<Reply> = <T>(key: Key, call: ScriptCall, read: (reply: Reply) => T) => Promise<Awaited<T>>

/** One script for each phase. */
export interface Shard {
  readonly claim: Ask<EntryReply>
  /** Settle and release. */
  readonly write: Ask<Fenced>
  /** The writes of heartbeats, which wait for no other call. */
  readonly extend: Ask<Fenced>
  readonly inspect: Ask<EntryReply>
}

// A script costs some 9 µs and each call in it 3 to 8. Beyond 64 there is little left to share, and every other client waits for
// a script to end, half a millisecond then.
const batchMax = 64
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
  const { clock } = context.calls
  const phase = <Reply>(
    script: PhaseScript,
    take: (raw: never, nowMs: number) => Reply,
    atOnceMax = dispatchesMax,
  ): Ask<Reply> => {
    const dispatching: Dispatching<Reply> = { context, watch, time, script, take: take as Dispatching<Reply>['take'] }
    const enter = lane<WaitingCall, Reply | Error>({
      dispatch: (batch) => dispatchInTime(dispatching, batch),
      batchMax,
      dispatchesMax: atOnceMax,
    })
    // One promise per call beside the lane's: at this rate each of them counts.
    return (key, call, read) =>
      enter({ call, sinceMs: clock.elapsed() }).then((reply) => {
        if (!(reply instanceof Error)) return read(reply)
        if (reply.message.includes('UNREADABLE entry')) throw unreadable(key)
        throw unavailable(`${call.what} ${describeKey(key)}`, reply)
      }) as Promise<never>
  }
  const withTime = (bytes: Buffer, nowMs: number): EntryReply => ({ bytes, nowMs })
  const write = phase(writeScript, fencedOf)
  return {
    claim: phase(claimScript, withTime),
    write,
    extend: phase(writeScript, fencedOf, heartbeatDispatchesMax),
    inspect: phase(inspectScript, withTime),
  }
}

function fencedOf(isDone: number): Fenced {
  return isDone === 1 ? 'done' : 'lost'
}

interface ServerTime {
  /** A moment of this process's count as a time on the server's clock, or the end of time while that clock is unknown. */
  at(elapsedMs: number): number
  heard(serverMs: number): void
}

// NTP slews a clock by up to 500 ppm, and the server's likewise. After an idle week that is ten minutes.
const driftMax = 0.002

function serverTime(clock: Clock): ServerTime {
  // How far the server's clock is ahead of our count of milliseconds.
  let aheadMs: number | undefined
  let heardAtMs = 0
  return {
    at(elapsedMs) {
      if (aheadMs === undefined || elapsedMs === Infinity) return Number.MAX_SAFE_INTEGER
      return Math.ceil(aheadMs + elapsedMs + (elapsedMs - heardAtMs) * driftMax)
    },
    heard(serverMs) {
      heardAtMs = clock.elapsed()
      aheadMs = serverMs - heardAtMs
    },
  }
}

interface Dispatching<Reply> {
  readonly context: RedisContext
  /** When the command times out. A claim that arrives later is not granted. */
  readonly untilMs?: number
  readonly watch: DataLossWatch
  readonly time: ServerTime
  readonly script: PhaseScript
  take(raw: unknown, nowMs: number): Reply
}

interface WaitingCall {
  readonly call: ScriptCall
  readonly sinceMs: number
}

/**
 * Sends what its caller still waits for. A server that hangs holds up the calls behind it. When the server is back, their callers
 * no longer wait: a claim among them would be granted to no caller.
 */
async function dispatchInTime<Reply>(
  dispatching: Dispatching<Reply>,
  batch: readonly WaitingCall[],
): Promise<readonly (Reply | Error)[]> {
  const { clock, timeoutMs } = dispatching.context.calls
  const nowMs = clock.elapsed()
  const isLate = ({ sinceMs }: WaitingCall): boolean => nowMs - sinceMs >= timeoutMs
  // The first to come is the first in the batch.
  if (!isLate(batch[0]!)) {
    const calls = batch.map(({ call }) => call)
    return dispatch({ ...dispatching, untilMs: nowMs + timeoutMs }, calls)
  }
  const late = batch.filter(isLate)
  const inTime = batch.slice(late.length)
  const replies = inTime.length === 0 ? [] : await dispatchInTime(dispatching, inTime)
  const error = (sinceMs: number): Error =>
    new Error(`it waited ${Math.floor(nowMs - sinceMs)} ms behind calls without a reply, and was not sent`)
  return [...late.map(({ sinceMs }) => error(sinceMs)), ...replies]
}

async function dispatch<Reply>(
  dispatching: Dispatching<Reply>,
  batch: readonly ScriptCall[],
): Promise<readonly (Reply | Error)[]> {
  if (batch.length > 1 && bytesIn(batch) > bytesMax) return eachAlone(dispatching, batch)
  try {
    return await send(dispatching, batch)
  } catch (error) {
    const failure = error instanceof Error ? error : new Error(String(error))
    if (batch.length === 1 || !isServerError(error)) return batch.map(() => failure)
    // One call that the server refuses (out of memory, a foreign value under a name) must not fail the others. What was
    // done before it stays done, and recognises itself.
    return eachAlone(dispatching, batch)
  }
}

async function eachAlone<Reply>(
  dispatching: Dispatching<Reply>,
  batch: readonly ScriptCall[],
): Promise<readonly (Reply | Error)[]> {
  return (await Promise.all(batch.map((call) => dispatch(dispatching, [call])))).flat()
}

function bytesIn(batch: readonly ScriptCall[]): number {
  return batch.reduce((sum, { bytes }) => sum + (bytes?.length ?? 0), 0)
}

async function send<Reply>(
  { context, watch, time, script, take, untilMs = Infinity }: Dispatching<Reply>,
  batch: readonly ScriptCall[],
): Promise<readonly Reply[]> {
  const keys: string[] = [...watch.keys]
  for (const call of batch) keys.push(call.name)
  const { records, bytes, durations } = recordsOf(script, batch)
  let known = watch.known()
  const values = (): RedisArgument[] => {
    known = watch.known()
    const notAfterMs = `${time.at(untilMs)}`
    const named = { notAfterMs, ...watch.values(known), records, bytes }
    return [...valueNames.map((name) => named[name]), ...durations]
  }
  const learn = (reply: unknown): number => {
    const heading = (reply as [Buffer])[0].toString('latin1')
    const nowMs = numberAt(heading, headingPlaces.now)
    time.heard(nowMs)
    watch.learn(known, heading)
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
