// The program as people run it: a process of its own, with nothing of our environment that could answer for it.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'

export const mainFile = join(import.meta.dirname, '..', '..', 'src', 'cli', 'main.ts')

export interface Ended {
  code: number | null
  out: string
  error: string
}

export interface RunOptions {
  env?: Record<string, string>
  cwd?: string
}

export async function onceonly(args: string[], options: RunOptions = {}): Promise<Ended> {
  return run(process.execPath, [mainFile, ...args], options)
}

export async function run(file: string, args: string[], { env = {}, cwd }: RunOptions): Promise<Ended> {
  const child = spawn(file, args, { cwd, env: cleanEnvironment(env), stdio: ['ignore', 'pipe', 'pipe'] })
  const [[code], out, error] = await Promise.all([once(child, 'close'), text(child.stdout), text(child.stderr)])
  return { code: code as number | null, out, error }
}

// What is left out decides too: CI, NO_COLOR, FORCE_COLOR, NODE_DISABLE_COLORS and TEAMCITY_VERSION switch colours, NODE_OPTIONS
// prints warnings, ONCEONLY_STORE names a store. So nothing is taken over but what a process needs to be found and to write.
const kept = ['PATH', 'HOME', 'TMPDIR', 'LD_LIBRARY_PATH'] as const

export function cleanEnvironment(env: Record<string, string>): NodeJS.ProcessEnv {
  const ours = Object.fromEntries(
    kept.flatMap((name) => (process.env[name] === undefined ? [] : [[name, process.env[name]]])),
  )
  // AWS would look for credentials in the network.
  const aws = { AWS_ACCESS_KEY_ID: 'onceonly', AWS_SECRET_ACCESS_KEY: 'onceonly', AWS_EC2_METADATA_DISABLED: 'true' }
  return { ...ours, ...aws, ...env }
}

export interface TestFolder extends Disposable {
  path: string
}

export function makeFolder(): TestFolder {
  const path = mkdtempSync(join(tmpdir(), 'onceonly-cli-'))
  return { path, [Symbol.dispose]: () => rmSync(path, { recursive: true, force: true }) }
}
