// A process and everything it forked. A process group is not enough: each PostgreSQL backend is a group of its own, and a
// "crash" that leaves backends alive is none. Invariant: killTree returns when every process of the tree is gone.
import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { pollUntil } from './poll.ts'

interface ProcessRow {
  pid: number
  parent: number
  state: string
}

const hasProc = existsSync('/proc/self/stat')

export function isAlive(pid: number): boolean {
  // A zombie counts as gone: in a container whose first process reaps nobody, orphans stay zombies for ever.
  if (hasProc) return !['Z', 'X', undefined].includes(readRow(String(pid))?.state)
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}

// Stops the whole tree. Forking goes on until the parent is stopped, so look again until nothing new appears.
export function stopTree(pid: number): number[] {
  const stopped = new Set<number>()
  for (;;) {
    const running = [pid, ...descendantsOf(pid)].filter((member) => !stopped.has(member))
    if (running.length === 0) return [...stopped]
    for (const member of running) {
      signal(member, 'SIGSTOP')
      stopped.add(member)
    }
  }
}

export function resumeTree(pid: number): void {
  for (const member of [...descendantsOf(pid), pid]) signal(member, 'SIGCONT')
}

export async function killTree(pid: number): Promise<void> {
  const members = stopTree(pid)
  for (const member of members) signal(member, 'SIGKILL')
  await pollUntil(`the end of the killed processes ${members.join(', ')}`, () => !members.some(isAlive))
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name)
  } catch {
    // It ended by itself in the meantime, which is as good.
  }
}

function descendantsOf(pid: number): number[] {
  const rows = listProcesses()
  const found: number[] = []
  let parents = new Set([pid])
  while (parents.size > 0) {
    const children = rows.filter((row) => parents.has(row.parent) && row.state !== 'Z').map((row) => row.pid)
    found.push(...children)
    parents = new Set(children)
  }
  return found
}

function listProcesses(): ProcessRow[] {
  if (!hasProc) return listProcessesByPs()
  return readdirSync('/proc').flatMap((name) => (/^\d+$/.test(name) ? (readRow(name) ?? []) : []))
}

function readRow(pid: string): ProcessRow | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1')
    // The command name is in parentheses and may itself hold spaces and parentheses.
    const [state, parent] = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return { pid: Number(pid), parent: Number(parent), state: state ?? 'X' }
  } catch {
    return undefined
  }
}

function listProcessesByPs(): ProcessRow[] {
  const output = execFileSync('ps', ['-A', '-o', 'pid=,ppid=,stat='], { encoding: 'utf8' })
  return output.split('\n').flatMap((line) => {
    const [pid, parent, state] = line.trim().split(/\s+/)
    return state ? [{ pid: Number(pid), parent: Number(parent), state: state.charAt(0) }] : []
  })
}
