import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, expect, test } from 'vitest'
import { memoryStore } from '../../stores/memory.ts'
import { nodeVersionMin } from './node-version.ts'
import { createOnce } from '../once.ts'

const own = Object.getOwnPropertyDescriptor(process.versions, 'node')!
const pretend = (value: string | undefined): void =>
  void Object.defineProperty(process.versions, 'node', { ...own, value: value as string })
afterEach(() => void Object.defineProperty(process.versions, 'node', own))

test.each(['20.20.2', '22.12.0', '18.0.0'])(
  'on Node %s a store and createOnce refuse, and name both versions',
  (version) => {
    const store = memoryStore()
    pretend(version)
    const words = `onceonly needs Node ${nodeVersionMin} or later, and this is Node ${version}`
    expect(() => memoryStore()).toThrow(words)
    expect(() => createOnce({ store, scope: 'payments' })).toThrow(
      expect.objectContaining({
        code: 'UNSUPPORTED',
        executed: 'no',
        message: expect.stringContaining(words) as string,
      }),
    )
  },
)

test.each(['22.13.0', '23.0.0', '24.1.0', '100.0.0', undefined])('on Node %s both work', (version) => {
  pretend(version)
  expect(() => createOnce({ store: memoryStore(), scope: 'payments', sweepEveryMs: false })).not.toThrow()
})

test('the version is the one of package.json', () => {
  const { engines } = JSON.parse(readFileSync(join(import.meta.dirname, '../../../package.json'), 'utf8')) as {
    engines: { node: string }
  }
  expect(engines.node).toBe(`>=${nodeVersionMin}`)
})
