// A settle by native commands: the new entry takes the place of the one that its holder wrote, if that is still there, byte for byte.
// A lone settle is `SET … IFEQ` where the server has it. Otherwise a script of a few lines does it for a whole batch, with IFEQ where there is
// one, and counts in the mark as well: one command costs this process a small part of what as many commands as settles do.

import type { RedisArgument } from '../../../clients/redis.ts'

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

/** The swaps, followed by their check, whose first command counts in the mark. */
export function swapCommands(swaps: readonly Swap[], check: readonly Command[], way: 'ifeq' | 'script'): SwapCommands {
  return way === 'ifeq' && swaps.length === 1 ? byIfEq(swaps, check) : byScript(swaps, check, swapScripts[way])
}

function byIfEq(swaps: readonly Swap[], check: readonly Command[]): SwapCommands {
  return {
    commands: [
      ...swaps.map(({ name, expected, entry, until }) => ['SET', name, entry, 'IFEQ', expected, 'PXAT', until]),
      ...check,
    ],
    checkOf: (raw) => raw.slice(swaps.length),
    isDone: (raw, at) => !(raw[at] instanceof Error) && String(raw[at]) === 'OK',
  }
}

// Its text goes along each time: it is shorter than what it would cost to find out that the server does not know it.
const scriptOf = (swap: string): string => /* lua */ `local told = {}
for i = 2, #KEYS do
  local at = 3 * i - 5
  ${swap}
  told[i] = isThere and 1 or 0
end
told[1] = redis.call('INCR', KEYS[1])
return told`

/** With IFEQ the server compares by itself: what is there does not become a text of Lua, and one call does it. */
export const swapScripts: Readonly<Record<'ifeq' | 'script', string>> = {
  ifeq: scriptOf("local isThere = redis.call('SET', KEYS[i], ARGV[at + 1], 'IFEQ', ARGV[at], 'PXAT', ARGV[at + 2])"),
  script: scriptOf(`local isThere = redis.call('GET', KEYS[i]) == ARGV[at]
  if isThere then redis.call('SET', KEYS[i], ARGV[at + 1], 'PXAT', ARGV[at + 2]) end`),
}

function byScript(swaps: readonly Swap[], [count, ...others]: readonly Command[], script: string): SwapCommands {
  const mark = count![1]!
  const command: RedisArgument[] = ['EVAL', script, `${swaps.length + 1}`, mark]
  for (const { name } of swaps) command.push(name)
  for (const { expected, entry, until } of swaps) command.push(expected, entry, until)
  const toldIn = ([reply]: readonly unknown[]): readonly unknown[] => (Array.isArray(reply) ? reply : [reply])
  return {
    commands: [command, ...others],
    checkOf: (raw) => [toldIn(raw)[0], ...raw.slice(1)],
    isDone: (raw, at) => toldIn(raw)[at + 1] === 1,
  }
}
