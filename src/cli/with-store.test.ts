import { afterEach, expect, test, vi } from 'vitest'
import { storeWords } from './with-store.ts'

afterEach(() => vi.unstubAllEnvs())

test('a command to be pasted names the store, unless the environment does and has a password', () => {
  const [url, shown] = ['postgres://app:secret@db/shop', 'postgres://db/shop']
  expect(storeWords('sqlite:a b.db', 'sqlite:a b.db')).toBe("--store 'sqlite:a b.db'")
  expect(storeWords(url, shown)).toBe(`--store ${shown}`)
  vi.stubEnv('ONCEONLY_STORE', url)
  expect(storeWords(undefined, shown)).toBe('')
  // The file of a gateway can name the same store.
  expect(storeWords(url, shown)).toBe('')
  vi.stubEnv('ONCEONLY_STORE', 'sqlite:a.db')
  expect(storeWords(undefined, 'sqlite:a.db')).toBe('--store sqlite:a.db')
  // Without its name the command would work on the store of the environment.
  expect(storeWords(url, shown)).toBe(`--store ${shown}`)
})
