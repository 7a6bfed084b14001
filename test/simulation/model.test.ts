// The SPIN model in spec/: exhaustive for three workers without an error, and every known bug that it can be given is found.

import { spawnSync } from 'node:child_process'
import { copyFileSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { needs } from '../servers/needs.ts'

const model = join(import.meta.dirname, '../../spec/claim.pml')
/** Each bug, how SPIN must find it, and what it takes to show itself: less than everything is found sooner. */
const bugs = [
  { bug: 'READ_THEN_WRITE', found: '!(((row==', defines: [] },
  { bug: 'NO_FENCE', found: 't==lastGranted', defines: [] },
  { bug: 'FENCE_ON_STATE', found: 't==lastGranted', defines: [] },
  { bug: 'TOKEN_KEPT', found: 't==lastGranted', defines: [] },
  { bug: 'TOKEN_IS_ATTEMPT', found: '==lastGranted', defines: ['-DLOSSES=0', '-DCRASHES=0'] },
  { bug: 'EXTEND_ANY', found: 't==lastGranted', defines: [] },
  { bug: 'RELEASE_ANY', found: 't==lastGranted', defines: ['-DLOSSES=0', '-DCRASHES=0'] },
  { bug: 'NO_TAKEOVER', found: 'invalid end state', defines: [] },
  { bug: 'HEARTBEAT_OUTLIVES', found: 'invalid end state', defines: [] },
  { bug: 'FORGET_BEGUN', found: '!(began[t])', defines: ['-DLOSSES=0', '-DCRASHES=0'] },
  { bug: 'RUN_UNHEARD', found: 'heard==', defines: [] },
  { bug: 'LOST_STILL_OK', found: 't==outcome', defines: [] },
  { bug: 'TOKEN_ALONE', found: 'f==lastFence', defines: ['-DFENCES', '-DLOSSES=0', '-DCRASHES=0'] },
  { bug: 'FENCE_IS_ATTEMPT', found: 'fence>lastFence', defines: ['-DFENCES', '-DLOSSES=0', '-DCRASHES=0'] },
] as const

needs('spin').describe('the model', () => {
  let folder = ''
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'onceonly-model-'))
    copyFileSync(model, join(folder, 'claim.pml'))
  })
  afterAll(() => rmSync(folder, { recursive: true, force: true }))

  function run(program: string, ...args: string[]): string {
    const { stdout, stderr, error } = spawnSync(program, args, { cwd: folder, encoding: 'utf8' })
    if (error) throw error
    return `${stdout}${stderr}`
  }

  /** Compiling for speed takes longer than finding a bug. */
  function check(speed: '-O0' | '-O2', ...defines: string[]): { readonly states: number; readonly output: string } {
    const made =
      run('spin', '-a', ...defines, 'claim.pml') +
      run('gcc', speed, '-w', '-DSAFETY', '-DCOLLAPSE', '-o', 'pan', 'pan.c')
    const output = run('./pan', '-m100000')
    const states = Number(/([\d.e+]+) states, stored/.exec(output)?.[1])
    expect(states, `${made}\n${output}`).toBeGreaterThan(0)
    return { states, output }
  }

  test('three workers, all orders: no error', () => {
    const { states, output } = check('-O2')
    expect(output).toContain('errors: 0')
    expect(output).not.toContain('max search depth too small')
    expect(states).toBeGreaterThan(300_000)
  })

  // Fences tell apart what is otherwise the same state, so not everything can go wrong at once.
  test.each([
    { without: ['-DLOSSES=0'], statesMin: 3_000_000 },
    { without: ['-DCRASHES=0', '-DFAILURES=0'], statesMin: 1_000_000 },
  ])(
    'a key that is forgotten under its holder: no write of an earlier life, and fences grow ($without)',
    ({ without, statesMin }) => {
      const { states, output } = check('-O2', '-DFENCES', ...without)
      expect(output).toContain('errors: 0')
      expect(output).not.toContain('max search depth too small')
      expect(states).toBeGreaterThan(statesMin)
    },
  )

  test.each(bugs)('$bug is found', ({ bug, found, defines }) => {
    const { output } = check('-O0', `-DBUG_${bug}`, ...defines)
    expect(output).toContain('errors: 1')
    expect(/^pan:1: .*/m.exec(output)?.[0]).toContain(found)
  })
})
