// The framers: however the network cuts a stream into chunks, the same messages come out, and nothing is added or lost.
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { type FramerName, framers } from './framers.ts'

function postgresMessage(type: string, body: string): Buffer {
  const length = Buffer.alloc(4)
  length.writeInt32BE(4 + Buffer.byteLength(body))
  return Buffer.concat([Buffer.from(type), length, Buffer.from(body)])
}

function startUp(code: number): Buffer {
  const bytes = Buffer.alloc(8)
  bytes.writeInt32BE(8)
  bytes.writeInt32BE(code, 4)
  return bytes
}

const resp = [
  '*2\r\n$3\r\nGET\r\n$1\r\nk\r\n',
  'PING\r\n',
  '+OK\r\n',
  ':42\r\n',
  '$-1\r\n',
  '*-1\r\n',
  '$4\r\na\r\nb\r\n',
  '*2\r\n*1\r\n:1\r\n%1\r\n+a\r\n~1\r\n,1.5\r\n',
  '|1\r\n+ttl\r\n:9\r\n$1\r\nx\r\n',
  '*0\r\n',
].map((text) => Buffer.from(text))

const postgres = [
  startUp(196_608),
  postgresMessage('Q', 'COMMIT\0'),
  postgresMessage('S', ''),
  postgresMessage('X', 'äß'),
]

function expectSame(name: FramerName, messages: Buffer[], cuts: number[]): void {
  const { request } = framers[name]()
  const stream = Buffer.concat(messages)
  const edges = [0, ...cuts.map((cut) => cut % (stream.length + 1)), stream.length].sort((left, right) => left - right)
  const framed = edges.slice(1).flatMap((edge, index) => request(stream.subarray(edges[index], edge)))
  expect(framed.map(String)).toEqual(messages.map(String))
}

describe('the same messages come out of any chunks', () => {
  test('Redis', () => {
    fc.assert(fc.property(fc.array(fc.nat(200)), (cuts) => expectSame('redis', resp, cuts)))
  })

  test('PostgreSQL', () => {
    fc.assert(fc.property(fc.array(fc.nat(200)), (cuts) => expectSame('postgres', postgres, cuts)))
  })
})

test('PostgreSQL: a refused request for encryption is answered by one byte, and the start-up message follows', () => {
  const { request, reply } = framers.postgres()
  expect(request(startUp(80_877_103))).toHaveLength(1)
  expect(reply(Buffer.from('N'))).toHaveLength(1)
  expect(request(startUp(196_608))).toHaveLength(1)
  expect(reply(Buffer.concat([postgresMessage('R', '0000'), postgresMessage('Z', 'I')]))).toHaveLength(2)
})

test('PostgreSQL: what is encrypted passes as it comes', () => {
  const { request, reply } = framers.postgres()
  request(startUp(80_877_103))
  reply(Buffer.from('S'))
  expect(request(Buffer.from('abc'))).toEqual([Buffer.from('abc')])
  expect(reply(Buffer.from('de'))).toEqual([Buffer.from('de')])
})
