// Cuts a byte stream into the messages of a protocol, so that a fault can hit exactly one of them. Invariant: the messages,
// put together, are the stream, byte for byte; what is not yet a whole message is kept until it is.

export interface Framer {
  request(chunk: Buffer): Buffer[]
  reply(chunk: Buffer): Buffer[]
}

export type FramerName = keyof typeof framers

export const framers = { chunk: frameChunks, postgres: framePostgres, redis: frameRedis }

// How long the message at the start of these bytes is; undefined while that cannot be said.
type Measure = (bytes: Buffer) => number | undefined

function splitter(measure: Measure): (chunk: Buffer) => Buffer[] {
  let rest: Buffer = Buffer.alloc(0)
  return (chunk) => {
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk])
    const messages: Buffer[] = []
    for (;;) {
      const length = rest.length === 0 ? undefined : measure(rest)
      if (length === undefined || length > rest.length) return messages
      messages.push(rest.subarray(0, length))
      rest = rest.subarray(length)
    }
  }
}

// For a protocol that we do not know: whatever arrives at once is a message.
function frameChunks(): Framer {
  return { request: (chunk) => [chunk], reply: (chunk) => [chunk] }
}

const sslRequest = 80_877_103
const gssRequest = 80_877_104

// A message is a type byte and a length that counts itself. Before that comes the start-up message without a type, perhaps
// after a request for encryption, which is answered by one bare byte; once encrypted, nothing can be told apart.
function framePostgres(): Framer {
  let starting = true
  let answerIsOneByte = false
  let encrypted = false
  const request = splitter((bytes) => {
    if (encrypted) return bytes.length
    if (!starting) return bytes.length < 5 ? undefined : 1 + bytes.readInt32BE(1)
    if (bytes.length < 8 || bytes.length < bytes.readInt32BE(0)) return undefined
    answerIsOneByte = [sslRequest, gssRequest].includes(bytes.readInt32BE(4))
    starting = answerIsOneByte
    return bytes.readInt32BE(0)
  })
  const reply = splitter((bytes) => {
    if (encrypted) return bytes.length
    if (!answerIsOneByte) return bytes.length < 5 ? undefined : 1 + bytes.readInt32BE(1)
    answerIsOneByte = false
    encrypted = bytes[0] !== 'N'.charCodeAt(0)
    return 1
  })
  return { request, reply }
}

function frameRedis(): Framer {
  return { request: splitter((bytes) => respEnd(bytes, 0)), reply: splitter((bytes) => respEnd(bytes, 0)) }
}

// Where the RESP value that begins at `start` ends. Anything that is not a bulk or an aggregate ends with its line, inline
// commands included.
function respEnd(bytes: Buffer, start: number): number | undefined {
  const lineEnd = bytes.indexOf('\r\n', start)
  if (lineEnd === -1) return undefined
  const type = String.fromCharCode(bytes[start] ?? 0)
  const size = Number(bytes.toString('latin1', start + 1, lineEnd))
  const bodyStart = lineEnd + 2
  if ('$!='.includes(type)) return size < 0 ? bodyStart : bodyStart + size + 2
  const members = '*~>'.includes(type) ? size : type === '%' ? 2 * size : type === '|' ? 2 * size + 1 : 0
  let end: number | undefined = bodyStart
  for (let member = 0; member < members; member += 1) {
    if (end >= bytes.length) return undefined
    end = respEnd(bytes, end)
    if (end === undefined) return undefined
  }
  return end
}
