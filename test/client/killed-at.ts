import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'

/** Runs a script of this folder (stepping.ts). Where it was killed, or undefined if it ended by itself. */
export async function killedAt(script: string, args: readonly string[]): Promise<string | undefined> {
  const env = { ...process.env, NODE_OPTIONS: '', NODE_NO_WARNINGS: '1' }
  try {
    await promisify(execFile)(process.execPath, [join(import.meta.dirname, script), ...args], { env })
    return undefined
  } catch (error) {
    const { signal, stdout } = error as { signal?: string; stdout: string }
    if (signal !== 'SIGKILL') throw error
    return /killed (.*)/.exec(stdout)![1]!
  }
}
