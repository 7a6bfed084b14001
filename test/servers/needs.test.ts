// What a run says about servers that are missing: nested runs of Vitest on fixtures/needy.ts, in which Redis is hidden.
import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { mustFail } from './needs.ts'
import { selectedStores, skipFor, textOf } from './skip.ts'

function runNested(env: NodeJS.ProcessEnv): { status: number | null; output: string } {
  const program = join(import.meta.dirname, '../../node_modules/vitest/vitest.mjs')
  const config = join(import.meta.dirname, 'fixtures/vitest.config.ts')
  // Not the environment of this run: its variables would make the nested one a worker of ours.
  const nested = spawnSync(process.execPath, [program, 'run', '--config', config, '--reporter', 'verbose'], {
    encoding: 'utf8',
    env: { HOME: process.env['HOME'], NO_COLOR: '1', PATH: '/nonexistent', ...env },
  })
  return { status: nested.status, output: nested.stdout + nested.stderr }
}

const redisMissing = /redis: neither redis-server nor valkey-server was found; cure: npm run servers/
const programMissing = /a program: nobody wrote it; cure: write it/

describe('a missing server', () => {
  test('skips its tests, and the run passes and ends with the reason and the cure', () => {
    const { status, output } = runNested({})
    expect(output).toMatch(/1 passed \| 2 skipped/)
    expect(output.slice(output.indexOf('Duration'))).toMatch(redisMissing)
    expect(output.slice(output.indexOf('Duration'))).toMatch(programMissing)
    expect(status).toBe(0)
  })

  test('is a failure if ONCEONLY_REQUIRE=all', () => {
    const { status, output } = runNested({ ONCEONLY_REQUIRE: 'all' })
    expect(output).toMatch(/2 failed \| 1 passed/)
    expect(output).toMatch(redisMissing)
    expect(output).toMatch(programMissing)
    expect(status).toBe(1)
  })

  test('is skipped with its reason even if ONCEONLY_REQUIRE=all when it may not be had anywhere', () => {
    const reason = { reason: 'not found', cure: 'npm run servers' }
    const rare = { store: 'mysql', ...reason, optional: 'sid changes daily' }
    const usual = { store: 'redis', ...reason }
    expect(textOf(rare)).toBe('mysql: not found (sid changes daily); cure: npm run servers')
    expect(mustFail([rare], { ONCEONLY_REQUIRE: 'all' })).toBe(false)
    expect(mustFail([rare, usual], { ONCEONLY_REQUIRE: 'all' })).toBe(true)
    expect(mustFail([usual], {})).toBe(false)
  })

  test('ends a run at once that both selects and requires all', () => {
    const { status, output } = runNested({ ONCEONLY_REQUIRE: 'all', STORES: 'sqlite' })
    expect(output).toMatch(/STORES leaves tests out and ONCEONLY_REQUIRE=all forbids it/)
    expect(status).toBe(1)
  })
})

describe('STORES', () => {
  test('selects by name', () => {
    expect(selectedStores({ STORES: 'sqlite, postgres' })).toEqual(['sqlite', 'postgres'])
    expect(selectedStores({})).toBeUndefined()
    expect(skipFor('sqlite', {}, { STORES: 'sqlite' })).toBeUndefined()
    expect(skipFor('postgres', {}, { STORES: 'sqlite' })?.reason).toBe('not selected by STORES')
  })

  test('refuses a name that is none', () => {
    expect(() => selectedStores({ STORES: 'postgre' })).toThrow(/expected STORES to list some of .*, got "postgre"/)
    expect(() => selectedStores({ ONCEONLY_REQUIRE: 'some' })).toThrow(/expected ONCEONLY_REQUIRE to be "all"/)
  })
})
