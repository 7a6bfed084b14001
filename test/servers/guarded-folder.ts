// A temporary folder with a watchdog: a tiny `sh` in a session of its own that holds one end of a pipe. However its owner
// ends (also by kill -9), the pipe closes, and the watchdog kills what was started in the folder and removes the folder.
// Invariant: there is no moment at which the death of the owner leaves a process or a file behind; `remove()` takes the
// very same path, so that the clean-up is exercised by every test and not only by the unlucky ones.
import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { rmSync, statSync } from 'node:fs'
import type { Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'

export interface GuardedFolder {
  path: string
  remove(): Promise<void>
}

export interface Owner {
  uid: number
  gid: number
}

export interface SpawnOptions {
  owner?: Owner | undefined
  // A file descriptor that takes standard output and standard error.
  log?: number | 'ignore'
  env?: NodeJS.ProcessEnv
}

// The rename comes first and is atomic: a process being spawned has either registered itself in `groups` before (and is
// killed) or finds the folder gone afterwards (and never becomes the server). See `spawnIn`.
const watchdog = `
trap '' INT TERM HUP QUIT PIPE
folder=$1
umask 022
mkdir "$folder" "$folder/groups" && chmod 1777 "$folder/groups" || exit 1
echo ready
while read -r ignored; do :; done
children_of() {
  [ -r /proc/self/stat ] || { pgrep -P "$1"; return; }
  for stat in /proc/[0-9]*/stat; do
    read -r line <"$stat" || continue
    set -- "$1" \${line##*) }
    [ "$3" = "$1" ] || continue
    stat=\${stat#/proc/}
    echo "\${stat%/stat}"
  done
}
mv "$folder" "$folder.gone" && cd "$folder.gone" || exit 1
for leader in groups/*; do
  leader=\${leader#groups/}
  [ "$leader" = '*' ] && continue
  kill -s STOP "$leader"
  kill -s KILL "$leader" $(children_of "$leader") "-$leader"
done
eval "$2"
cd /
attempts=0
until rm -rf "$folder.gone" || [ $attempts -ge 100 ]; do attempts=$((attempts + 1)); sleep 0.1; done
`

export async function guardFolder(name: string, afterKill = ''): Promise<GuardedFolder> {
  const path = join(temporaryRoot(), `onceonly-${name}-${randomBytes(6).toString('hex')}`)
  // The watchdog makes the folder, so that there is no folder without a watchdog. `detached` gives it a session of its
  // own: a Ctrl-C in the terminal, or a kill of the test run's group, does not reach it.
  const child = spawn('/bin/sh', ['-c', watchdog, 'onceonly-watchdog', path, afterKill], {
    detached: true,
    stdio: ['pipe', 'pipe', 'ignore'],
    cwd: '/',
    env: { PATH: searchPath() },
  })
  const [answer] = await Promise.race([once(child.stdout, 'data'), once(child, 'exit'), once(child, 'error')])
  if (String(answer) !== 'ready\n') throw new Error(`no watchdog for ${path}: ${String(answer)}`)
  child.stdout.destroy()
  // A script that forgets to stop its server may still end by itself.
  child.unref()
  const pipe = child.stdin as Socket
  pipe.unref()
  let removed: Promise<void> | undefined
  return { path, remove: () => (removed ??= release(child, pipe)) }
}

async function release(child: ChildProcess, pipe: Socket): Promise<void> {
  child.ref()
  const gone = child.exitCode === null && child.signalCode === null ? once(child, 'exit') : undefined
  pipe.on('error', () => {})
  pipe.end()
  await gone
}

// Spawns a process that the folder's watchdog knows: the process registers its own number and only then becomes the
// program, so that there is no program that the watchdog does not know of.
export function spawnIn(folder: string, file: string, args: string[], options: SpawnOptions = {}): ChildProcess {
  const register = ': >"$0/groups/$$" || exit 97; exec "$@"'
  const log = options.log ?? 'ignore'
  const child = spawn('/bin/sh', ['-c', register, folder, file, ...args], {
    ...options.owner,
    cwd: folder,
    detached: true,
    stdio: ['ignore', log, log],
    // Nothing of the caller's environment (PGDATA, PGOPTIONS, LANG, ...) may change what a test server does.
    env: { PATH: searchPath(), HOME: folder, TMPDIR: folder, LC_ALL: 'C', TZ: 'UTC', ...options.env },
  })
  // Process numbers come back: one that has ended must not be killed later under its old number.
  child.once('exit', () => rmSync(join(folder, 'groups', String(child.pid)), { force: true }))
  return child
}

// The clean-up needs `rm`, whatever a test has done to the PATH.
function searchPath(): string {
  return `/usr/bin:/bin:/usr/sbin:/sbin:${process.env['PATH'] ?? ''}`
}

// As root a server may run as another user, who must be able to reach the folder; a private TMPDIR is then of no use.
function temporaryRoot(): string {
  return process.getuid?.() === 0 && !isReachableByOthers(tmpdir()) ? '/tmp' : tmpdir()
}

export function isReachableByOthers(path: string): boolean {
  if ((statSync(path).mode & 0o001) === 0) return false
  return path === dirname(path) || isReachableByOthers(dirname(path))
}
