import type { IncomingMessage } from 'node:http'
import { expect, test } from 'vitest'
import { manualClock } from '../../testing/manual-clock.ts'
import { createGuard } from './guard.ts'
import type { Refusal } from './guard.ts'

const token = 'a token of enough characters'

function bearing(given: string, remoteAddress: string): IncomingMessage {
  return { headers: { authorization: `Bearer ${given}` }, socket: { remoteAddress } } as unknown as IncomingMessage
}

test('whoever guesses is slowed down; the right token is let in, from there after a wait, from elsewhere at once', async () => {
  const clock = manualClock()
  const guard = createGuard('0.0.0.0', token, clock)
  const ask = async (given: string, address = '10.0.0.1'): Promise<number> =>
    (await guard.refuseChange(bearing(given, address)))?.status ?? 200
  for (let wrong = 1; wrong <= 10; wrong++) expect(await ask('wrong')).toBe(401)
  const guesses = Array.from({ length: 20 }, () => ask('wrong'))
  const right = ask(token)
  expect(await ask(token, '10.0.0.2')).toBe(200)
  expect(await right).toBe(429)
  await clock.advance(3_000)
  const settled: number[] = []
  for (const guess of guesses) void guess.then((status) => settled.push(status))
  await clock.advance(0)
  expect([401, 429].map((each) => settled.filter((status) => status === each).length)).toEqual([3, 10])
  await clock.advance(7_000)
  const later = ask(token)
  await clock.advance(1_000)
  expect(await later).toBe(200)
  expect(await ask(token)).toBe(200)
})

test('to bring no token is no guess', async () => {
  const guard = createGuard('127.0.0.1', token, manualClock())
  const plain = { headers: {}, socket: { remoteAddress: '127.0.0.1' } } as unknown as IncomingMessage
  const refusals: (Refusal | undefined)[] = []
  for (let time = 1; time <= 50; time++) refusals.push(await guard.refuseChange(plain))
  expect(new Set(refusals.map((refusal) => refusal?.status))).toEqual(new Set([401]))
  expect(await guard.refuseChange(bearing(token, '127.0.0.1'))).toBeUndefined()
})
