// Runs a server from its recipe: one process on a free loopback port, its data in a guarded folder. Invariant: `startServer`
// resolves when this very process answers, or throws with the end of its log and leaves nothing behind.
import type { ChildProcess } from 'node:child_process'
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
  // For a server that listens twice: the bus of a Redis cluster, the controller of Kafka.
  secondPort: number
}

export interface Recipe {
  name: string
  // Fills `dataDir`, which does not exist yet. Without it an empty folder is made.
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
  const guard = await guardFolder(recipe.name, recipe.afterKill)
  try {
    const folder = guard.path
    const dataDir = join(folder, 'data')
    if (recipe.prepare) await recipe.prepare({ folder, dataDir })
    else mkdirSync(dataDir)
    for (let attempt = 1; ; attempt += 1) {
      const place = { folder, dataDir, port: await freePort(), secondPort: await freePort() }
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
  const { file, args } = recipe.command(place)
  const child = spawnIn(place.folder, file, args, { owner: recipe.owner, log })
  closeSync(log)
  child.unref()
  let failure: Error | undefined
  child.once('error', (error) => (failure = error))
  const hasEnded = (): boolean => child.exitCode !== null || child.signalCode !== null || failure !== undefined
  try {
    await pollUntil(
      `${recipe.name} on port ${place.port}`,
      async () => hasEnded() || (child.pid !== undefined && (await recipe.ready(place, child.pid))),
      { timeoutMs: recipe.startTimeoutMs ?? 60_000 },
    )
    if (hasEnded()) throw failure ?? new Error(`it ended with ${child.exitCode ?? child.signalCode}`)
  } catch (error) {
    if (child.pid !== undefined) await killTree(child.pid)
    const Failure = recipe.portTaken.test(readLog(place).slice(logStart)) ? PortTaken : Error
    const reason = error instanceof Error ? error.message : String(error)
    throw new Failure(`${recipe.name} did not start: ${reason}\n${tail(place)}`, { cause: error })
  }
  return child
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
