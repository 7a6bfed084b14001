import { createHash } from 'node:crypto'
import { expect, test } from 'vitest'
import { checkDigest, claimedSha256, DigestError } from './content-digest.ts'
import { keptBytes } from './kept-body.ts'

const sha256 = createHash('sha256').update('abc').digest('base64')
const other = createHash('sha256').update('abd').digest('base64')

test.each([
  `sha-256=:${sha256}:`,
  `\t sha-256=:${sha256}: `,
  `sha-256=:${sha256}:;a=1`,
  `sha-512=:${sha256}${sha256}:, sha-256=:${sha256}:`,
  `sha-256=:short=:,sha-256=:${sha256}:`,
])('the sha-256 is found: %s', (field) => expect(claimedSha256(field)).toBe(sha256))

test.each([
  undefined,
  '',
  sha256,
  `sha-256=${sha256}`,
  `sha-256=:${sha256}`,
  `sha-256=:${sha256}:x`,
  `x sha-256=:${sha256}:`,
  `sha-512=:${sha256}:`,
  `sha-256=:${sha256.slice(1)}:`,
  `sha-256=:a${sha256}:`,
])('no valid one is found: %s', (field) => expect(claimedSha256(field)).toBeUndefined())

test('a digest is that of all chunks, and what it says at the end it says for ever', () => {
  const check = checkDigest(sha256)
  for (const chunk of ['a', 'bc']) check.update(Buffer.from(chunk))
  expect([check.holds(), check.holds()]).toEqual([true, true])
  const wrong = checkDigest(sha256)
  wrong.update(Buffer.from('a'))
  expect([wrong.holds(), wrong.holds()]).toEqual([false, false])
})

test('a framework answers the error of a false digest with 400, whichever member it reads', () => {
  expect(new DigestError()).toMatchObject({
    status: 400,
    statusCode: 400,
    message: expect.stringContaining('Content-Digest') as string,
  })
})

test('a body that a parser kept is bounded like one that is read, and its digest is checked at once', () => {
  const bytes = Buffer.from('abc')
  expect(keptBytes(bytes, { bytesMax: 3, sha256: undefined })).toEqual({ is: 'bytes', bytes })
  expect(keptBytes(bytes, { bytesMax: 3, sha256: other })).toEqual({ is: 'bytes', bytes })
  expect(keptBytes(bytes, { bytesMax: 2, sha256: undefined })).toEqual({ is: 'too-large' })
  expect(keptBytes(bytes, { bytesMax: 2, sha256 })).toEqual({ is: 'bytes', bytes })
  expect(keptBytes(bytes, { bytesMax: 2, sha256: other })).toEqual({ is: 'digest-mismatch' })
  expect(() => keptBytes(undefined, { bytesMax: 3, sha256 })).toThrow(
    expect.objectContaining({ code: 'UNSUPPORTED', message: expect.stringContaining('rawBody') as string }),
  )
})
