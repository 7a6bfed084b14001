// Arrays as the server reads them in binary form: the client sends a Buffer as it is, and neither side writes or reads text. Of
// the layout of a message (PostgreSQL, src/backend/utils/adt/arrayfuncs.c, array_recv): dimensions, a flag for nulls, the number
// of the type, length and lower bound, then each element after its length. A null element has the length -1.

const types = { text: 25, uuid: 2950, integer: 23, bigint: 20, bytea: 17 } as const

const headBytes = 20

export function textArray(values: readonly string[]): Buffer {
  let most = headBytes
  // UTF-8 has at most three bytes for each unit of a string.
  for (const value of values) most += 4 + value.length * 3
  const buffer = started('text', values.length, most)
  let at = headBytes
  for (const value of values) {
    const bytes = buffer.write(value, at + 4)
    buffer.writeInt32BE(bytes, at)
    at += 4 + bytes
  }
  return buffer.subarray(0, at)
}

/** UUIDs as text, in lower case. */
export function uuidArray(values: readonly string[]): Buffer {
  const buffer = started('uuid', values.length, headBytes + values.length * 20)
  let at = headBytes
  for (const value of values) {
    buffer.writeInt32BE(16, at)
    buffer.write(value.replaceAll('-', ''), at + 4, 'hex')
    at += 20
  }
  return buffer
}

export function integerArray(values: readonly number[]): Buffer {
  const buffer = started('integer', values.length, headBytes + values.length * 8)
  let at = headBytes
  for (const value of values) {
    buffer.writeInt32BE(4, at)
    buffer.writeInt32BE(value, at + 4)
    at += 8
  }
  return buffer
}

/** Safe integers, so that the two halves are exact. */
export function bigintArray(values: readonly number[]): Buffer {
  const buffer = started('bigint', values.length, headBytes + values.length * 12)
  let at = headBytes
  for (const value of values) {
    buffer.writeInt32BE(8, at)
    buffer.writeInt32BE(Math.floor(value / 2 ** 32), at + 4)
    buffer.writeUInt32BE(value >>> 0, at + 8)
    at += 12
  }
  return buffer
}

export function byteaArray(values: readonly (Uint8Array | undefined)[]): Buffer {
  let whole = headBytes
  for (const value of values) whole += 4 + (value?.byteLength ?? 0)
  const buffer = started('bytea', values.length, whole)
  buffer.writeInt32BE(values.includes(undefined) ? 1 : 0, 4)
  let at = headBytes
  for (const value of values) {
    buffer.writeInt32BE(value ? value.byteLength : -1, at)
    if (value) buffer.set(value, at + 4)
    at += 4 + (value?.byteLength ?? 0)
  }
  return buffer
}

function started(type: keyof typeof types, length: number, bytes: number): Buffer {
  const buffer = Buffer.allocUnsafe(bytes)
  buffer.writeInt32BE(1, 0)
  buffer.writeInt32BE(0, 4)
  buffer.writeInt32BE(types[type], 8)
  buffer.writeInt32BE(length, 12)
  buffer.writeInt32BE(1, 16)
  return buffer
}
