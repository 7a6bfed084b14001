// The SPIN models in spec/, of keys and of messages: exhaustive within their bounds without an error, and every known bug that they can
// be given is found.

import { spawnSync } from 'node:child_process'
import { copyFileSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import { needs } from '../servers/needs.ts'

const spec = join(import.meta.dirname, '../../spec')

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

const calm = ['-DLOSSES=0', '-DCRASHES=0', '-DROLLBACKS=0']
const hasNoEffect = 'effects[e]==1)) '
const hasTwo = 'assertion violated (effects[e]==1)'
const isOutOfOrder = 'rank[e]==applied'

/** The same of outbox, relay, broker and inbox. */
const messageBugs = [
  { bug: 'NO_LANE_LOCK', found: hasNoEffect, defines: [...calm, '-DLAPSES=0'] },
  { bug: 'READS_UNCOMMITTED', found: '(row[e]==', defines: [] },
  { bug: 'NO_EPOCH', found: 'position[e]>cursor', defines: calm },
  { bug: 'MARK_BEFORE_SEND', found: hasNoEffect, defines: [] },
  { bug: 'FAILED_HEAD_SKIPPED', found: hasNoEffect, defines: [] },
  { bug: 'ID_FROM_OFFSET', found: hasTwo, defines: [] },
  { bug: 'ACKNOWLEDGED_FIRST', found: isOutOfOrder, defines: ['-DLOSSES=0', '-DLAPSES=0'] },
  { bug: 'NO_MARK', found: hasTwo, defines: [] },
  { bug: 'LOOKED_AT_BEFORE', found: hasTwo, defines: [] },
  { bug: 'AROUND_OTHERS', found: isOutOfOrder, defines: ['-DLOSSES=0', '-DLAPSES=0'] },
  { bug: 'MARKED_EARLIER', found: hasNoEffect, defines: [] },
  { bug: 'MARKED_LATER', found: hasTwo, defines: [] },
] as const

needs('spin').describe('the models', () => {
  let folder = ''
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'onceonly-model-'))
    for (const model of ['claim.pml', 'messages.pml']) copyFileSync(join(spec, model), join(folder, model))
  })
  afterAll(() => rmSync(folder, { recursive: true, force: true }))

  // A search of all states is pure computation, and takes as long as the machine lets it.
  vi.setConfig({ testTimeout: 900_000 })

  function run(program: string, ...args: string[]): string {
    const { stdout, stderr, error } = spawnSync(program, args, { cwd: folder, encoding: 'utf8' })
    if (error) throw error
    return `${stdout}${stderr}`
  }

  /** Compiling for speed takes longer than finding a bug. */
  function check(
    model: 'claim.pml' | 'messages.pml',
    speed: '-O0' | '-O2',
    ...defines: readonly string[]
  ): { readonly states: number; readonly output: string } {
    const made =
      run('spin', '-a', ...defines, model) + run('gcc', speed, '-w', '-DSAFETY', '-DCOLLAPSE', '-o', 'pan', 'pan.c')
    const output = run('./pan', '-m100000')
    const states = Number(/([\d.e+]+) states, stored/.exec(output)?.[1])
    expect(states, `${made}\n${output}`).toBeGreaterThan(0)
    return { states, output }
  }

  test('three workers, all orders: no error', () => {
    const { states, output } = check('claim.pml', '-O2')
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
      const { states, output } = check('claim.pml', '-O2', '-DFENCES', ...without)
      expect(output).toContain('errors: 0')
      expect(output).not.toContain('max search depth too small')
      expect(states).toBeGreaterThan(statesMin)
    },
  )

  test.each(bugs)('$bug is found', ({ bug, found, defines }) => {
    const { output } = check('claim.pml', '-O0', `-DBUG_${bug}`, ...defines)
    expect(output).toContain('errors: 1')
    expect(/^pan:1: .*/m.exec(output)?.[0]).toContain(found)
  })

  // Two events of one key, or three of two keys.
  test.each([
    { without: ['-DLAPSES=0'], statesMin: 1_000_000 },
    { without: ['-DLOSSES=0', '-DDUPLICATES=0', '-DROLLBACKS=0'], statesMin: 500_000 },
    {
      without: ['-DEVENTS=3', '-DRELAYS=1', '-DLAPSES=0', '-DLOSSES=0', '-DDUPLICATES=0', '-DROLLBACKS=0'],
      statesMin: 400_000,
    },
  ])(
    'from outbox to inbox: nothing lost, one effect, in the order of commits per key ($without)',
    ({ without, statesMin }) => {
      const { states, output } = check('messages.pml', '-O2', ...without)
      expect(output).toContain('errors: 0')
      expect(output).not.toContain('max search depth too small')
      expect(states).toBeGreaterThan(statesMin)
    },
  )

  test.each(messageBugs)('from outbox to inbox: $bug is found', ({ bug, found, defines }) => {
    const { output } = check('messages.pml', '-O0', `-DBUG_${bug}`, ...defines)
    expect(output).toContain('errors: 1')
    expect(/^pan:1: .*/m.exec(output)?.[0]).toContain(found)
  })
})
