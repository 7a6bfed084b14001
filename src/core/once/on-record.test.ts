import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { expect, test, vi } from 'vitest'
import { memoryStore } from '../../stores/memory.ts'
import type { MemoryStore } from '../../stores/memory.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import { OnceError } from '../errors.ts'
import { hashKey, key } from '../key.ts'
import { checkRecordedReason, onRecord } from './on-record.ts'

const subject = key('shop/inbox', 'm-1')
const redrive = { what: 'redrive', reason: 'the bank is back' } as const

function heardOf(): { heard: unknown[]; end(): void } {
  const heard: unknown[] = []
  const listener = (event: unknown): void => void heard.push(event)
  subscribe('onceonly:mended', listener)
  return { heard, end: () => unsubscribe('onceonly:mended', listener) }
}

async function recorded(store: MemoryStore, change: () => Promise<boolean>): Promise<unknown[]> {
  const { heard, end } = heardOf()
  await onRecord(store, subject, redrive, change).finally(end)
  return heard
}

test('the reason is in the audit trail before the change is made, and no entry is left', async () => {
  const store = memoryStore({ clock: manualClock() })
  const seen: unknown[] = []
  const change = vi.fn(async () => {
    seen.push(...(await store.audit(subject)), await store.show(subject))
    return true
  })
  expect(await recorded(store, change)).toEqual([{ scope: 'shop/inbox', keyHash: hashKey(subject), action: 'redrive' }])
  expect(change).toHaveBeenCalledTimes(1)
  expect(seen).toMatchObject([{ action: 'forget', reason: 'redrive: the bank is back', before: 'running' }, undefined])
})

test('what there was nothing to change of is not told as a change', async () => {
  expect(await recorded(memoryStore(), async () => false)).toEqual([])
  expect(await onRecord(memoryStore(), subject, redrive, async () => false)).toBe(false)
  expect(await onRecord(memoryStore(), subject, redrive, async () => true)).toBe(true)
})

test('a reason that may not be on record is told as no change, and none is made', async () => {
  const cause = new OnceError('STORE_UNAVAILABLE', { message: 'the reply was lost', executed: 'unknown' })
  const change = vi.fn(async () => true)
  const store = { ...memoryStore(), mend: () => Promise.reject(cause) }
  await expect(onRecord(store, subject, redrive, change)).rejects.toMatchObject({
    code: 'STORE_UNAVAILABLE',
    executed: 'no',
    retryable: true,
    message: 'The reason could not be put on record, so nothing was changed. (the reply was lost)',
    cause,
  })
  expect(change).not.toHaveBeenCalled()
})

test('an entry that is there is left as it is, in every state, and nothing is changed', async () => {
  const clock = manualClock()
  const store = memoryStore({ clock })
  const request = {
    token: 'a',
    fingerprint: 'f',
    leaseMs: 1_000,
    retention: { keepMs: 1_000, tombstoneMs: 1_000 },
    version: 0,
    onTakeover: 'run',
    onExpired: 'run',
  } as const
  await store.claim(subject, request)
  const change = vi.fn(async () => true)
  for (const state of ['running', 'abandoned', 'tombstone']) {
    expect((await store.show(subject))!.state).toBe(state)
    await expect(onRecord(store, subject, redrive, change)).rejects.toMatchObject({
      code: 'IN_FLIGHT',
      message: expect.stringContaining('shop/inbox/m-1'),
    })
    await clock.advance(1_000)
  }
  expect(change).not.toHaveBeenCalled()
  expect(await onRecord(store, subject, redrive, change)).toBe(true)
})

test('a process that dies between two calls leaves an entry that is gone a moment after its lease of a minute', async () => {
  const clock = manualClock()
  const store = memoryStore({ clock })
  const died = new Error('died')
  await expect(
    onRecord({ ...store, mend: () => Promise.reject(died) }, subject, redrive, async () => true),
  ).rejects.toBe(died)
  const left = (await store.show(subject))!
  expect(left).toMatchObject({ state: 'running', version: 0, leaseUntilMs: clock.now() + 60_000 })
  expect([left.expiresAtMs - left.leaseUntilMs, left.forgottenAtMs - left.expiresAtMs]).toEqual([1, 1])
  const { mend: _mend, ...blind } = memoryStore()
  await expect(onRecord(blind, subject, redrive, async () => true)).rejects.toMatchObject({ code: 'IN_FLIGHT' })
  await expect(onRecord(store, {} as never, redrive, async () => true)).rejects.toThrow('expected scope')
})

test('a reason is text, and not longer than the trail keeps', () => {
  expect(() => checkRecordedReason('redrive', 'x'.repeat(500))).not.toThrow()
  expect(() => checkRecordedReason('redrive', ' x')).not.toThrow()
  for (const reason of ['', ' \n', undefined, 5]) {
    expect(() => checkRecordedReason('redrive', reason)).toThrow('redrive: expected a reason, for the audit trail, got')
  }
  expect(() => checkRecordedReason('redrive', 'x'.repeat(501))).toThrow('of at most 500 characters, got 501')
})
