// A settle by native commands: the new entry takes the place of the one that its holder wrote, if that is still there, byte for byte.
// A script of a few lines does it for one settle or several, with `SET … IFEQ` where the server has it, and counts in the mark as well: one
// command costs this process and its server less than SET and INCR one after the other.

import type { RedisArgument } from '../../../clients/redis.ts'
import { scriptOf } from '../scripts.ts'
import type { Script } from '../scripts.ts'

export interface Swap {
  readonly name: string
  /** The entry as its holder wrote it. */
  readonly expected: string
  readonly entry: RedisArgument
  /** When the server may forget the entry, in milliseconds since 1970. */
  readonly until: string
}

type Command = readonly RedisArgument[]

export interface SwapCommands {
  readonly commands: readonly Command[]
  /** The replies to the check that came along. */
  checkOf(raw: readonly unknown[]): readonly unknown[]
  /** Whether the swap at this place was carried out. */
  isDone(raw: readonly unknown[], at: number): boolean
}

const scriptBy = (swap: string): Script =>
  scriptOf(/* lua */ `local told = {}
for i = 2, #KEYS do
  local at = 3 * i - 5
  ${swap}
  told[i] = isThere and 1 or 0
end
told[1] = redis.call('INCR', KEYS[1])
return told`)

/** With IFEQ the server compares by itself: what is there does not become a text of Lua, and one call does it. */
export const swapScripts: Readonly<Record<'ifeq' | 'script', Script>> = {
  ifeq: scriptBy("local isThere = redis.call('SET', KEYS[i], ARGV[at + 1], 'IFEQ', ARGV[at], 'PXAT', ARGV[at + 2])"),
  script: scriptBy(`local isThere = redis.call('GET', KEYS[i]) == ARGV[at]
  if isThere then redis.call('SET', KEYS[i], ARGV[at + 1], 'PXAT', ARGV[at + 2]) end`),
}

/** The swaps, followed by their check, whose first command counts in the mark. `evaluate` names the script to the server. */
export function swapCommands(
  swaps: readonly Swap[],
  [count, ...others]: readonly Command[],
  evaluate: Command,
): SwapCommands {
  const mark = count![1]!
  const command: RedisArgument[] = [...evaluate, `${swaps.length + 1}`, mark]
  for (const { name } of swaps) command.push(name)
  for (const { expected, entry, until } of swaps) command.push(expected, entry, until)
  const toldIn = ([reply]: readonly unknown[]): readonly unknown[] => (Array.isArray(reply) ? reply : [reply])
  return {
    commands: [command, ...others],
    checkOf: (raw) => [toldIn(raw)[0], ...raw.slice(1)],
    isDone: (raw, at) => toldIn(raw)[at + 1] === 1,
  }
}
