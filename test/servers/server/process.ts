// Runs a server from its recipe: one process on a free loopback port, its data in a guarded folder. Invariant: `startServer`
// resolves when this very process answers, or throws with the end of its log and leaves nothing behind.
import { type ChildProcess, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, mkdirSync, openSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { freePort } from '../free-port.ts'
import { guardFolder, type Owner, spawnIn } from '../guarded-folder.ts'
import { pollUntil } from '../poll.ts'
import { isAlive, killTree, resumeTree, stopTree } from '../process-tree.ts'
import type { Running } from '../server.ts'

export interface Place {
  folder: string
  dataDir: string
  port: number
  // For a server that listens more than once: the bus of a Redis cluster, the controller of Kafka, Erlang's own ports.
  secondPort: number
  thirdPort: number
}

// The world of one server, for those who torture it.
export interface Surroundings {
  // Beside what every process has: a clock of its own (libfaketime).
  env?: Readonly<Record<string, string>>
  // Its data folder is a tmpfs of this size.
  diskKib?: number
}

export interface Recipe {
  name: string
  surroundings?: Surroundings | undefined
  // Fills `dataDir`, which does not exist yet unless it is a disk. Without it an empty folder is made.
  prepare?: (place: Pick<Place, 'folder' | 'dataDir'>) => Promise<void>
  command: (place: Place) => { file: string; args: string[] }
  // Whether the process `pid` (and not another that has taken its port) answers.
  ready: (place: Place, pid: number) => boolean | Promise<boolean>
  url: (place: Place) => string
  shutDownSignal: NodeJS.Signals
  // How its log says that another process has the port.
  portTaken: RegExp
  owner?: Owner | undefined
  // A line of sh that the watchdog runs in the folder when all processes are gone.
  afterKill?: string
  startTimeoutMs?: number | undefined
}

class PortTaken extends Error {}

// Each attempt takes another random port out of 17,000; ten collisions in a row are a fault, not bad luck.
const portAttemptsMax = 10
const logTailLines = 40

export async function startServer(recipe: Recipe): Promise<Running> {
  const { diskKib } = recipe.surroundings ?? {}
  const umount = diskKib === undefined ? [] : ['umount -l data']
  const guard = await guardFolder(recipe.name, [...(recipe.afterKill ? [recipe.afterKill] : []), ...umount].join('; '))
  try {
    const folder = guard.path
    const dataDir = join(folder, 'data')
    if (diskKib !== undefined) {
      mkdirSync(dataDir, { mode: 0o700 })
      mountTmpfs(dataDir, diskKib)
    }
    if (recipe.prepare) await recipe.prepare({ folder, dataDir })
    else mkdirSync(dataDir, { recursive: true })
    for (let attempt = 1; ; attempt += 1) {
      const [port, secondPort, thirdPort] = [await freePort(), await freePort(), await freePort()]
      const place = { folder, dataDir, port, secondPort, thirdPort }
      try {
        return running(recipe, place, await launch(recipe, place), guard.remove)
      } catch (error) {
        if (!(error instanceof PortTaken) || attempt === portAttemptsMax) throw error
      }
    }
  } catch (error) {
    await guard.remove()
    throw error
  }
}

async function launch(recipe: Recipe, place: Place): Promise<ChildProcess> {
  const log = openSync(join(place.folder, 'log'), 'a')
  const logStart = readLog(place).length
  const { file, args } = withEnvironment(recipe.command(place), recipe.surroundings?.env)
  const child = spawnIn(place.folder, file, args, { owner: recipe.owner, log })
  closeSync(log)
  child.unref()
  let failure: Error | undefined
  child.once('error', (error) => (failure = error))
  const hasEnded = (): boolean => child.exitCode !== null || child.signalCode !== null || failure !== undefined
  const foundItsPortTaken = (): boolean => recipe.portTaken.test(readLog(place).slice(logStart))
  try {
    await pollUntil(
      `${recipe.name} on port ${place.port}`,
      // ElasticMQ says that its port is taken, and stays.
      async () =>
        hasEnded() || foundItsPortTaken() || (child.pid !== undefined && (await recipe.ready(place, child.pid))),
      { timeoutMs: recipe.startTimeoutMs ?? 60_000 },
    )
    if (hasEnded()) throw failure ?? new Error(`it ended with ${child.exitCode ?? child.signalCode}`)
    if (foundItsPortTaken()) throw new Error('its port is taken')
  } catch (error) {
    if (child.pid !== undefined) await killTree(child.pid)
    const Failure = foundItsPortTaken() ? PortTaken : Error
    const reason = error instanceof Error ? error.message : String(error)
    throw new Failure(`${recipe.name} did not start: ${reason}\n${tail(place)}`, { cause: error })
  }
  return child
}

// env replaces itself by the server, whose process number stays.
function withEnvironment(command: ReturnType<Recipe['command']>, env: Surroundings['env']): typeof command {
  if (!env) return command
  const assignments = Object.entries(env).map(([name, value]) => `${name}=${value}`)
  return { file: '/usr/bin/env', args: [...assignments, command.file, ...command.args] }
}

export class MountRefused extends Error {}

// Whoever mounts sees to it that the watchdog of the folder unmounts.
export function mountTmpfs(folder: string, sizeKib: number): void {
  const { status, stderr } = spawnSync('mount', ['-t', 'tmpfs', '-o', `size=${sizeKib}k,mode=0700`, 'tmpfs', folder], {
    encoding: 'utf8',
  })
  if (status !== 0) throw new MountRefused(`mount is not permitted: ${String(stderr).trim()}`)
}

function running(recipe: Recipe, place: Place, first: ChildProcess, remove: () => Promise<void>): Running {
  let child = first
  const pid = (): number | undefined =>
    child.pid !== undefined && child.exitCode === null && child.signalCode === null ? child.pid : undefined
  const alive = (verb: string): number => {
    const current = pid()
    if (current === undefined) throw new Error(`${recipe.name} does not run and cannot be ${verb}; restart() it first`)
    return current
  }
  const shutDown = async (): Promise<void> => {
    resumeTree(alive('shut down'))
    await endOrderly(child, recipe.shutDownSignal)
  }
  const stop = async (): Promise<void> => {
    await Promise.all([remove(), pid() === undefined ? undefined : exitOf(child)])
  }
  return {
    name: recipe.name,
    url: recipe.url(place),
    host: '127.0.0.1',
    port: place.port,
    dataDir: place.dataDir,
    get pid() {
      return pid()
    },
    stop,
    shutDown,
    crash: async () => {
      const current = alive('crashed')
      await Promise.all([killTree(current), exitOf(child)])
    },
    restart: async () => {
      if (pid() !== undefined) await shutDown()
      child = await relaunch(recipe, place)
    },
    pause: () => void stopTree(alive('paused')),
    resume: () => resumeTree(alive('resumed')),
    logTail: () => tail(place),
    [Symbol.asyncDispose]: stop,
  }
}

// The child does not keep our process alive (a script may forget it), but somebody who waits for its end does.
async function exitOf(child: ChildProcess): Promise<void> {
  child.ref()
  await once(child, 'exit')
}

// The port must be the old one, so if somebody else has it for a moment there is nothing but trying again.
async function relaunch(recipe: Recipe, place: Place): Promise<ChildProcess> {
  return pollUntil(`port ${place.port} to be free again for ${recipe.name}`, async () => {
    try {
      return await launch(recipe, place)
    } catch (error) {
      if (error instanceof PortTaken) return undefined
      throw error
    }
  })
}

async function endOrderly(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  const { pid } = child
  if (pid === undefined) return
  child.kill(signal)
  await pollUntil(`process ${pid} to end after ${signal}`, () => child.exitCode !== null || child.signalCode !== null)
  await pollUntil(`process ${pid} to be gone`, () => !isAlive(pid))
}

function readLog(place: Place): string {
  try {
    return readFileSync(join(place.folder, 'log'), 'utf8')
  } catch {
    return ''
  }
}

function tail(place: Place): string {
  return readLog(place).trimEnd().split('\n').slice(-logTailLines).join('\n')
}
