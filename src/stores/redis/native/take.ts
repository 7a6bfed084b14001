// A claim by native commands: a name is taken if nothing is there, else what is there is shown. With its check that is one script of a few
// lines, for one claim or several: one command costs this process and its server less than `SET … NX GET` and the check one after the other.
// Where a replay is expected, and needs no check, it is the command alone.

import type { RedisArgument } from '../../../clients/redis.ts'
import { scriptOf } from '../scripts.ts'
import type { Script } from '../scripts.ts'

export interface Taking {
  readonly name: string
  readonly entry: string
  /** When the server may forget the entry, in milliseconds since 1970. */
  readonly until: string
}

type Command = readonly RedisArgument[]

export interface TakeCommands {
  readonly commands: readonly Command[]
  /** What is at the place of this claim: null if it was taken. */
  foundIn(raw: readonly unknown[], at: number): unknown
  /** The replies to what came along. */
  restOf(raw: readonly unknown[]): readonly unknown[]
}

/** One claim without its check, and whatever else is asked. */
export function takeUnchecked({ name, entry, until }: Taking, others: readonly Command[]): TakeCommands {
  return {
    commands: [['SET', name, entry, 'NX', 'GET', 'PXAT', until], ...others],
    foundIn: ([reply]) => reply,
    restOf: (raw) => raw.slice(1),
  }
}

export const takeScript: Script = scriptOf(/* lua */ `local told = { false, false, false }
for i = 4, #KEYS do
  told[i] = redis.call('SET', KEYS[i], ARGV[2 * i - 7], 'NX', 'GET', 'PXAT', ARGV[2 * i - 6])
end
told[1] = redis.call('INCR', KEYS[1])
told[2] = redis.call('GET', KEYS[2])
told[3] = redis.call('GET', KEYS[3])
return told`)

/**
 * The claims, followed by their check: the first of its commands counts in the mark, the second looks at register and floor. `evaluate` names
 * the script to the server.
 */
export function takeChecked(
  taken: readonly Taking[],
  [count, look, ...others]: readonly Command[],
  evaluate: Command,
): TakeCommands {
  const command: RedisArgument[] = [...evaluate, `${taken.length + 3}`, count![1]!, look![1]!, look![2]!]
  for (const { name } of taken) command.push(name)
  for (const { entry, until } of taken) command.push(entry, until)
  return {
    commands: [command, ...others],
    foundIn: ([reply], at) => (Array.isArray(reply) ? (reply as readonly unknown[])[at + 3] : reply),
    restOf([reply, ...rest]) {
      if (!Array.isArray(reply)) return [reply, reply, ...rest]
      const [mark, register, floor] = reply as readonly unknown[]
      return [mark, [register, floor], ...rest]
    },
  }
}
