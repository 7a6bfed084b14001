// Whether a process itself listens on a port, for servers that cannot be asked who they are. Invariant: where the system
// can tell (Linux), another process that has taken the port is never taken for it.
import { existsSync, readdirSync, readFileSync, readlinkSync } from 'node:fs'

const listening = '0A'

export function listensOn(pid: number, port: number): boolean {
  if (!existsSync('/proc/net/tcp')) return true
  const sockets = new Set(['/proc/net/tcp', '/proc/net/tcp6'].flatMap((table) => listenersIn(table, port)))
  return sockets.size > 0 && openFiles(pid).some((file) => sockets.has(file))
}

// Lines of `number: local-address:PORT remote-address:PORT STATE … inode`, ports in hexadecimal.
function listenersIn(table: string, port: number): string[] {
  if (!existsSync(table)) return []
  const suffix = `:${port.toString(16).toUpperCase().padStart(4, '0')}`
  return readFileSync(table, 'utf8')
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[1]?.endsWith(suffix) && fields[3] === listening)
    .map((fields) => `socket:[${fields[9]}]`)
}

function openFiles(pid: number): string[] {
  const folder = `/proc/${pid}/fd`
  return (attempt(() => readdirSync(folder)) ?? []).flatMap(
    (name) => attempt(() => readlinkSync(`${folder}/${name}`)) ?? [],
  )
}

// A file was closed, or the process has ended, while we looked.
function attempt<T>(look: () => T): T | undefined {
  try {
    return look()
  } catch {
    return undefined
  }
}
