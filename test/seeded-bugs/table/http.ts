// Bugs at the edge: keys, fingerprints, stored answers.

import { bugsIn, byTest } from '../bug.ts'
import type { SeededBug } from '../bug.ts'

const inKeyFuzz = 'test/fuzz/keys.test.ts'
const inStored = 'src/http/exchange/stored-response.test.ts'
const inRequest = 'src/http/exchange/request-fingerprint.test.ts'
const inVersions = 'test/http/versions.test.ts'
const inAdapters = 'test/http/adapters.test.ts'
const inHoles = 'test/http/holes.test.ts'
const parts = 'method, path, query, media type, content coding and body each make another request'
const inChoices = 'src/http/exchange/choices.test.ts'

export const httpBugs: readonly SeededBug[] = [
  ...bugsIn('src/http/exchange/key-header.ts', 'http', [
    {
      id: 'joined header lines are accepted',
      find: 'const bare = /^[\\x21\\x23-\\x2b\\x2d-\\x3a\\x3c-\\x5b\\x5d-\\x7e]+$/',
      replace: 'const bare = /^[\\x20\\x21\\x23-\\x3a\\x3c-\\x5b\\x5d-\\x7e]+$/',
      caughtBy: byTest('src/http/exchange/key-header.test.ts', 'is refused: "a,b"'),
    },
    {
      id: 'of two header lines the first one counts',
      find: `if (lines.length !== 1) return`,
      replace: `if (lines.length === 0) return`,
      caughtBy: byTest(
        'src/http/exchange/key-header.test.ts',
        'no line, an empty one and more than one are never a key',
      ),
    },
    {
      id: 'the length of a key is not bounded',
      find: 'if (key.length > rules.keyLengthMax) return',
      replace: 'if (key.length > rules.keyLengthMax * 1_000) return',
      caughtBy: byTest('src/http/exchange/key-header.test.ts', 'the length is that of the key, not of the field'),
    },
  ]),
  ...bugsIn('src/http/exchange/request-fingerprint.ts', 'http', [
    {
      id: 'fingerprint without the method',
      find: '    request.method,\n    path,',
      replace: '    path,',
      caughtBy: byTest(inRequest, parts),
    },
    {
      id: 'fingerprint without the path',
      find: '    request.method,\n    path,',
      replace: '    request.method,',
      caughtBy: byTest(inRequest, parts),
    },
    {
      id: 'fingerprint without the query',
      find: `settings.fingerprint.query === 'bytes' ? query : canonicalQuery(query)`,
      replace: `settings.fingerprint.query === 'bytes' ? query : ''`,
      caughtBy: byTest(inRequest, parts),
    },
    {
      id: 'fingerprint without the body',
      find: 'let text = `${frame},"${bodyText}"`',
      replace: 'let text = `${frame},""`',
      caughtBy: byTest(inRequest, parts),
    },
    {
      id: 'the parts of a request run into each other',
      find: 'const text = JSON.stringify(parts).slice(0, -1)',
      replace: `const text = parts.join('')`,
      caughtBy: byTest(inKeyFuzz, 'no two requests meet, whatever character moves from one part to the next'),
    },
    {
      id: 'a request passes for the one before it, with another method',
      find: '    last.method === method &&\n',
      replace: '',
      caughtBy: byTest(inRequest, 'a request is told from the one before it by every part, on one service'),
    },
    {
      id: 'the query of a request is read by the rules of another service',
      find: ' &&\n    last.settings === settings',
      replace: '',
      caughtBy: byTest(inRequest, 'another service that shares the process reads the query by its own rules'),
    },
    {
      id: 'the boundary of a form makes another request of its retry',
      find: ' ?? formBody(type, bytes)',
      replace: '',
      caughtBy: byTest(inRequest, 'a form that is sent again is the same request, whatever its boundary'),
    },
    {
      id: 'the order of repeated parameters is lost',
      find: 'parameters.sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0))',
      replace: 'parameters.sort((a, b) => (a.parameter < b.parameter ? -1 : 1))',
      caughtBy: byTest(inRequest, 'a query keeps its meaning'),
    },
  ]),
  ...bugsIn('src/http/exchange/strict-json.ts', 'http', [
    {
      id: 'a number that a double cannot hold is fingerprinted by its value',
      find: '      if (!isExact(found)) return false\n',
      replace: '      continue\n',
      caughtBy: byTest(inRequest, 'never equates numbers beyond a double'),
    },
    {
      id: 'of two members with one name the last one counts',
      find: 'if (!above || above.has(name)) return false',
      replace: 'if (!above) return false',
      caughtBy: byTest(inRequest, 'never equates a member twice'),
    },
  ]),
  ...bugsIn('src/http/exchange/stored-response.ts', 'http', [
    {
      id: 'an answer is kept as JSON and not as its octets',
      find: '  const { body } = answer\n',
      replace: '  const body = Buffer.from(JSON.stringify(JSON.parse(Buffer.from(answer.body).toString() || "0")))\n',
      caughtBy: byTest(inStored, 'what is stored is read back as it was'),
    },
    {
      id: 'an answer is stored with the status of the one before it',
      find: 'one.status !== other.status || ',
      replace: '',
      caughtBy: byTest(inStored, 'an answer takes nothing from the one before it, however alike the two are'),
    },
    {
      id: 'an answer is stored with the headers that another service keeps',
      find: 'lastWritten?.options === options && ',
      replace: 'lastWritten && ',
      caughtBy: byTest(inStored, 'an answer takes nothing from the one before it, however alike the two are'),
    },
    {
      id: 'an answer is replayed with the head of the one before it',
      find: 'lastRead.bytes.compare(bytes, headStart, bodyStart) === 0',
      replace: 'lastRead.bytes.length === bodyStart - headStart',
      caughtBy: byTest(inStored, 'an answer takes nothing from the one before it, however alike the two are'),
    },
    {
      id: 'Set-Cookie is replayed to whoever asks',
      find: `if (lower === 'set-cookie') return options.replaySetCookie`,
      replace: `if (lower === 'set-cookie') return true`,
      caughtBy: byTest(inStored, 'what belongs to one connection, one client or one moment is not kept'),
    },
    {
      id: 'hop-by-hop headers are replayed',
      find: 'if (notKept.has(lower) || nominated.has(lower) || lower === replayHeader) return false',
      replace: 'if (lower === replayHeader) return false',
      caughtBy: byTest(inStored, 'what belongs to one connection, one client or one moment is not kept'),
    },
    {
      id: 'headers that Connection names are replayed',
      find: ' || nominated.has(lower)',
      replace: '',
      caughtBy: byTest(inStored, 'what belongs to one connection, one client or one moment is not kept'),
    },
    {
      id: 'a stored answer that is cut off is replayed as if it were whole',
      find: `    if (bodyStart > bytes.length) throw new Error('it is cut off')\n`,
      replace: '    if (bodyStart > bytes.length) return { is: "not-stored" }\n',
      caughtBy: byTest(inStored, 'what cannot be read is an error and never an empty answer'),
    },
  ]),
  ...bugsIn('src/http/on-node/response.ts', 'http', [
    {
      id: 'a partial body is stored as complete',
      find: `  if (hold.is === 'whole' && declaredLength(hold, hold.bytes) !== hold.bytes) beginStream(hold)\n`,
      replace: '',
      caughtBy: byTest(
        'src/http/on-node/response.test.ts',
        'an answer that is shorter or longer than it said is not replayed as if it were whole',
      ),
    },
    {
      id: 'a reason phrase that was set too late is stored',
      find: '  const { message, status, chunks } = hold\n',
      replace: '  const { status, chunks, res } = hold\n  const message = res.statusMessage\n',
      caughtBy: byTest(
        'src/http/on-node/response.test.ts',
        'a reason phrase that is set after the head reaches nobody, and spoils no replay',
      ),
    },
    {
      id: 'an answer leaves before it is settled',
      find: `  if (phase === 'passing' || hold.ended || refused) return Reflect.apply(own.end, res, written) as Internals\n  implicitHead(hold)`,
      replace: `  if (phase === 'passing' || hold.ended || refused) return Reflect.apply(own.end, res, written) as Internals\n  res.socket?.write('HTTP/1.1 102 Processing\\r\\n\\r\\n')\n  implicitHead(hold)`,
      caughtBy: byTest('src/http/on-node/response.test.ts', 'nothing leaves before the answer is settled'),
    },
  ]),
  ...bugsIn('src/http/exchange/multipart.ts', 'http', [
    {
      id: 'the parts of a form run into each other',
      find: 'digest.update(`${part.length}:`).update(part)',
      replace: 'digest.update(part)',
      caughtBy: byTest(
        'src/http/exchange/multipart.test.ts',
        'lists of parts that differ never meet, whatever is moved from one part to the next',
      ),
    },
  ]),
  ...bugsIn('src/http/on-web.ts', 'http', [
    {
      id: 'a Proxy of a Request is copied as if it were one',
      find: 'if (error instanceof TypeError) return undefined',
      replace: 'if (error instanceof RangeError) return undefined',
      caughtBy: byTest(
        'test/http/frameworks.test.ts',
        'a request that is a Proxy, as Next.js hands one, is handled and replayed; the handler is given that request',
      ),
    },
  ]),
  ...bugsIn('src/core/doubt.ts', 'http', [
    {
      id: 'unscoped tenant',
      find: '${service}/${escapePart(tenant)}$',
      replace: '${service}/$',
      caughtBy: byTest(inKeyFuzz, 'two owners in one service never share a key'),
    },
    {
      id: 'the name of a tenant can reach into that of another',
      find: 'return /^[A-Za-z0-9_.~-]*$/.test(part) ? part : encodeURIComponent(part)',
      replace: 'return part',
      caughtBy: byTest(inKeyFuzz, 'two owners in one service never share a key'),
    },
  ]),
  ...bugsIn('src/http/exchange/scoped-key.ts', 'http', [
    {
      id: 'two services with names too long to be spelt out share their keys',
      find: 'digest([service, tenant, route ??',
      replace: 'digest([tenant, route ??',
      caughtBy: byTest(
        'src/http/exchange/scoped-key.test.ts',
        'two services with names too long to be spelt out never share a key',
      ),
    },
  ]),
  ...bugsIn('src/http/exchange/context.ts', 'http', [
    {
      id: 'the refusal of a rate limiter is replayed for a day',
      find: `  if (unheard.has(status)) return 'open'\n`,
      replace: '',
      caughtBy: byTest(
        'test/http/frameworks.test.ts',
        'behind, a replay is free, a refusal is not stored, and its headers are those of the moment',
      ),
    },
    {
      id: 'a demand for credentials of a proxy is stored',
      find: 'new Set([401, 407, 408, 421, 425, 429])',
      replace: 'new Set([401, 408, 421, 425, 429])',
      caughtBy: byTest('test/http/refusals.test.ts', '407 says that nobody looked at the request: it is never stored'),
    },
    {
      id: 'an error of the server is stored as the answer',
      find: `return status >= (policy === 'success-only' ? 400 : 500) ? 'open' : 'store'`,
      replace: `return status >= (policy === 'success-only' ? 400 : 600) ? 'open' : 'store'`,
      caughtBy: byTest(inHoles, 'hole 16: an answer that cannot be made after the effect leaves no key running'),
    },
    {
      id: 'the word of the handler about its answer is ignored',
      find: '  if (choice.verdict) return choice.verdict\n',
      replace: '',
      caughtBy: byTest(inAdapters, 'a handler overrules the policy: release, store, notBegun'),
    },
  ]),
  ...bugsIn('src/http/exchange/verdict.ts', 'http', [
    {
      id: 'with errorPolicy began, what had not begun is stored as a 500',
      find: ' || produced.error instanceof NotBegunError) return',
      replace: ') return',
      caughtBy: byTest(
        inChoices,
        'with errorPolicy began, a handler that had not begun leaves the key free for another request',
      ),
    },
  ]),
  ...bugsIn('src/http/exchange/stored-response.ts', 'http', [
    {
      id: 'a key is resolved with a header that makes every replay a 500',
      find: 'if (isSendable(name, value)) continue',
      replace: 'if (name) continue',
      caughtBy: byTest(
        'src/http/exchange/stored-response.test.ts',
        'a response that no retry could be sent is refused',
      ),
    },
  ]),
  ...bugsIn('src/http/exchange/rules.ts', 'http', [
    {
      id: 'the published rules leave out a status after which a request is processed again',
      find: `\${[...unheard].join(', ')}`,
      replace: `\${[...unheard].filter((status) => status !== 407).join(', ')}`,
      caughtBy: byTest(
        'test/gateway/published.test.ts',
        'the rules name every status after which a request is processed again',
      ),
    },
    {
      id: 'the published rules never say that a key is required',
      find: '    required: settings.required,',
      replace: '    required: false,',
      caughtBy: byTest(
        'test/http/refusals.test.ts',
        'the published rules are those of this server: required, headers and omit',
      ),
    },
  ]),
  ...bugsIn('src/http/exchange/named-request.ts', 'http', [
    {
      id: 'with keysPer route, two methods of a path share their keys',
      find: '`${asked.method} ${splitTarget(asked.target).path}`',
      replace: 'splitTarget(asked.target).path',
      caughtBy: byTest(inChoices, 'with keysPer route, a key on another method of the path is another key'),
    },
    {
      id: 'a tenant that is a number is taken as it is',
      find: `  if (tenant && typeof tenant !== 'string') throw tenantIsNoText(tenant)\n`,
      replace: '',
      caughtBy: byTest(inChoices, 'a tenant that is no text is an error that says what to return, and nothing runs'),
    },
  ]),
  ...bugsIn('src/http/exchange.ts', 'http', [
    {
      id: 'stripe-node is left to retry a stored 500 for ever',
      find: `settings.profile === 'stripe' && stored.answer.status >= 500`,
      replace: `settings.profile === 'stripe' && stored.answer.status > 500`,
      caughtBy: byTest(
        inChoices,
        'in the stripe profile a stored 500 is replayed with the word that a retry leads to the same',
      ),
    },
    {
      id: 'a handler of a transaction runs without one while the store is down',
      find: `onStoreDown === 'run' && !transaction ?`,
      replace: `onStoreDown === 'run' ?`,
      caughtBy: byTest(
        'src/http/exchange/unprotected.test.ts',
        'in a transaction it is refused: there is none to run in without the store',
      ),
    },
  ]),
  ...bugsIn('src/http/exchange/problem.ts', 'http', [
    {
      id: 'a problem asks for the Idempotency-Key where another header carries the key',
      find: `inSession ? 'Idempotency-Sequence' : settings.header`,
      replace: `inSession ? 'Idempotency-Sequence' : 'Idempotency-Key'`,
      caughtBy: byTest(
        'test/http/frameworks.test.ts',
        'another header can carry the key, and Idempotency-Key is then a header like any other',
      ),
    },
    {
      id: 'a client is told to retry what no retry can cure',
      find: 'const retryable = is.retryable && details.retryable !== false',
      replace: 'const retryable = is.retryable',
      caughtBy: byTest(
        'test/http/refusals.test.ts',
        'what no retry can cure is a 503 that says so: retryable false, and no Retry-After',
      ),
    },
  ]),
  ...bugsIn('src/http/exchange/options.ts', 'http', [
    {
      id: 'a handler with transaction: true runs without its transaction',
      find: 'required: all.required || all.transaction,',
      replace: 'required: all.required,',
      caughtBy: byTest(
        'test/http/refusals.test.ts',
        'with transaction: true a request without a key is refused by a message that says so, and nothing runs',
      ),
    },
  ]),
  ...bugsIn('src/http/on-node/connection.ts', 'http', [
    {
      id: 'a connection keeps every request that came over it',
      find: '    watches.splice(watches.indexOf(this), 1)\n',
      replace: '',
      caughtBy: byTest('test/leaks.test.ts', 'a connection that is kept alive keeps nothing of its requests', 'time'),
    },
  ]),
  ...bugsIn('src/http/on-node.ts', 'http', [
    {
      id: 'a request line of HTTP/2.0 is taken for a request over HTTP/2',
      find: `    if ('stream' in req) throw notOverHttp2()`,
      replace: `    if (req) throw notOverHttp2()`,
      caughtBy: byTest(
        'test/http/frameworks.test.ts',
        'a request line that names HTTP/2.0 is 505 with a key, and the handler does not run',
      ),
    },
    {
      id: 'an answer leaves before its transaction is committed',
      find: '    return held.produced\n',
      replace: '    return held.produced.then((produced) => (held.forward([]), produced))\n',
      caughtBy: byTest('test/seeded-bugs/http.test.ts', 'an answer whose commit fails reaches no client'),
    },
    {
      id: 'of joined lines of keys the first one counts',
      find: `if (typeof joined === 'string' && !joined.includes(',')) return [joined]`,
      replace: `if (typeof joined === 'string') return [joined.split(',')[0]!]`,
      caughtBy: byTest('test/http/abuse.test.ts', 'a key of two lines is refused and runs nothing'),
    },
  ]),
  ...bugsIn('src/http/exchange/verdict.ts', 'http', [
    {
      id: 'what a refused request wrote in its transaction is committed with the refusal',
      find: 'return settings.transaction && status >= 400 ? { final: finalAnswer(bytes) } : { store: bytes }',
      replace: 'return { store: bytes }',
      caughtBy: byTest(
        inAdapters,
        'in a transaction the answer leaves after the commit; a 5xx takes all back, a 4xx is all that is kept',
      ),
    },
    {
      id: 'half an answer is stored when the handler breaks off',
      find: `produced.is === 'stream' ? produced.status : 500`,
      replace: `produced.is === 'stream' ? produced.status : 200`,
      caughtBy: byTest(
        inAdapters,
        'a handler that breaks off in the middle leaves neither half an answer nor a wedged key',
      ),
    },
  ]),
  ...bugsIn('src/http/exchange.ts', 'http', [
    {
      id: 'the upgrade of a response is not asked for',
      find: 'if (settings.upgrade) stored =',
      replace: 'if (settings.upgrade && stored.version > settings.version) stored =',
      caughtBy: byTest(
        inVersions,
        'upgrade gets the decoded response and its version, and what it returns is replayed',
      ),
    },
    {
      id: 'a response of a newer version is taken for an older one',
      find: 'stored.version < settings.version',
      replace: 'stored.version !== settings.version',
      caughtBy: byTest(inVersions, 'a response of this version, and of a newer one, is replayed as it is'),
    },
    {
      id: 'a response that a person gave is taken for an older one',
      find: "stored.version !== 'any' && stored.version < settings.version",
      replace: "(stored.version === 'any' ? 0 : stored.version) < settings.version",
      caughtBy: byTest(inVersions, 'is replayed as it is by every version, neither upgraded nor refused'),
    },
    {
      id: 'an older response is replayed though it was to be refused',
      find: "if (settings.onOlderVersion === 'refuse') return refuse(setup, 'keyExpired')",
      replace: '',
      caughtBy: byTest(inVersions, "onOlderVersion 'refuse' treats an older response as expired"),
    },
    {
      id: 'whoever writes a digest down is given the answer to another body',
      find: `  if (body.is === 'claimed' && !(await body.verify())) return refuse(setup, 'digestMismatch')\n`,
      replace: '',
      caughtBy: byTest(
        'src/http/on-node/request.test.ts',
        'a digest that does not hold is refused, stores nothing, and tells the handler',
      ),
    },
    {
      id: 'a request without a tenant is taken for one of everybody',
      find: `  if (lacksTenant(settings, tenant)) return refuse(setup, 'scopeMissing')\n  const { key`,
      replace: '  const { key',
      caughtBy: byTest('test/gateway/hostile.test.ts', 'no tenant: refused'),
    },
    {
      id: 'an answer that is not there is told as an empty one',
      find: `if (stored.is === 'not-stored') return refuse(setup, 'notStored')`,
      replace: `if (stored.is === 'not-stored') return answerWith(setup, { status: 200, headers: [], body: new Uint8Array() })`,
      caughtBy: byTest(
        'test/gateway/faults.test.ts',
        'an answer that ends with its connection is passed on and not stored: nobody can tell whether it is complete',
      ),
    },
    {
      id: 'a store that is down lets the handler run unprotected',
      find: `onStoreDown === 'run' && !transaction ? rule`,
      replace: `onStoreDown !== 'run' && !transaction ? rule`,
      caughtBy: byTest(
        inHoles,
        'hole 5: a store that is down or does not answer is a 503, and the handler does not run',
      ),
    },
    {
      id: 'keys of one route replay the answers of another',
      find: 'fingerprint, onThrow',
      replace: "fingerprint: 'none', onThrow",
      caughtBy: byTest(inHoles, 'hole 7: the mount path is part of the request: a refund does not replay an order'),
    },
  ]),
]
