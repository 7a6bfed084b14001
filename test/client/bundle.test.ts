// What a browser loads for the client: less than 6 kB, with sessions less than 9.5 kB, and nothing of Node.

import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { expect, test } from 'vitest'
import { bundled } from './bundled.ts'

test('a client that numbers its requests is below 9.5 kB with its keys, and a page without sessions loads nothing of it', async () => {
  const code = await bundled(join(import.meta.dirname, 'session-page.ts'))
  expect(code).not.toMatch(/\bfrom\s*["']\.|\bimport\b|\brequire\(|\bBuffer\b|["']node:/)
  expect(await bundled(join(import.meta.dirname, 'page.ts'))).not.toMatch(/Idempotency-Session|holder/)
  const bytes = gzipSync(code, { level: 9 }).length
  console.log(`onceonly/client with sessions: ${bytes} bytes gzipped`)
  expect(bytes).toBeLessThan(9_500)
})

test('the client for a browser is below 6 kB gzipped, and imports nothing', async () => {
  const code = await bundled(join(import.meta.dirname, 'page.ts'))
  expect(code).not.toMatch(/\bfrom\s*["']\.|\bimport\b|\brequire\(|\bBuffer\b|["']node:/)
  const bytes = gzipSync(code, { level: 9 }).length
  console.log(`onceonly/client: ${bytes} bytes gzipped, ${code.length} bytes minified`)
  expect(bytes).toBeLessThan(6_000)
})
