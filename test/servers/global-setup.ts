// Vitest's global set-up: makes the folder of the run, keeps the servers that its files share, and at the end says which servers were
// missing, why, and what cures it. Invariant: the folder goes with the run, also when the run is killed.
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { servers } from './index.ts'
import { makeRunFolder } from './run-folder.ts'
import type { Server } from './server.ts'
import { keepShared } from './shared.ts'
import { selectedStores, type Skip, textOf } from './skip.ts'

export default async function setup(): Promise<(() => Promise<void>) | undefined> {
  // A wrong selection ends the run here, once, and not in every file.
  selectedStores(process.env)
  if (process.env['ONCEONLY_RUN_DIR']) return undefined
  const guard = await makeRunFolder()
  process.env['ONCEONLY_RUN_DIR'] = guard.path
  const shared = await keepShared(guard.path, servers as Readonly<Record<string, Pick<Server, 'start'>>>)
  return async () => {
    await shared[Symbol.asyncDispose]()
    delete process.env['ONCEONLY_RUN_DIR']
    const summary = summarize(readSkips(guard.path))
    await guard.remove()
    if (summary) process.stdout.write(summary)
  }
}

export function readSkips(run: string): Skip[] {
  const folder = join(run, 'skipped')
  if (!existsSync(folder)) return []
  return readdirSync(folder).map((name) => JSON.parse(readFileSync(join(folder, name), 'utf8')) as Skip)
}

export function summarize(skips: Skip[]): string {
  if (skips.length === 0) return ''
  const lines = skips.map((skip) => `   ${textOf(skip)}\n`).sort()
  return `\n Skipped, because a server or tool is missing or was not selected:\n${lines.join('')}\n`
}
