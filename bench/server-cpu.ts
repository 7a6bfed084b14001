// Processor time of everything that the bench has started: database servers and what they fork, proxies, services. A variant has the
// machine for itself during its round, so what all of them used in that time is the variant's.

import { readdirSync, readFileSync } from 'node:fs'

interface Process {
  readonly pid: number
  readonly parent: number
}

/** Nanoseconds of each thread so far, by `pid/thread`. */
export type Threads = ReadonlyMap<string, number>

/** Begins to measure; what is returned tells the milliseconds since then. NaN where the system does not say (it is Linux that does). */
export function serverCpu(): () => number {
  const before = threadsBelow(process.pid)
  return () => spentMs(before, threadsBelow(process.pid))
}

/** Of threads that still live. What ended in between is lost: servers keep theirs through a round. */
export function spentMs(before: Threads | undefined, after: Threads | undefined): number {
  if (!before || !after) return Number.NaN
  let nanoseconds = 0
  for (const [thread, used] of after) nanoseconds += used - (before.get(thread) ?? 0)
  return nanoseconds / 1e6
}

function threadsBelow(root: number): Threads | undefined {
  const used = new Map<string, number>()
  try {
    const all = numbersIn('/proc').flatMap((pid) => processOf(pid) ?? [])
    for (const pid of below(root, all)) {
      for (const thread of attempt(() => numbersIn(`/proc/${pid}/task`)) ?? []) {
        const line = attempt(() => readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'latin1'))
        if (line !== undefined) used.set(`${pid}/${thread}`, Number.parseInt(line, 10))
      }
    }
  } catch {
    return undefined
  }
  return used
}

/** All processes below `root`, without `root` itself. */
export function below(root: number, all: readonly Process[]): number[] {
  const found: number[] = []
  let parents = new Set([root])
  while (parents.size > 0) {
    const children = all.filter(({ parent }) => parents.has(parent)).map(({ pid }) => pid)
    found.push(...children)
    parents = new Set(children)
  }
  return found
}

function processOf(pid: string): Process | undefined {
  const line = attempt(() => readFileSync(`/proc/${pid}/stat`, 'latin1'))
  return line === undefined ? undefined : parseStat(line)
}

/** A line of /proc/PID/stat. */
export function parseStat(line: string): Process {
  // The command name is in parentheses and may itself hold spaces and parentheses.
  const fields = line.slice(line.lastIndexOf(')') + 2).split(' ')
  return { pid: Number.parseInt(line, 10), parent: Number(fields[1]) }
}

function numbersIn(folder: string): string[] {
  return readdirSync(folder).filter((name) => /^\d+$/.test(name))
}

/** A process may end while it is looked at. */
function attempt<T>(read: () => T): T | undefined {
  try {
    return read()
  } catch {
    return undefined
  }
}
