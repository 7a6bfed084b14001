// What a browser loads for the client: less than 6 kB, and nothing of Node.

import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { expect, test } from 'vitest'
import { bundled } from './bundled.ts'

test('the client for a browser is below 6 kB gzipped, and imports nothing', async () => {
  const code = await bundled(join(import.meta.dirname, 'page.ts'))
  expect(code).not.toMatch(/\bfrom\s*["']\.|\bimport\b|\brequire\(|\bBuffer\b|["']node:/)
  const bytes = gzipSync(code, { level: 9 }).length
  console.log(`onceonly/client: ${bytes} bytes gzipped, ${code.length} bytes minified`)
  expect(bytes).toBeLessThan(6_000)
})
