import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { expect, test, vi } from 'vitest'
import { eventNames, isHeard, publish } from './events.ts'
import { hashKey, key } from './key.ts'

test('an event reaches those who subscribed to its name, with a hash of its key, and costs nothing without them', () => {
  const [heard, other] = [vi.fn(), vi.fn()]
  subscribe('onceonly:doubted', other)
  expect(isHeard('expired')).toBe(false)
  publish('expired', key('payments', '42'), {})
  subscribe('onceonly:expired', heard)
  expect(isHeard('expired')).toBe(true)
  const subject = key('payments', '42')
  publish('expired', subject, {})
  publish('expired', undefined, {})
  unsubscribe('onceonly:expired', heard)
  unsubscribe('onceonly:doubted', other)
  expect(isHeard('expired')).toBe(false)
  expect(heard.mock.calls.map(([event]) => event as object)).toEqual([
    { scope: 'payments', keyHash: hashKey(subject) },
    { scope: undefined, keyHash: undefined },
  ])
  expect(other).not.toHaveBeenCalled()
  // A key without subscribers is not even hashed: this one could not be.
  expect(() => publish('expired', {} as never, {})).not.toThrow()
})

test('every name is there once', () => {
  expect(new Set(eventNames).size).toBe(eventNames.length)
})
