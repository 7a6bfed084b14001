// The keeper of shared servers: one start for all who ask, an end with the run, and the reason when there is none.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test, vi } from 'vitest'
import type { Running } from './server.ts'
import { keepShared, sharedUrl } from './shared.ts'

function runFolder(): string {
  const run = mkdtempSync(join(tmpdir(), 'onceonly-shared-'))
  vi.stubEnv('ONCEONLY_RUN_DIR', run)
  onTestFinished(() => {
    vi.unstubAllEnvs()
    rmSync(run, { recursive: true })
  })
  return run
}

test('a server that many ask for at once is started once, and ends with the run', async () => {
  const calls: string[] = []
  const stop = async (): Promise<void> => void calls.push('stop')
  const start = async (): Promise<Running> => {
    calls.push('start')
    return { url: 'kafka://127.0.0.1:1', stop } as Running
  }
  const keeper = await keepShared(runFolder(), { one: { start } })
  const asked = Array.from({ length: 10 }, () => sharedUrl({ name: 'one', start }))
  expect(new Set(await Promise.all(asked))).toEqual(new Set(['kafka://127.0.0.1:1']))
  await keeper[Symbol.asyncDispose]()
  expect(calls).toEqual(['start', 'stop'])
})

test('a server that does not start says why to each who asks', async () => {
  const start = async (): Promise<Running> => {
    throw new Error('java was not found')
  }
  await using keeper = await keepShared(runFolder(), { one: { start } })
  expect(keeper).toBeDefined()
  await expect(sharedUrl({ name: 'one', start })).rejects.toThrow('java was not found')
  await expect(sharedUrl({ name: 'two', start })).rejects.toThrow('no server is named two')
})
