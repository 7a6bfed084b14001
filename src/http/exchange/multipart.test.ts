import fc from 'fast-check'
import { expect, test } from 'vitest'
import { boundaryOf, multipartDigest } from './multipart.ts'

async function form(value: string): Promise<{ type: string; body: Uint8Array }> {
  const data = new FormData()
  data.set('name', value)
  data.set('file', new Blob(['a\r\n--b\r\nc']), 'a.txt')
  const request = new Request('http://localhost', { method: 'POST', body: data })
  return { type: request.headers.get('content-type')!, body: new Uint8Array(await request.arrayBuffer()) }
}

function digestOf({ type, body }: { type: string; body: Uint8Array }): string | undefined {
  return multipartDigest(body, boundaryOf(type)!)
}

test('a form that is sent twice has two boundaries and one digest; another form has another', async () => {
  const [first, again, other] = [await form('x'), await form('x'), await form('y')]
  expect(first.type).not.toBe(again.type)
  expect(digestOf(first)).toBeDefined()
  expect(digestOf(again)).toBe(digestOf(first))
  expect(digestOf(other)).not.toBe(digestOf(first))
})

test('lists of parts that differ never meet, whatever is moved from one part to the next', () => {
  const part = fc.string({ unit: fc.constantFrom('a', '1', ':', '-', '\r', '\n'), maxLength: 6 })
  const body = (parts: readonly string[], boundary: string): Uint8Array =>
    Buffer.from(`${parts.map((each) => `--${boundary}\r\n\r\n${each}\r\n`).join('')}--${boundary}--\r\n`)
  // What stands between two parts, moved into one of them.
  expect(multipartDigest(body(['a', 'b'], 'first'), 'first')).not.toBe(
    multipartDigest(body(['a\r\n\r\nb'], 'first'), 'first'),
  )
  const lists = fc.array(part, { maxLength: 4 })
  fc.assert(
    fc.property(lists, lists, (one, other) => {
      const [a, b] = [multipartDigest(body(one, 'first'), 'first'), multipartDigest(body(other, 'second'), 'second')]
      expect(a).toBeDefined()
      expect(a === b).toBe(JSON.stringify(one) === JSON.stringify(other))
    }),
  )
})

test('a body that is not what its boundary says is left to its bytes', () => {
  for (const body of ['', 'x', '--b', '--b\r\n\r\nx', 'preamble--b--', '--c--'])
    expect(multipartDigest(Buffer.from(body), 'b'), body).toBeUndefined()
  for (const type of [
    '',
    'text/plain; boundary=b',
    'multipart/form-data',
    `multipart/form-data; boundary=${'b'.repeat(71)}`,
  ])
    expect(boundaryOf(type), type).toBeUndefined()
  expect(boundaryOf('multipart/form-data; charset=utf-8; boundary="a b"')).toBe('a b')
})

test.each([
  ['multipart/form-data; boundary=b', 'b'],
  ['Multipart/Mixed;BOUNDARY=b', 'b'],
  ['multipart/form-data ; boundary=b ; charset=utf-8', 'b'],
  [`multipart/form-data; boundary=${'b'.repeat(70)}`, 'b'.repeat(70)],
  [`multipart/form-data; boundary="'()+_,./:=?-"`, `'()+_,./:=?-`],
  ['multipart/form-data; boundary="b "', undefined],
  ['multipart/form-data; boundary=""', undefined],
  ['multipart/form-data; boundary=', undefined],
  ['multipart/form-data; boundary=a b', undefined],
  ['multipart/form-data; boundary=a"b', undefined],
  ['multipart/; boundary=b', undefined],
  ['xmultipart/form-data; boundary=b', undefined],
  ['multipart/form-data; a="x;boundary=b"', undefined],
  [`multipart/form-data; boundary=b; ${'x'.repeat(1_024 - 35)}`, 'b'],
  [`multipart/form-data; boundary=b; ${'x'.repeat(1_024)}`, undefined],
  [undefined, undefined],
])('the boundary of %s is %s', (type, boundary) => expect(boundaryOf(type)).toBe(boundary))

test('what stands before the first part and after the last is compared, too', () => {
  const body = (before: string, after: string): string | undefined =>
    multipartDigest(Buffer.from(`${before}--b\r\n\r\nx\r\n--b--${after}`), 'b')
  const all = [body('', ''), body('\r\n', ''), body('a\r\n', ''), body('c\r\n', ''), body('', '\r\n'), body('', 'a')]
  for (const each of all) expect(each).toBeDefined()
  // Nothing, or a line break and nothing before it, is before the first part.
  expect(new Set(all).size).toBe(5)
  expect(body('\r\n', '')).toBe(body('', ''))
  expect(multipartDigest(Buffer.from('--b--'), 'b')).toBeDefined()
  expect(multipartDigest(Buffer.from('--b-x\r\n--b--'), 'b')).not.toBe(
    multipartDigest(Buffer.from('--b--x\r\n--b--'), 'b'),
  )
})

test('time grows with the body, not with what is in it', () => {
  const heavy = Buffer.from('\r\n--'.repeat(250_000))
  // Of this thread alone: a busy machine takes longer for the same work.
  const before = process.threadCpuUsage()
  for (const boundary of ['-', '--', '\r', 'b'.repeat(70)]) multipartDigest(heavy, boundary)
  boundaryOf(`multipart/form-data;${' ;'.repeat(500)}`)
  const { user, system } = process.threadCpuUsage(before)
  expect((user + system) / 1_000).toBeLessThan(2_000)
})
