// Bugs in signatures and in the receiver of webhooks.

import { bugsIn, byTest } from '../bug.ts'
import type { SeededBug } from '../bug.ts'

const bySignatures = (name: string): ReturnType<typeof byTest> => byTest('src/webhooks/signatures.test.ts', name)
const bySchemes = (name: string): ReturnType<typeof byTest> => byTest('src/webhooks/schemes.test.ts', name)
const byReceiver = (name: string): ReturnType<typeof byTest> => byTest('src/webhooks/receiver.test.ts', name)

const rotation = 'of any of several secrets is enough, on either side'
const ofStripe = 'an event of Stripe is known by its id alone, and one from before the window is not run'
const unauthenticated = 'what is not authenticated leaves no mark and reaches no handler'

export const webhookBugs: readonly SeededBug[] = [
  ...bugsIn('src/webhooks/signatures/keys.ts', 'webhooks', [
    {
      id: 'webhooks: a signature is compared by what its base64 decodes to',
      find: "/^[A-Za-z0-9+/]{43}=$/.test(given) && timingSafeEqual(expected, Buffer.from(given, 'latin1'))",
      replace: "Buffer.from(given, 'base64').equals(Buffer.from(expected.toString(), 'base64'))",
      caughtBy: bySignatures('signatures of a wrong length, and other ways to write the same base64'),
    },
    {
      id: 'webhooks: an empty secret is taken',
      find: 'if (bytes.length < secretBytesMin) {',
      replace: 'if (bytes.length < 0) {',
      caughtBy: bySignatures('"whsec_" is refused, and not shown'),
    },
    {
      id: 'webhooks: every signature of ed25519 is taken',
      find: 'return signature !== undefined && verify(null, content, publicKey, signature)',
      replace: 'return signature !== undefined',
      caughtBy: bySignatures('of ed25519 is verified with the public key alone, and the public key cannot sign'),
    },
    {
      id: 'webhooks: the body is signed as a text',
      find: "createHmac('sha256', secret).update(head, 'latin1').update(body).digest('base64')",
      replace:
        "createHmac('sha256', secret).update(head, 'latin1').update(Buffer.from(body).toString()).digest('base64')",
      caughtBy: bySignatures('covers every byte of the body, also what is not UTF-8'),
    },
  ]),
  ...bugsIn('src/webhooks/signatures.ts', 'webhooks', [
    {
      id: 'webhooks: only the first secret verifies',
      find: 'return keys.some((key) => {',
      replace: 'return keys.slice(0, 1).some((key) => {',
      caughtBy: bySignatures(rotation),
    },
    {
      id: 'webhooks: only the first secret signs',
      find: 'const signatures = keys.map((key) => `',
      replace: 'const signatures = keys.slice(0, 1).map((key) => `',
      caughtBy: bySignatures(rotation),
    },
    {
      id: 'webhooks: hundreds of signatures are read',
      find: 'if (parts.length > signaturesMax) {',
      replace: 'if (parts.length > 100_000) {',
      caughtBy: bySignatures('hundreds of signatures'),
    },
    {
      id: 'webhooks: an id may have the full stop that ends it',
      find: 'const webhookId = /^[\\x21-\\x2d\\x2f-\\x7e]{1,256}$/',
      replace: 'const webhookId = /^[\\x21-\\x7e]{1,256}$/',
      caughtBy: bySignatures('an id like "a.b", although it is signed'),
    },
  ]),
  ...bugsIn('src/webhooks/request.ts', 'webhooks', [
    {
      id: 'webhooks: a time with junk behind it is read',
      find: 'if (!/^[1-9]\\d{0,10}$/.test(seconds)) {',
      replace: 'if (Number.isNaN(Number.parseInt(seconds, 10))) {',
      caughtBy: bySignatures('must be a plain integer of seconds: "1700000000abc" is refused although it is signed'),
    },
    {
      id: 'webhooks: a time in the future is always taken',
      find: 'if (Math.abs(awayMs) > window.toleranceMs) {',
      replace: 'if (awayMs > window.toleranceMs) {',
      caughtBy: bySignatures('may be away by the tolerance in both directions, and no second more'),
    },
    {
      id: 'webhooks: of a header that comes twice the first one counts',
      find: 'if (values.length > 1) throw',
      replace: 'if (values.length > 100) throw',
      caughtBy: bySignatures('webhook-id missing, empty, twice, huge, not ASCII'),
    },
    {
      id: 'webhooks: a body that was read as text is verified',
      find: 'if (body instanceof Uint8Array) return body',
      replace: "if (body instanceof Uint8Array || typeof body === 'string') return Buffer.from(body)",
      caughtBy: bySignatures('a body that a framework has parsed is refused with what to do'),
    },
  ]),
  ...bugsIn('src/webhooks/schemes/stripe.ts', 'webhooks', [
    {
      id: 'webhooks: of two times of Stripe the first one counts',
      find: 'if (times.length !== 1) throw',
      replace: 'if (times.length < 1) throw',
      caughtBy: bySchemes('stripe: two times, none, a time with junk, and too many parts are refused'),
    },
    {
      id: 'webhooks: a retry of Stripe is another event, because its body is',
      find: 'content: id, ',
      replace: '',
      caughtBy: byReceiver(ofStripe),
    },
  ]),
  ...bugsIn('src/webhooks/schemes/hmac.ts', 'webhooks', [
    {
      id: 'webhooks: a well-formed signature is enough',
      find: 'return wellFormed.some((each) =>',
      replace: 'return wellFormed.length > 0 || wellFormed.some((each) =>',
      caughtBy: bySchemes('is verified, with any of several secrets'),
    },
  ]),
  ...bugsIn('src/webhooks/receiver.ts', 'webhooks', [
    {
      id: 'webhooks: an event is marked before it is verified',
      find: '    verified = context.scheme.verify(request)\n',
      replace:
        "    await context.handle(messageOf(context.consumer, request, { id: String((request.headers as Record<string, unknown>)['webhook-id']) }))\n    verified = context.scheme.verify(request)\n",
      caughtBy: byReceiver(unauthenticated),
    },
    {
      id: 'webhooks: an id is remembered for less time than its sender retries',
      find: 'if (windowMs >= horizonMs) return',
      replace: 'if (windowMs > 0) return',
      caughtBy: byReceiver('a window that is shorter than the retries of the sender is refused'),
    },
    {
      id: 'webhooks: the default window is the tolerance of the signature',
      find: 'windowMs = 7 * dayMs } = options',
      replace: 'windowMs = 300_000 } = options',
      caughtBy: byReceiver(
        'an id is remembered for the whole schedule of Standard Webhooks, of which 5 minutes are the first two attempts',
      ),
    },
    {
      id: 'webhooks: a header that is not signed names the event',
      find: '    idOf: ({ id }) => id,\n',
      replace: '',
      caughtBy: byReceiver('the headers of a CloudEvent do not change the id that was signed'),
    },
    {
      id: 'webhooks: the sender is answered before the event is queued',
      find: 'await context.queue.put(message)',
      replace: 'void context.queue.put(message).catch(() => {})',
      caughtBy: byReceiver('when queued: an event that could not be stored is not acknowledged'),
    },
  ]),
  ...bugsIn('src/webhooks/receiver/message.ts', 'webhooks', [
    {
      id: 'webhooks: the age of an event is that of its attempt',
      find: '{ sentAtMs: occurredAtMs }',
      replace: '{ sentAtMs: verified.sentAtMs! }',
      caughtBy: byReceiver(ofStripe),
    },
  ]),
  ...bugsIn('src/webhooks/receiver/answers.ts', 'webhooks', [
    {
      id: 'webhooks: an event whose handler failed is acknowledged',
      find: '      return failure(received.error)\n',
      replace: "      return told(200, { is: 'handled' })\n",
      caughtBy: byReceiver('a handler that fails does not burn the id, and what it wrote is gone'),
    },
    {
      id: 'webhooks: an event that is in hand is acknowledged',
      find: "    case 'duplicate':\n",
      replace: "    case 'duplicate':\n    case 'busy':\n",
      caughtBy: byReceiver(
        'in memory, an event that is in hand is answered 503 with Retry-After, and 200 when it is settled',
      ),
    },
    {
      id: 'webhooks: an event that nobody keeps is acknowledged',
      find: 'if (received.isKept) return',
      replace: 'if (received.code) return',
      caughtBy: byReceiver(
        'on a store that keeps no parked events, the sender is told to keep it, unless a dead-letter function takes it',
      ),
    },
  ]),
  ...bugsIn('src/webhooks/receiver/queue.ts', 'webhooks', [
    {
      id: 'webhooks: what is queued runs past the inbox',
      find: 'await handle(message)',
      replace: 'await handle({ ...message, id: `queued ${message.id}` })',
      caughtBy: byReceiver('an event that was handled before is a duplicate for the queue, too'),
    },
  ]),
  ...bugsIn('src/messages/inbox/functions.sql.ts', 'messages', [
    {
      id: 'inbox: a delivery waits for the handler that has its message in hand (PostgreSQL)',
      find: '      where known.id is null\n',
      replace: '',
      caughtBy: byTest(
        'test/webhooks/receiver.test.ts',
        'an event that is in hand is answered 503 with Retry-After, and 200 when it is settled',
        'postgres',
      ),
    },
  ]),
]
