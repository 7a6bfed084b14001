// Brings calls to the script: calls of one moment share one command, and in a Cluster each bucket has a lane of its own, so
// that a primary that is down holds up nobody but its own keys. A call that failed may have happened; its token tells.

import { bounded } from '../core/store-call.ts'
import type { StoreCalls } from '../core/store-call.ts'
import { OnceError } from '../core/errors.ts'
import type { Key } from '../core/key.ts'
import { lane } from './lane.ts'
import type { RedisArgument, RedisLink } from './redis-client.ts'
import { unreadable } from './redis-entries.ts'
import type { Answer } from './redis-entries.ts'
import type { Names } from './redis-names.ts'
import { registerMemory } from './redis-register.ts'
import type { DataLoss, RegisterMemory } from './redis-register.ts'
import { claimScript, inspectScript, writeScript } from './redis-script.ts'
import type { Script } from './redis-script.ts'

export interface ScriptCall {
  readonly keys: readonly string[]
  readonly values: readonly RedisArgument[]
}

export interface RedisGround {
  readonly link: RedisLink
  readonly names: Names
  readonly calls: StoreCalls
  readonly instance: string
  readonly onLoss: string
  lost(loss: DataLoss): void
}

/** One a phase; each script has its own kind of calls. */
export interface Shard {
  claim(key: Key, call: ScriptCall): Promise<Answer>
  write(key: Key, call: ScriptCall): Promise<Answer>
  inspect(key: Key, call: ScriptCall): Promise<Answer>
}

// A script costs some 9 µs and each claim in it 3 to 7: beyond 32 there is little left to share, and everybody else waits
// for a script to end.
const batchMax = 32
// While the server works on one batch, the next is encoded and on its way.
const dispatchesMax = 4

/** The part of the dataset that a key is in: all of it, or in a Cluster its bucket. */
export function shardsOf(ground: RedisGround): (key: Key) => Shard {
  const { link, names } = ground
  const known = new Map<number | undefined, Shard>()
  return (key) => {
    const bucket = link.isCluster ? names.bucketOf(key) : undefined
    let shard = known.get(bucket)
    if (!shard) known.set(bucket, (shard = openShard(ground, bucket)))
    return shard
  }
}

function openShard(ground: RedisGround, bucket: number | undefined): Shard {
  const { names, instance, onLoss, calls } = ground
  const register = names.register(bucket)
  const memory = registerMemory({ register, instance, onLoss, clock: calls.clock })
  const shared = { register, mark: names.mark(bucket, instance), memory }
  const phase = (script: Script): Shard['claim'] => {
    const enter = lane<ScriptCall, Answer | Error>({
      dispatch: (batch) => dispatch(ground, { ...shared, script }, batch),
      batchMax,
      dispatchesMax,
    })
    return async (key, call) => {
      const answer = await enter(call)
      if (!(answer instanceof Error)) return answer
      throw answer.message.includes('UNREADABLE entry') ? unreadable(key) : answer
    }
  }
  return { claim: phase(claimScript), write: phase(writeScript), inspect: phase(inspectScript) }
}

interface Shared {
  readonly script: Script
  readonly register: string
  readonly mark: string
  readonly memory: RegisterMemory
}

async function dispatch(
  ground: RedisGround,
  shared: Shared,
  batch: readonly ScriptCall[],
): Promise<readonly (Answer | Error)[]> {
  try {
    return await send(ground, shared, batch)
  } catch (error) {
    const failure = unavailable(error)
    if (batch.length === 1 || !isAnswer(error)) return batch.map(() => failure)
    // One call that the server refuses (out of memory, a foreign value under a name) must not fail the others. What was
    // done before it stays done, and recognises itself.
    return (await Promise.all(batch.map((call) => dispatch(ground, shared, [call])))).flat()
  }
}

async function send(ground: RedisGround, shared: Shared, batch: readonly ScriptCall[]): Promise<readonly Answer[]> {
  const { script, register, mark, memory } = shared
  const head = memory.head(ground.calls.timeoutMs)
  const keys = [register, mark]
  const values: RedisArgument[] = [...head.values]
  for (const call of batch) {
    keys.push(...call.keys)
    values.push(...call.values)
  }
  const [state, ...answers] = (await runScript(ground, script, keys, values)) as Buffer[]
  const { nowMs, loss } = memory.learn(head, state!.toString('latin1'))
  if (loss) ground.lost(loss)
  return answers.map((bytes) => ({ bytes, nowMs }))
}

/** The first key decides which server it is. */
export async function runScript(
  { link, calls }: Pick<RedisGround, 'link' | 'calls'>,
  script: Script,
  keys: readonly string[],
  values: readonly RedisArgument[],
): Promise<unknown> {
  const command = (name: 'EVAL' | 'EVALSHA'): Promise<unknown> =>
    link.send(keys[0]!, [name, name === 'EVAL' ? script.source : script.sha, `${keys.length}`, ...keys, ...values])
  return bounded(calls, () =>
    command('EVALSHA').catch((error: unknown) => {
      // The server was restarted, or somebody flushed its scripts.
      if (error instanceof Error && error.message.startsWith('NOSCRIPT')) return command('EVAL')
      throw error
    }),
  )
}

/** An error that the server answered with begins with a word in capitals: OOM, READONLY, WRONGTYPE. */
function isAnswer(error: unknown): boolean {
  return error instanceof Error && /^[A-Z]{2,} /.test(error.message)
}

export function unavailable(cause: unknown): OnceError {
  if (cause instanceof OnceError) return cause
  const why = cause instanceof Error ? cause.message || cause.name : String(cause)
  return new OnceError('STORE_UNAVAILABLE', {
    message: `Redis did not do what it was asked: ${why}. Check that it is up, reachable and takes writes.`,
    cause,
  })
}
