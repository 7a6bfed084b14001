// The judge of `npm run torture` sees what is wrong: one that passes everything proves nothing. The torture itself is a step of
// `npm run test:all` of its own: it wants the machine for itself.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { type Counts, invalidities, missedQuotas, noCounts } from './counts.ts'
import { type Journal, type Line, openJournal, readJournals, wallOffsetMs, type Written } from './journal.ts'
import { judge } from './judge.ts'
import { checkOperations } from './judge/operations.ts'
import type { OpenedStore, Place } from './place.ts'
import { judgeSessionLines } from './sessions/judge.ts'

describe('the judge', () => {
  // A store without triggers: all that is judged is in the journals.
  const place: Place = { store: 'redis', url: 'redis://unused' }
  const opened = {} as OpenedStore
  const key = { scope: 'torture', id: 'k1-run-value' }
  let folder: string
  let journal: Journal
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'onceonly-judge-'))
    journal = openJournal(folder, 'w1', wallOffsetMs())
  })
  afterEach(() => rmSync(folder, { recursive: true }))

  const retention = { keepMs: 60_000, tombstoneMs: 60_000 }
  const outcome = new Uint8Array([1])
  const request = (token: string): object => ({
    token,
    fingerprint: 'f',
    leaseMs: 500,
    retention,
    version: 0,
    onTakeover: 'run',
    onExpired: 'refuse',
  })

  function write(...lines: Line[]): void {
    for (const line of lines) journal.write(line)
  }

  /** A call that runs its effect under this token, and settles. */
  function wholeCall(call: string, token: string, how: string, attempt: number, phase: 'first' | 'last'): void {
    const name = 'torture\nk1-run-value'
    const granted = { is: 'granted', how, claim: { key, token, attempt, fence: attempt } }
    write(
      { is: 'call', call, key, asked: 'value', how: 'run', phase, waitMs: 0 },
      { is: 'operation', operation: `${call}a`, sent: { call: 'claim', key: name, request: request(token) } },
      { is: 'operation-answer', operation: `${call}a`, answer: granted },
      { is: 'execution', call, token, attempt, fence: attempt, derivedKey: 'd' },
    )
    journal.effect(token)
    write(
      { is: 'ended', token, ended: 'returned' },
      { is: 'operation', operation: `${call}b`, sent: { call: 'settle', key: name, token, outcome, retention } },
      { is: 'operation-answer', operation: `${call}b`, answer: 'done' },
      { is: 'answer', call, answer: { is: 'value', text: 'v', token, replayed: false } },
    )
  }

  const found = async (): Promise<string[]> =>
    (await judge(place, folder, opened, 'true')).violations.map(({ assertion }) => assertion)

  test('has nothing to say about a key that was asked for once and settled', async () => {
    wholeCall('w1/1', 'one', 'fresh', 1, 'last')
    expect(await found()).toEqual([])
  })

  test('sees a key that was given away and answered twice', async () => {
    wholeCall('w1/1', 'one', 'fresh', 1, 'first')
    wholeCall('w1/2', 'two', 'fresh', 1, 'last')
    expect(await found()).toContain('linearizable')
  })

  test('sees the accepted write of one who was stopped and taken over', async () => {
    write({ is: 'stopping', point: 'settle before', token: 'one' }, { is: 'taken-over', token: 'one' })
    write({ is: 'resumed', token: 'one' })
    wholeCall('w1/1', 'one', 'fresh', 1, 'last')
    expect(await found()).toContain('zombie-fenced')
  })

  test('sees an answer without an effect, and a key that never ends', async () => {
    write({ is: 'call', call: 'w1/1', key, asked: 'value', how: 'run', phase: 'first', waitMs: 0 })
    write({ is: 'answer', call: 'w1/1', answer: { is: 'value', text: 'v', token: 'never', replayed: false } })
    expect(await found()).toEqual(expect.arrayContaining(['own-answer', 'no-wedge']))
  })

  describe('behind a gateway', () => {
    const id = 'k1-gatewayRefuse-value'
    const name = `gateway:torture/acme\n${id}`
    const behind = { scope: 'gateway:torture/acme', id }

    function claimed(attempt: number): void {
      const token = `token ${attempt}`
      const granted = { is: 'granted', how: 'fresh', claim: { key: behind, token, attempt, fence: attempt } }
      write(
        { is: 'operation', operation: `g1/${attempt}`, sent: { call: 'claim', key: name, request: request(token) } },
        { is: 'operation-answer', operation: `g1/${attempt}`, answer: granted },
      )
    }

    function served(number: number, attempt: number): void {
      const [call, token] = [`w1/http/${number}`, `service/${number}`]
      write({ is: 'call', call, key: behind, asked: 'value', how: 'run', phase: 'last', waitMs: 0 })
      write({ is: 'served', call, token, id, attempt, derivedKey: 'd' })
      journal.effect(token)
      write({ is: 'ended', token, ended: 'returned' })
    }

    function answered(number: number, attempt: number): void {
      const held = { key: name, token: `token ${attempt}`, fence: attempt, outcome, retention }
      const told = { is: 'value' as const, text: 'v', token: `service/${number}`, replayed: false }
      write(
        { is: 'operation', operation: `g2/${number}`, sent: { call: 'settle', ...held } },
        { is: 'operation-answer', operation: `g2/${number}`, answer: 'done' },
        { is: 'answer', call: `w1/http/${number}`, answer: told },
      )
    }

    test('has nothing to say about a request that was passed on once, and settled', async () => {
      claimed(1)
      served(1, 1)
      answered(1, 1)
      expect(await found()).toEqual([])
    })

    test('sees a request that was passed on twice under one claim', async () => {
      claimed(1)
      served(1, 1)
      served(2, 1)
      answered(2, 1)
      expect(await found()).toEqual(expect.arrayContaining(['one-execution-a-claim', 'at-most-once']))
    })

    test('sees one that was passed on before anything was claimed', async () => {
      served(1, 1)
      claimed(1)
      expect(await found()).toContain('claim-before-effect')
    })

    test('sees two charges where the gateway is to refuse what is in doubt', async () => {
      claimed(1)
      served(1, 1)
      claimed(2)
      served(2, 2)
      answered(2, 2)
      expect(await found()).toContain('at-most-once')
    })
  })

  test('sees a step that runs again after it was recorded, one that is committed twice, and an undo that is missing', () => {
    const id = 'k1-operation-final'
    const step = (what: 'ran' | 'recorded'): Line => ({ is: 'step', id, step: 'charge', what, key: 'd' })
    write(step('ran'), step('recorded'), step('ran'))
    write({ is: 'call', call: 'w1/1', key: { ...key, id }, asked: 'final', how: 'run', phase: 'last', waitMs: 0 })
    write({ is: 'answer', call: 'w1/1', answer: { is: 'failure', text: 'f', token: id, replayed: false } })
    const rows = [
      { step: 'reserve', id },
      { step: 'reserve', id },
    ]
    const assertions: string[] = []
    checkOperations(readJournals(folder), rows, ({ assertion }) => assertions.push(assertion))
    expect(assertions.toSorted()).toEqual(['compensated', 'compensated', 'step-never-again', 'step-once'])
  })
})

describe('the judge of sessions', () => {
  const name = 'till/7/1'
  const key = { scope: 'torture', id: name }
  let atMs = 0
  const at = (line: Line): Written => ({ ...line, atMs: ++atMs, process: 'w1' })
  const call = (call: string): Written =>
    at({ is: 'call', call, key, asked: 'value', how: 'run', phase: 'last', waitMs: 0 })
  const ran = (call: string, token: string): Written =>
    at({ is: 'execution', call, token, attempt: 1, fence: 1, derivedKey: 'd' })
  const value = (call: string, token: string): Written =>
    at({ is: 'answer', call, answer: { is: 'value', text: token, token, replayed: false } })
  const found = (lines: readonly Written[], tokens: readonly string[], left: Record<string, number> = {}): string[] =>
    judgeSessionLines({ lines, ledger: [], rows: tokens.map((token) => ({ token, id: name })), left }).map(
      ({ assertion }) => assertion,
    )

  test('has nothing to say about a number that ran once and was replayed', () => {
    expect(found([call('1'), ran('1', 'a'), value('1', 'a'), call('2'), value('2', 'a')], ['a'])).toEqual([])
  })

  test('sees two effects, two answers, an answer without an effect, and a number without an end', () => {
    const twice = [call('1'), ran('1', 'a'), value('1', 'a'), call('2'), ran('2', 'b'), value('2', 'b')]
    expect(found(twice, ['a', 'b'])).toEqual(expect.arrayContaining(['one-effect', 'same-answer']))
    expect(found([call('1'), ran('1', 'a'), value('1', 'a')], [])).toEqual(['answer-has-effect'])
    expect(found([call('1'), ran('1', 'a')], [])).toEqual(['no-wedge'])
  })

  test('sees a zombie that commits, a "not executed" that left something, and rows that stay', () => {
    const refused = { is: 'refused', code: 'FENCED', executed: 'no', message: '' } as const
    const zombie = [
      call('1'),
      ran('1', 'a'),
      at({ is: 'taken-over', token: 'a' }),
      at({ is: 'answer', call: '1', answer: refused }),
    ]
    expect(found(zombie, ['a']).toSorted()).toEqual(['not-executed-left-nothing', 'zombie-fenced'])
    expect(found(zombie, [])).toEqual([])
    expect(found([], [], { 'load-1': 2 })).toEqual(['rows-bounded'])
  })
})

describe('ONCEONLY_REQUIRE=all', () => {
  const enough = Object.fromEntries(Object.keys(noCounts()).map((name) => [name, 100_000])) as unknown as Counts
  const met = { counts: enough, scale: 1, skipped: [], points: { 'sqlite run: settle before': 1 }, isWhole: true }

  test.each(['redis: not found', 'full disk: not root', 'moved clocks: no libfaketime'])(
    'makes a run INVALID that has skipped "%s"',
    (line) => {
      expect(invalidities({ ...met, isStrict: false, skipped: [line] })).toEqual([])
      expect(invalidities({ ...met, isStrict: true, skipped: [line] })).toEqual([
        `skipped: ${line} (a skip is a failure because ONCEONLY_REQUIRE=all)`,
      ])
    },
  )

  test('looks at every quota also when a store, the disk or the clock is missing', () => {
    const strict = invalidities({ ...met, isStrict: true, counts: noCounts(), skipped: ['redis: x', 'full disk: y'] })
    for (const name of ['kills', 'diskFull', 'clockJumps'])
      expect(strict.some((line) => line.startsWith(`${name}: 0, at least`))).toBe(true)
    expect(invalidities({ ...met, isStrict: true, isWhole: false })).toHaveLength(1)
  })
})

test('a run that met too little is INVALID', () => {
  expect(missedQuotas(noCounts(), 1, [])).toContain('kills: 0, at least 500 expected')
  expect(missedQuotas(noCounts(), 1, ['moved clocks: no libfaketime']).join()).not.toContain('clockJumps')
})
