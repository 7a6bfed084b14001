// A claim by native commands: a name is taken if nothing is there, else what is there is shown. A lone claim is one
// `SET … NX GET`. Several are one script of a few lines with their check: one command costs this process a small part of what as many
// commands as claims do.

import type { RedisArgument } from '../../../clients/redis.ts'

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

/** The claims, followed by their check: the first of its commands counts in the mark, the second looks at register and floor. */
export function takeChecked(taken: readonly Taking[], check: readonly Command[]): TakeCommands {
  return taken.length === 1 ? takeEach(taken, check) : takeAll(taken, check)
}

/** The claims, and whatever else is asked. */
export function takeEach(taken: readonly Taking[], others: readonly Command[]): TakeCommands {
  return {
    commands: [...taken.map(({ name, entry, until }) => ['SET', name, entry, 'NX', 'GET', 'PXAT', until]), ...others],
    foundIn: (raw, at) => raw[at],
    restOf: (raw) => raw.slice(taken.length),
  }
}

/** Its text goes along each time: it is shorter than what it would cost to find out that the server does not know it. */
export const takeScript = /* lua */ `local told = { false, false, false }
for i = 4, #KEYS do
  told[i] = redis.call('SET', KEYS[i], ARGV[2 * i - 7], 'NX', 'GET', 'PXAT', ARGV[2 * i - 6])
end
told[1] = redis.call('INCR', KEYS[1])
told[2] = redis.call('GET', KEYS[2])
told[3] = redis.call('GET', KEYS[3])
return told`

function takeAll(taken: readonly Taking[], [count, look, ...others]: readonly Command[]): TakeCommands {
  const command: RedisArgument[] = ['EVAL', takeScript, `${taken.length + 3}`, count![1]!, look![1]!, look![2]!]
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
