// Everything that reads what others wrote: what is right, what may be thrown, and shapes of which a careless parser takes more
// than linear time. `parse` throws something else, or fails an assertion of its own, when the parser is wrong.

import assert from 'node:assert/strict'
import { createHmac, createSecretKey } from 'node:crypto'
import { address, bytes, chosen, count, duration, list, parseCommand } from '../../src/cli/arguments.ts'
import { canonicalJson } from '../../src/core/canonical-json.ts'
import type { ErrorCode } from '../../src/core/errors.ts'
import { fingerprint } from '../../src/core/fingerprint.ts'
import { key, keyOf, keyString } from '../../src/core/key.ts'
import { readRecords } from '../../src/core/operations.ts'
import { decodeOutcome } from '../../src/core/outcome.ts'
import { commandOptions, readConfigFile } from '../../src/cli/gateway/config.ts'
import { pathPattern } from '../../src/gateway/proxy/routes.ts'
import { boundaryOf, multipartDigest } from '../../src/http/exchange.ts'
import { claimedSha256 } from '../../src/http/exchange/content-digest.ts'
import { readKey } from '../../src/http/exchange/key-header.ts'
import { splitTarget } from '../../src/http/exchange/request-fingerprint.ts'
import { decodeStored, encodeAnswer, encodeNotStored } from '../../src/http/exchange/stored-response.ts'
import { parseStrictJson } from '../../src/http/exchange/strict-json.ts'
import { readEntry } from '../../src/stores/redis/entries.ts'
import { seal, unseal } from '../../src/stores/redis-postgres/sealed.ts'
import { createWebhookSigner, githubWebhooks, standardWebhooks, stripeWebhooks } from '../../src/webhooks.ts'

export interface Parser {
  readonly name: string
  /** What is right. */
  readonly samples: readonly (string | Uint8Array)[]
  /** What it may refuse with; nothing else may be thrown. */
  readonly throws?: ErrorCode
  parse(input: Buffer): unknown
  /** Input of about this length that asks for the most work. */
  readonly heavy?: readonly ((length: number) => string)[]
}

const keyRules = { parse: 'lenient', keyFormat: 'any', keyLengthMax: 255 } as const
const someKey = key('fuzz', '1')
const json = ['{"a":1,"b":[true,null,"é"]}', '[1,2.5,-0,1e3,[]]', '"text"', '{"a":{"a":{"a":{}}}}', '0']
const keep = { replaySetCookie: false, replayHeader: 'Idempotent-Replayed' }
const answer = encodeAnswer({ status: 201, headers: [['Content-Type', 'text/plain']], body: Buffer.from('body') }, keep)
const times = (text: string, length: number): string => text.repeat(Math.ceil(length / text.length))

/** What is no JSON is refused before it comes to what is tested here. */
function jsonOf(input: Buffer): { readonly value: unknown } | undefined {
  try {
    return { value: JSON.parse(input.toString('utf8')) }
  } catch {
    return undefined
  }
}

function headerKey(input: Buffer, parse: 'lenient' | 'strict'): void {
  const reading = readKey([input.toString('latin1')], { ...keyRules, parse })
  if (!('key' in reading)) return
  // Whatever is read can be a key of the store, and is read as itself when it is sent again in quotes.
  key('fuzz', reading.key)
  const quoted = `"${reading.key.replace(/["\\]/g, '\\$&')}"`
  assert.deepEqual(readKey([quoted], { ...keyRules, parse: 'strict' }), reading)
}

/** A form that is sent again has another boundary. Whatever its parts hold, it is the same form, and one byte more is another. */
function multipartBody(input: Buffer): void {
  const digest = multipartDigest(input, 'first')
  const text = input.toString('latin1')
  const [parts = '', ...after] = text.split(/(?<=(?:^|\r\n)--first--)/)
  if (digest === undefined || text.includes('second') || after.join('').includes('--first')) return
  const again = parts.replace(/^--first/, '--second').replaceAll('\r\n--first', '\r\n--second') + after.join('')
  assert.equal(multipartDigest(Buffer.from(again, 'latin1'), 'second'), digest)
  assert.notEqual(multipartDigest(Buffer.from(`${text}x`, 'latin1'), 'first'), digest)
}

const formOf = (...parts: readonly string[]): string =>
  `${parts.map((part) => `--first\r\nContent-Disposition: form-data; name="a"\r\n\r\n${part}\r\n`).join('')}--first--\r\n`

const forms: readonly Parser[] = [
  {
    name: 'a multipart body',
    samples: [formOf('x'), formOf('x', 'y'), formOf(''), formOf('--firs', '\r\n--'), 'preamble\r\n--first--epilogue'],
    parse: multipartBody,
    heavy: [(length) => times('\r\n--first', length), (length) => times('\r\n--firs', length)],
  },
  {
    name: 'the boundary of a multipart body',
    samples: ['multipart/form-data; boundary=first', 'multipart/mixed; charset=utf-8; boundary="a b"'],
    parse: (input) => boundaryOf(input.toString('latin1')),
    heavy: [
      (length) => `multipart/form-data;${times(' ;', length)}`,
      (length) => `multipart/a; boundary="${times('a', length)}`,
    ],
  },
]

const headers: readonly Parser[] = [
  {
    name: 'key header, lenient',
    samples: ['8e03978e-40d5-43e8-bc93-6894a57f9324', '"order-1"', '"a\\"b";x=1;y="z";w=:YQ==:', ' a '],
    parse: (input) => headerKey(input, 'lenient'),
    heavy: [
      (length) => `"a"${times(';a', length)}!`,
      (length) => `"${times('\\"', length)}`,
      (length) => `${times('a', length)} `,
      (length) => `"a";a="${times('\\\\', length)}`,
      (length) => `"a";a=%"${times('%00', length)}`,
      (length) => `"a"${times('; ', length)}`,
      (length) => times(' ', length),
    ],
  },
  {
    name: 'key header, strict',
    samples: ['"order-1"', '"a";b=?1;c=1.5;d=@123'],
    parse: (input) => headerKey(input, 'strict'),
  },
  {
    name: 'Content-Digest',
    samples: [`sha-256=:${'A'.repeat(43)}=:`, `md5=:YQ==:, sha-256=:${'B'.repeat(43)}=:;x`],
    parse(input) {
      const digest = claimedSha256(input.toString('latin1'))
      assert.ok(digest === undefined || /^[A-Za-z0-9+/]{43}=$/.test(digest))
    },
    heavy: [(length) => times(',', length), (length) => times(' ', length), (length) => times('sha-256=:', length)],
  },
  {
    name: 'request target',
    samples: ['/a?b=1&a=%7e', 'http://x.example/a?b#c', '*', '/a/../b//c'],
    parse(input) {
      const { path, query } = splitTarget(input.toString('latin1'))
      assert.ok(query === '' || query.startsWith('?'))
      assert.ok(!path.startsWith('http://x.example/'))
    },
    heavy: [(length) => times('?', length), (length) => `http://${times('a', length)}`],
  },
]

const keys: readonly Parser[] = [
  {
    name: 'key',
    samples: ['order-1', 'é', 'a b', '日本'],
    throws: 'INVALID_ARGUMENT',
    parse(input) {
      const made = key('fuzz', input.toString('utf8'))
      assert.equal(keyString(made).split('\n').length, 2)
    },
    heavy: [(length) => times('é', length)],
  },
  {
    name: 'keyOf',
    samples: ['["a",1,true]', '["a","bc"]', '[""]', '[null]', '["\\ud800"]', '{}'],
    throws: 'INVALID_ARGUMENT',
    parse(input) {
      const parsed = jsonOf(input)
      if (parsed) keyOf('fuzz', parsed.value as string[])
    },
    heavy: [(length) => `[${times('"a",', length)}"a"]`],
  },
]

const values: readonly Parser[] = [
  {
    name: 'strict JSON, canonical JSON and fingerprint',
    samples: json,
    throws: 'INVALID_ARGUMENT',
    parse(input) {
      const parsed = parseStrictJson(input)
      if (!parsed) return
      assert.deepEqual(parsed.value, JSON.parse(input.toString('utf8')))
      const canonical = canonicalJson(parsed.value)
      assert.equal(canonicalJson(JSON.parse(canonical)), canonical)
      assert.match(fingerprint(parsed.value), /^[\w-]{43}$/)
      assert.equal(parseStrictJson(Buffer.from(canonical)) === undefined, false)
    },
    heavy: [
      (length) => `[${times('1,', length)}1]`,
      (length) => `"${times('\\\\', length)}"`,
      (length) => `"${times('\\"', length)}"`,
      (length) => times('[', length),
      (length) => `[1${times(' ', length)}]`,
      (length) => `[${times('9', length)}]`,
      (length) => `[0.${times('0', length)}1]`,
      (length) => `{${Array.from({ length: Math.ceil(length / 10) }, (_, at) => `"m${at}":1`).join(',')}}`,
    ],
  },
  {
    name: 'stored outcome',
    samples: ['j{"a":1}', 'u', 'bbytes', 'f{"message":"no","data":1}', 'nreason', 'ccodec', ''],
    throws: 'OUTCOME_UNREADABLE',
    parse(input) {
      const outcome = decodeOutcome(input, undefined, someKey)
      assert.ok(['value', 'failure', 'not-stored'].includes(outcome.kind))
    },
    heavy: [(length) => `j[${times('1,', length)}1]`, (length) => `j${times('[', length)}`],
  },
  {
    name: 'stored response',
    samples: [answer, encodeNotStored(), answer.subarray(0, 9)],
    throws: 'OUTCOME_UNREADABLE',
    parse(input) {
      const stored = decodeStored(new Uint8Array(input))
      if (stored.is === 'answer') assert.ok(Number.isInteger(stored.answer.status) && stored.answer.body.length >= 0)
    },
  },
]

function commandLine(input: Buffer): void {
  // --help prints; everything else answers or throws.
  const args = input.toString('latin1').split(' ')
  if (args.some((each) => /^-+[^=]*h/.test(each))) return
  parseCommand({ command: 'gateway', help: '', options: commandOptions, args })
}

function optionTexts(input: Buffer): void {
  const given = input.toString('latin1')
  for (const option of [duration, bytes, count]) {
    const value = option.parse(given)
    assert.ok(value === undefined || (Number.isSafeInteger(value) && value >= 0), given)
  }
  const parsed = address.parse(given)
  assert.ok(!parsed || (parsed.port >= 0 && parsed.port < 65_536 && parsed.host !== ''))
  assert.ok(!list.parse(given)?.includes(''))
}

const secret = createSecretKey(Buffer.alloc(32))
const sealed = seal(secret, someKey, 'f', { answer: { outcome: answer, version: 1, attempt: 1 }, untilMs: 1 })
const redisEntry = Buffer.from(
  [
    'running fresh     ',
    ...['1700000000000', '1700000086400', '1700000691200'].map((each) => each.padStart(16, '0')),
    '0000000001',
    ...['1700000000000000', '1700000000000'].map((each) => each.padStart(16, '0')),
    '8e03978e-40d5-43e8-bc93-6894a57f9324',
    'f'.repeat(43),
    '0000000000',
  ].join(' '),
)

const stores: readonly Parser[] = [
  {
    name: 'an entry in Redis',
    samples: [redisEntry, Buffer.concat([redisEntry, Buffer.from('\ninput')]), 'absent'],
    throws: 'OUTCOME_UNREADABLE',
    parse(input) {
      const entry = readEntry(someKey, { bytes: input, nowMs: 1 })
      assert.ok(!entry || (Number.isSafeInteger(entry.attempt) && Number.isSafeInteger(entry.fence)))
    },
  },
  {
    name: 'an answer that Redis keeps for PostgreSQL',
    samples: [sealed],
    parse(input) {
      const unsealed = unseal(secret, someKey, 'f', input)
      assert.equal(unsealed !== undefined, input.equals(sealed))
    },
  },
  {
    name: 'a record of an operation',
    samples: ['{"state":"done","attempt":1,"order":1}\nj1', '{"state":"began","attempt":2,"order":3}\n'],
    throws: 'OUTCOME_UNREADABLE',
    parse: (input) => recordsOf('pay', input),
  },
  {
    name: 'the course of an operation',
    samples: [
      '{"version":0,"direction":"forward","failures":0}\n',
      '{"version":1,"direction":"backward","failures":2}\n',
    ],
    throws: 'OUTCOME_UNREADABLE',
    parse: (input) => recordsOf('', input),
  },
]

function recordsOf(name: string, content: Buffer): void {
  readRecords(someKey, { records: [{ name, revision: 1, content, atMs: 1 }] } as never)
}

const program: readonly Parser[] = [
  {
    name: 'arguments of a command',
    samples: ['--upstream http://127.0.0.1:3000 --lease=30s', '--required --methods POST,PATCH', '--max-body 1mb -x'],
    throws: 'INVALID_ARGUMENT',
    parse: commandLine,
    heavy: [(length) => `--${times('a', length)}`, (length) => `--upstream=${times('@', length)}`],
  },
  {
    name: 'texts of options',
    samples: ['30s', '24h', '1.5mb', '127.0.0.1:8080', '[::1]:80', 'POST,PATCH', '65536'],
    parse: optionTexts,
    heavy: [
      (length) => times('1', length),
      (length) => `[${times(':', length)}`,
      (length) => times('a.', length),
      (length) => times(', ', length),
    ],
  },
  {
    name: 'name of a command',
    samples: ['keys', 'gateway', 'sweep'],
    throws: 'INVALID_ARGUMENT',
    parse: (input) => chosen('', ['keys', 'gateway', 'sweep'], input.toString('latin1')),
    heavy: [(length) => times('k', length)],
  },
  {
    name: 'gateway configuration',
    samples: [
      '{"upstream":"http://127.0.0.1:3000","tenant":"shared","routes":[{"path":"/orders/*","methods":["POST"]}]}',
      '{"listen":"127.0.0.1:8080","lease":"30s","maxBody":"1mb","required":true}',
    ],
    throws: 'INVALID_ARGUMENT',
    parse(input) {
      const parsed = jsonOf(input)
      if (parsed) readConfigFile('gateway.json', parsed.value)
    },
    heavy: [(length) => `{"routes":[${times('{"path":"/a"},', length)}{"path":"/a"}]}`],
  },
  {
    name: 'paths of routes',
    samples: ['/orders/*', '/v1/**', '/%6frders//1/../2'],
    parse(input) {
      const text = input.toString('latin1')
      assert.equal(typeof pathPattern(text)(text), 'boolean')
      assert.equal(typeof pathPattern('/orders/**')(text), 'boolean')
    },
    heavy: [(length) => times('/', length), (length) => times('../', length), (length) => times('%2f', length)],
  },
]

const hook = {
  secret: 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw',
  clock: { now: () => 1_700_000_000_000 },
  body: Buffer.from('{"id":"evt_1"}'),
}
const hookSchemes = {
  standard: standardWebhooks({ secrets: hook.secret, clock: hook.clock }),
  stripe: stripeWebhooks({ secrets: hook.secret, clock: hook.clock }),
  github: githubWebhooks({ secrets: hook.secret }),
}
const signedHook = createWebhookSigner({ secrets: hook.secret }).sign({
  id: 'evt_1',
  sentAtMs: hook.clock.now(),
  body: hook.body,
})
const hmacOf = (text: string): string => createHmac('sha256', hook.secret).update(text).update(hook.body).digest('hex')
const ofStripe = `t=1700000000,v1=${hmacOf('1700000000.')}`
const ofGithub = `sha256=${hmacOf('')}`

/** One header of a signed webhook is hostile: it is refused, or holds what the sender wrote there. */
function webhookHeader(name: keyof typeof signedHook, input: Buffer): void {
  const text = input.toString('latin1')
  const headers = { ...signedHook, [name]: text }
  hookSchemes.standard.verify({ headers, body: hook.body })
  assert.ok(name === 'webhook-signature' ? text.split(' ').includes(signedHook[name]) : text === signedHook[name])
}

const webhooks: readonly Parser[] = [
  ...(['webhook-id', 'webhook-timestamp', 'webhook-signature'] as const).map((name) => ({
    name,
    samples: [signedHook[name], `${signedHook[name]} v2,AAAA`, `${signedHook[name]}, ${signedHook[name]}`],
    throws: 'UNAUTHENTICATED' as const,
    parse: (input: Buffer) => webhookHeader(name, input),
    heavy: [
      (length: number) => times('v1,A ', length),
      (length: number) => times(' ', length),
      (length: number) => times('1', length),
    ],
  })),
  {
    name: 'Stripe-Signature',
    samples: [ofStripe, `${ofStripe},v0=a`],
    throws: 'UNAUTHENTICATED',
    parse(input) {
      const text = input.toString('latin1')
      hookSchemes.stripe.verify({ headers: { 'stripe-signature': text }, body: hook.body })
      for (const part of ofStripe.split(',')) assert.ok(text.split(',').includes(part))
    },
    heavy: [(length) => times('t=1,', length), (length) => times('v1=', length)],
  },
  {
    name: 'the body of a webhook',
    samples: [hook.body, '{}'],
    throws: 'UNAUTHENTICATED',
    parse(input) {
      const headers = { 'x-hub-signature-256': ofGithub, 'x-github-delivery': 'd1' }
      hookSchemes.github.verify({ headers, body: input })
      assert.ok(input.equals(hook.body))
    },
  },
]

export const parsers: readonly Parser[] = [...headers, ...forms, ...keys, ...values, ...stores, ...program, ...webhooks]
