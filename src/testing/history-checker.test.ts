import { describe, expect, test } from 'vitest'
import type { ClaimRequest, Verdict } from '../core/store.ts'
import { emptyHistory } from './history-checker/history.ts'
import type { CallRecord, History, RowChange, StoreOperation } from './history-checker/history.ts'
import { isLinearizable } from './history-checker/linearizable.ts'
import { checkHistory } from './history-checker.ts'

const key = { scope: 'shop', id: '1' }
const name = 'shop\n1'
const retention = { keepMs: 100_000, tombstoneMs: 0 }
const outcome = Buffer.from('j1')

const request = (token: string, more: Partial<ClaimRequest> = {}): ClaimRequest => ({
  token,
  fingerprint: 'f',
  leaseMs: 1_000,
  retention,
  version: 0,
  onTakeover: 'run',
  onExpired: 'refuse',
  ...more,
})
const granted = (token: string, attempt: number, how: 'fresh' | 'reopened' | 'taken-over'): Verdict => ({
  is: 'granted',
  claim: { key, token, attempt, fence: attempt },
  how,
})
const settled: Verdict = { is: 'settled', outcome, version: 0, attempt: 1 }

type When = readonly [sentAtMs: number, answeredAtMs: number | undefined]

function at([sentAtMs, answeredAtMs]: When): { process: string; key: string; sentAtMs: number; answeredAtMs?: number } {
  return { process: 'p', key: name, sentAtMs, ...(answeredAtMs !== undefined && { answeredAtMs }) }
}
const claim = (token: string, when: When, answer?: Verdict, more?: Partial<ClaimRequest>): StoreOperation => ({
  ...at(when),
  call: 'claim',
  request: request(token, more),
  ...(answer && { answer }),
})
const settle = (token: string, when: When, answer?: 'done' | 'lost'): StoreOperation => ({
  ...at(when),
  call: 'settle',
  token,
  outcome,
  retention,
  ...(answer && { answer }),
})
const extend = (token: string, when: When, answer?: 'done' | 'lost'): StoreOperation => ({
  ...at(when),
  call: 'extend',
  token,
  leaseMs: 1_000,
  ...(answer && { answer }),
})
const keep = (keepMs: number, when: When): StoreOperation => ({
  ...at(when),
  call: 'mend',
  action: { keepMs },
  answer: 'done',
})

describe('linearizable, as far as the clients know', () => {
  test('a claim, a settle and a replay', () => {
    const history = [
      claim('a', [0, 10], granted('a', 1, 'fresh')),
      settle('a', [20, 30], 'done'),
      claim('b', [40, 50], settled),
    ]
    expect(isLinearizable(history).is).toBe('yes')
  })

  test('two holders at once are not', () => {
    const history = [claim('a', [0, 10], granted('a', 1, 'fresh')), claim('b', [20, 30], granted('b', 1, 'fresh'))]
    expect(isLinearizable(history).is).toBe('no')
  })

  test('a takeover before the lease can have ended is not; after it, it is', () => {
    const takenOver = (sentAtMs: number): StoreOperation[] => [
      claim('a', [0, 10], granted('a', 1, 'fresh')),
      claim('b', [sentAtMs, sentAtMs + 10], granted('b', 2, 'taken-over')),
    ]
    expect(isLinearizable(takenOver(980)).is).toBe('no')
    expect(isLinearizable(takenOver(995)).is).toBe('yes')
  })

  test('busy after the lease must have ended is not', () => {
    const history = (sentAtMs: number): StoreOperation[] => [
      claim('a', [0, 10], granted('a', 1, 'fresh')),
      claim('b', [sentAtMs, sentAtMs + 10], { is: 'busy', retryAfterMs: 1 }),
    ]
    expect(isLinearizable(history(1_005)).is).toBe('yes')
    expect(isLinearizable(history(1_011)).is).toBe('no')
  })

  test('a keep that is shorter than what the key has anyway leaves its lease as it was', () => {
    const history = [
      claim('a', [0, 0], granted('a', 1, 'fresh')),
      keep(1, [1_500, 1_500]),
      claim('b', [1_600, 1_600], granted('b', 2, 'taken-over')),
    ]
    expect(isLinearizable(history).is).toBe('yes')
  })

  // The lease ends at 1,000. The keep at 1,500 makes the entry expire at 201,500, and the extend moves that by 1,600.
  test('two people resolve a key at one moment, each with another outcome: either may have been first', () => {
    const resolve = (text: string): StoreOperation => ({
      ...at([100, 200]),
      call: 'mend',
      action: { resolve: Buffer.from(text), retention },
      answer: 'done',
    })
    const history = (told: string): StoreOperation[] => [
      claim('a', [0, 10], granted('a', 1, 'fresh')),
      resolve('j1'),
      resolve('j2'),
      claim('b', [300, 310], { is: 'settled', outcome: Buffer.from(told), version: 0, attempt: 1 }),
    ]
    expect(isLinearizable(history('j1')).is).toBe('yes')
    expect(isLinearizable(history('j2')).is).toBe('yes')
    expect(isLinearizable(history('j3')).is).toBe('no')
  })

  test('what a keep has added to an abandoned key goes along when its holder extends the lease', () => {
    const history = (atMs: number, answer: Verdict): StoreOperation[] => [
      claim('a', [0, 0], granted('a', 1, 'fresh')),
      keep(200_000, [1_500, 1_500]),
      extend('a', [1_600, 1_600], 'done'),
      claim('b', [atMs, atMs], answer, { onTakeover: 'refuse' }),
    ]
    const doubt: Verdict = { is: 'doubt', attempt: 1 }
    expect(isLinearizable(history(203_099, doubt)).is).toBe('yes')
    expect(isLinearizable(history(203_101, doubt)).is).toBe('no')
    expect(isLinearizable(history(203_099, { is: 'expired' })).is).toBe('no')
  })

  test('a keep and a settle of one moment may have come in either order', () => {
    const history = (atMs: number): StoreOperation[] => [
      claim('a', [0, 0], granted('a', 1, 'fresh')),
      keep(200_000, [100, 110]),
      settle('a', [100, 110], 'done'),
      claim('b', [atMs, atMs], settled),
    ]
    expect(isLinearizable(history(150_000)).is).toBe('yes')
    expect(isLinearizable(history(250_000)).is).toBe('no')
  })

  test('a settle that nobody heard of explains a replay; without it there is no explanation', () => {
    const first = claim('a', [0, 10], granted('a', 1, 'fresh'))
    const replay = claim('b', [40, 50], settled)
    expect(isLinearizable([first, settle('a', [20, undefined]), replay]).is).toBe('yes')
    expect(isLinearizable([first, replay]).is).toBe('no')
  })

  test('an extend that nobody heard of explains why a key is still busy', () => {
    const first = claim('a', [0, 10], granted('a', 1, 'fresh'))
    const busy = claim('b', [1_500, 1_510], { is: 'busy', retryAfterMs: 1 })
    expect(isLinearizable([first, extend('a', [700, undefined]), busy]).is).toBe('yes')
    expect(isLinearizable([first, busy]).is).toBe('no')
  })

  test('a write of the old holder that is accepted after a takeover is not', () => {
    const history = (answer: 'done' | 'lost'): StoreOperation[] => [
      claim('a', [0, 10], granted('a', 1, 'fresh')),
      claim('b', [2_000, 2_010], granted('b', 2, 'taken-over')),
      settle('a', [2_020, 2_030], answer),
    ]
    expect(isLinearizable(history('lost')).is).toBe('yes')
    expect(isLinearizable(history('done')).is).toBe('no')
  })

  test('operations that overlap may be in either order', () => {
    const history = [
      claim('a', [0, 100], { is: 'busy', retryAfterMs: 900 }),
      claim('b', [50, 150], granted('b', 1, 'fresh')),
    ]
    expect(isLinearizable(history).is).toBe('yes')
    expect(isLinearizable([history[0]!, claim('b', [101, 150], granted('b', 1, 'fresh'))]).is).toBe('no')
  })

  test('clocks that disagree are allowed for as far as is said', () => {
    const history = [
      claim('a', [0, 10], granted('a', 1, 'fresh')),
      claim('b', [900, 910], granted('b', 2, 'taken-over')),
    ]
    expect(isLinearizable(history).is).toBe('no')
    expect(isLinearizable(history, { clockErrorMs: 50 }).is).toBe('yes')
  })

  /** Takeover after takeover, each with a heartbeat and a busy neighbour that overlap, and a settle that came too late. */
  function longHistory(takeovers: number): StoreOperation[] {
    return Array.from({ length: takeovers }, (_, index) => {
      const [fromMs, token] = [index * 3_000, `t${index}`]
      return [
        claim(token, [fromMs, fromMs + 20], granted(token, index + 1, index === 0 ? 'fresh' : 'taken-over')),
        extend(token, [fromMs + 200, fromMs + 230], 'done'),
        claim(`busy ${index}`, [fromMs + 190, fromMs + 240], { is: 'busy', retryAfterMs: 1 }),
        extend(token, [fromMs + 400, undefined]),
        ...(index === 0 ? [] : [settle(`t${index - 1}`, [fromMs + 250, fromMs + 260], 'lost')]),
      ]
    }).flat()
  }

  test('a key that was asked for tens of thousands of times is searched to the end', () => {
    const history = longHistory(5_000)
    expect(history.length).toBeGreaterThan(20_000)
    expect(isLinearizable(history).is).toBe('yes')
  })

  test('one wrong answer among thousands is found, and told by what came before it', () => {
    const history = longHistory(1_000)
    const at = history.findIndex((each) => each.call === 'settle' && each.sentAtMs > 1_500_000)
    const found = isLinearizable(history.with(at, settle('t1', [1_503_250, 1_503_260], 'done')))
    if (found.is !== 'no') expect.unreachable(`it is said to be ${found.is}`)
    expect(found.stuck.map(({ call, sentAtMs }) => [call, sentAtMs])).toContainEqual(['settle', 1_503_250])
    expect(found.fit.every(({ sentAtMs }) => sentAtMs < 1_503_300)).toBe(true)
  })

  test('what nobody heard of and would change nothing costs no search', () => {
    const unheard = Array.from({ length: 300 }, (_, index) => extend(`gone ${index}`, [1, undefined]))
    const first = claim('a', [0, 10], granted('a', 1, 'fresh'))
    expect(isLinearizable([first, ...unheard, settle('a', [20, 30], 'lost')]).is).toBe('no')
  })

  test('another fingerprint is a mismatch, and nothing else', () => {
    const first = claim('a', [0, 10], granted('a', 1, 'fresh'))
    const other = (answer: Verdict): StoreOperation => claim('b', [20, 30], answer, { fingerprint: 'g' })
    expect(isLinearizable([first, other({ is: 'mismatch' })]).is).toBe('yes')
    expect(isLinearizable([first, other({ is: 'busy', retryAfterMs: 1 })]).is).toBe('no')
  })
})

describe('a history', () => {
  const call = (more: Partial<CallRecord> = {}): CallRecord => ({
    process: 'p',
    key,
    asked: 'this',
    how: 'run',
    phase: 'first',
    waitMs: 0,
    startedAtMs: 0,
    endedAtMs: 30,
    answer: { is: 'value', text: '1', execution: 0, replayed: false },
    ...more,
  })

  /** One call that went well. */
  function good(): History {
    const history = emptyHistory()
    const record = call()
    history.calls.push(record)
    const [asked, written] = [claim('a', [0, 10], granted('a', 1, 'fresh')), settle('a', [20, 30], 'done')]
    asked.decidedAtMs = 5
    written.decidedAtMs = 25
    history.operations.push(asked, written)
    history.executions.push({
      call: record,
      token: 'a',
      attempt: 1,
      fence: 1,
      derivedKey: 'd',
      startedAtMs: 10,
      endedAtMs: 18,
      ended: 'returned',
    })
    history.effects.push({ execution: 0, atMs: 15, transactional: false })
    const row = {
      token: 'a',
      attempt: 1,
      fence: 1,
      fingerprint: 'f',
      wrote: 'claim',
      leaseUntilMs: 1_005,
      ...retention,
    } as const
    const end = { ...row, wrote: 'settle', leaseUntilMs: 25, outcome } as const
    history.changes.push({ key: name, atMs: 5, before: undefined, after: row, by: 0 })
    history.changes.push({ key: name, atMs: 25, before: row, after: end, by: 1 })
    return history
  }
  const found = (history: History): string[] =>
    checkHistory(history, { seenBy: 'store' }).map(({ assertion }) => assertion)

  test('in which all went well has no violation', () => {
    expect(checkHistory(good(), { seenBy: 'store', weather: 'calm' })).toEqual([])
    expect(checkHistory(good())).toEqual([])
  })

  test('in which an answer has no effect, or two', () => {
    const without = good()
    without.effects.length = 0
    expect(found(without)).toEqual(['answer-has-effect'])
    const twice = good()
    twice.effects.push(twice.effects[0]!)
    expect(found(twice)).toEqual(['answer-has-effect'])
  })

  test('in which two callers are told different things', () => {
    const history = good()
    history.calls.push(call({ answer: { is: 'value', text: '2', execution: 0, replayed: true } }))
    expect(found(history)).toEqual(['same-answer'])
  })

  test('in which somebody is told "not executed" of an effect that took place', () => {
    const history = good()
    history.calls[0]!.answer = { is: 'refused', code: 'STORE_UNAVAILABLE', executed: 'no', message: '' }
    expect(found(history)).toEqual(['not-executed-left-nothing'])
  })

  test('in which an answer left before its outcome was settled', () => {
    const history = good()
    history.calls[0]!.endedAtMs = 20
    expect(found(history)).toEqual(['answer-after-settle'])
  })

  test('in which a person resolves what was granted again after a grant that nobody was told of', () => {
    const history = good()
    const [grant, settled] = history.changes.splice(0) as [RowChange, RowChange]
    const taken = { ...grant.after!, fence: 0 }
    const back = { ...at([3, 4]), call: 'release', token: 'a', how: 'forget', takesBack: true } as const
    const resolve = { ...at([24, 26]), call: 'mend', action: { resolve: outcome, retention } } as const
    const by = history.operations.push(back, resolve) - 1
    history.changes.push({ ...grant, atMs: 3, after: taken, untold: true })
    history.changes.push({ ...grant, atMs: 4, before: taken, after: undefined, by: by - 1 })
    history.changes.push(grant, { ...settled, after: { ...settled.after!, fence: 2 }, by })
    expect(checkHistory(history).map(({ assertion }) => assertion)).toEqual([])
  })

  test('in which an effect ran without a claim', () => {
    const history = good()
    history.executions.push({ ...history.executions[0]!, token: 'z' })
    expect(found(history)).toEqual(['claim-before-effect'])
  })

  test('in which something was written about an effect that still ran', () => {
    const history = good()
    history.executions[0]!.endedAtMs = 21
    expect(found(history)).toEqual(['write-after-effect'])
  })

  test('in which an effect that is in doubt gave its key back', () => {
    const history = good()
    history.executions[0]!.ended = 'doubt'
    history.operations.push({ ...at([26, undefined]), call: 'release', token: 'a', how: 'open' })
    expect(found(history)).toEqual(['release-fits-effect'])
  })

  test('in which a lease was extended after the call was answered', () => {
    const history = good()
    history.operations.push(extend('a', [40, undefined]))
    expect(found(history)).toEqual(['quiet-after-end'])
  })

  test('in which a settled row is written again', () => {
    const history = good()
    const { after } = history.changes[1]!
    history.changes.push({
      key: name,
      atMs: 50,
      before: after,
      after: { ...after!, outcome: Buffer.from('j2') },
      by: undefined,
    })
    expect(found(history)).toEqual(['settled-is-final'])
  })

  test('in which somebody is never answered', () => {
    const history = good()
    history.calls.push({ ...call(), answer: undefined } as unknown as CallRecord)
    expect(found(history)).toEqual(['everybody-answered'])
  })

  test('in which the last ask of all finds the key still out of reach', () => {
    const history = good()
    const answer = { is: 'refused', code: 'IN_FLIGHT', executed: 'unknown', message: '' } as const
    history.calls.push(call({ phase: 'last', answer }))
    expect(found(history)).toEqual(['no-wedge'])
  })

  test('in calm weather in which a duplicate was refused without need', () => {
    const answer = { is: 'refused', code: 'IN_FLIGHT', executed: 'unknown', message: '' } as const
    const calmlyFound = (duplicate: Partial<CallRecord>): readonly string[] => {
      const history = good()
      history.calls.push(call({ ...duplicate, answer }))
      return checkHistory(history, { seenBy: 'store', weather: 'calm' }).map(({ assertion }) => assertion)
    }
    expect(calmlyFound({ startedAtMs: 100, endedAtMs: 110 })).toEqual(['calm-is-free'])
    // It waits by its own clock, which may be faster by a thousandth, and no more than that.
    expect(calmlyFound({ startedAtMs: 0, endedAtMs: 9_991, waitMs: 10_000 })).toEqual([])
    expect(calmlyFound({ startedAtMs: 0, endedAtMs: 9_985, waitMs: 10_000 })).toEqual(['calm-is-free'])
  })
})
