// Bugs in the gateway, in its dashboard and in the program around them.

import { bugsIn, byTest } from '../bug.ts'
import type { SeededBug } from '../bug.ts'

const inFaults = 'test/gateway/faults.test.ts'
const inForwarding = 'test/gateway/forwarding.test.ts'
const inHostile = 'test/gateway/hostile.test.ts'
const inDisagreement = 'test/gateway/disagreement.test.ts'
const reset = 'an upstream that resets the connection without an answer'
const half = 'an upstream that breaks off inside a body with a length'
const inDoubt =
  'is 502 and unknown, nothing is stored, and the key is claimed until its lease ends; then the request is sent again'
const notInTheLog = 'neither key, tenant, query, header nor body is in the log'

const upstream: readonly SeededBug[] = [
  ...bugsIn('src/gateway/proxy/upstream.ts', 'gateway', [
    {
      id: 'an answer whose end cannot be told is stored as complete',
      find: `call.unframed = !head.isFramed && !endsWithHead(status)`,
      replace: `call.unframed = !head.isFramed && endsWithHead(status)`,
      caughtBy: byTest(
        inFaults,
        'an answer that ends with its connection is passed on and not stored: nobody can tell whether it is complete',
      ),
    },
    {
      id: 'a POST is sent again after its bytes were sent',
      find: '    createExchangeHandler(options, call),\n',
      replace: `    Object.assign(
      createExchangeHandler(options, call),
      call.cause !== 'again' && { onResponseError: () => ((call.cause = 'again'), forward(pool, options, call)) },
    ),\n`,
      caughtBy: byTest(
        inFaults,
        'a kept connection that is closed under a request is no reason to send the request again, with a key or without',
      ),
    },
    {
      id: 'the first half of an answer is stored as the whole of it',
      find: '    call.doubt = problem\n    return call.decided ? cut(call) : void res.destroy()',
      replace: '    return void res.end()',
      caughtBy: byTest(inFaults, `an upstream that breaks off before the last chunk ${inDoubt}`),
    },
    {
      id: 'an upstream that could not be reached leaves its key taken',
      find: '  call.context?.notBegun()\n',
      replace: '  call.doubt = gatewayProblems.unreachable\n',
      caughtBy: byTest(
        inFaults,
        'an upstream that cannot be reached is 502, nothing is remembered, and the key is free for another request',
      ),
    },
    {
      id: 'a body is complete for the upstream before its digest was found right',
      find: '    if (context) last = chunk\n    else yield chunk',
      replace: '    yield chunk',
      caughtBy: byTest(
        inForwarding,
        'a large body with a key and its digest streams, too; one that is not what the digest says is never complete upstream',
      ),
    },
  ]),
  ...bugsIn('src/gateway/proxy/forwarded-headers.ts', 'gateway', [
    {
      id: 'what belongs to one connection is passed on to the upstream',
      find: 'if (notToUpstream.has(lower) || forwardedNames.has(lower)',
      replace: 'if (forwardedNames.has(lower)',
      caughtBy: byTest(inForwarding, 'the request as it came, without what belongs to the connection'),
    },
    {
      id: 'what belongs to one connection is passed on to the client',
      find: 'if (notToClient.has(lower) || nominated.has(lower)) continue',
      replace: 'if (notToClient.has(lower)) continue',
      caughtBy: byTest(inDisagreement, 'every Connection line takes out what it names'),
    },
    {
      id: 'what the client says about itself is believed',
      find: 'const came = rules.trustForwarded ? req.headers : {}',
      replace: 'const came = req.headers',
      caughtBy: byTest(inForwarding, 'with trustForwarded false what came in Forwarded is kept or replaced'),
    },
    {
      id: 'the Host of the client is what the upstream is told',
      find: `  'host',\n  'content-length',\n  // Node has`,
      replace: `  'content-length',\n  // Node has`,
      caughtBy: byTest(inHostile, 'nothing in a request chooses the upstream a Host'),
    },
    {
      id: 'a header with an underscore passes for one that only the gateway writes',
      find: `return name.toLowerCase().replaceAll('_', '-')`,
      replace: 'return name.toLowerCase()',
      caughtBy: byTest(inDisagreement, 'are not told by a client what only the gateway says'),
    },
  ]),
]

const requests: readonly SeededBug[] = [
  ...bugsIn('src/gateway/proxy/requests.ts', 'gateway', [
    {
      id: 'the authority of an absolute form is passed on',
      find: 'return { target: path + query, path }',
      replace: 'return { target: url, path }',
      caughtBy: byTest(inHostile, 'nothing in a request chooses the upstream an absolute form'),
    },
    {
      id: 'a Connection header takes the key out on the way to the service',
      find: 'if (essential.has(name)) return { refused: gatewayProblems.badRequest }',
      replace: 'if (essential.has(name)) continue',
      caughtBy: byTest(inHostile, 'a Connection header that would take Idempotency-Key out is refused'),
    },
    {
      id: 'a transfer coding that two readers read in two ways is let through',
      find: `if (coding !== undefined && coding.toLowerCase() !== 'chunked') return`,
      replace: `if (coding !== undefined && !coding.toLowerCase().includes('chunked')) return`,
      caughtBy: byTest(inHostile, 'another coding before chunked'),
    },
  ]),
  ...bugsIn('src/gateway/proxy/routes.ts', 'gateway', [
    {
      id: 'another way to write a path leads around its rule',
      find: `    if (segment === '..') segments.pop()\n    else if`,
      replace: `    if`,
      caughtBy: byTest('src/gateway/proxy/routes.test.ts', 'a path pattern'),
    },
    {
      id: 'a format leads around a rule that covers formats',
      find: 'asked === name || asked.startsWith(`${name}.`)',
      replace: 'asked === name',
      caughtBy: byTest('src/gateway/proxy/routes.test.ts', '/orders.* and /orders.json: true'),
    },
    {
      id: 'a path with a star inside of a name is taken for a rule',
      find: '[^?#\\s*/]*',
      replace: '[^?#\\s/]*',
      caughtBy: byTest('src/gateway/proxy/routes.test.ts', '/orders* is refused: as a rule it would cover nothing'),
    },
  ]),
  ...bugsIn('src/gateway/proxy/tenants.ts', 'gateway', [
    {
      id: 'of two tenants in one request the first one counts',
      find: ` || linesOf(req, name) > 1) return undefined`,
      replace: `) return undefined`,
      caughtBy: byTest(inHostile, 'two tenants: refused'),
    },
    {
      id: 'a credential that names the tenant is in the store',
      find: `return credentialName.test(name) ? hash('sha256', value, 'base64url') : value`,
      replace: 'return value',
      caughtBy: byTest(
        inHostile,
        'the same key of two tenants is two keys; a credential that names the tenant is not in the store',
      ),
    },
  ]),
  ...bugsIn('src/gateway/proxy/record.ts', 'gateway', [
    {
      id: 'the query is in the log',
      find: '    path: splitTarget(target).path,',
      replace: '    path: target,',
      caughtBy: byTest(inHostile, notInTheLog),
    },
    {
      id: 'the key is in the log',
      find: '{ keyHash: hashKey(key) }',
      replace: '{ keyHash: key.id }',
      caughtBy: byTest(inHostile, notInTheLog),
    },
    {
      id: 'the body is in the log',
      find: '...(cause !== undefined && { cause }),',
      replace: `cause: Buffer.from(call.body ?? []).toString(),`,
      caughtBy: byTest(inHostile, notInTheLog),
    },
  ]),
]

const keys: readonly SeededBug[] = [
  ...bugsIn('src/gateway/metrics.ts', 'gateway', [
    {
      id: 'requests whose key has expired are not counted',
      find: "  expired: (_event, add) => add('onceonly_expired_total'),\n",
      replace: '',
      caughtBy: byTest('src/gateway/metrics.test.ts', 'onceonly_expired_total 1 after expired'),
    },
    {
      id: 'requests in doubt are not counted',
      find: "  doubted: (_event, add) => add('onceonly_doubts_total'),\n",
      replace: '',
      caughtBy: byTest('src/gateway/metrics.test.ts', 'onceonly_doubts_total 1 after doubted'),
    },
  ]),
  ...bugsIn('src/gateway/request-log.ts', 'gateway', [
    {
      id: 'claims that are lost are not in the log',
      find: "  ['lost', 'warn'],\n",
      replace: '',
      caughtBy: byTest('src/gateway/request-log.test.ts', 'lost is a line of the log'),
    },
  ]),
  ...bugsIn('src/gateway/proxy/options.ts', 'gateway', [
    {
      id: 'what is to become of a request in doubt is not passed on to the exchange',
      find: `name !== 'transaction')`,
      replace: `name !== 'transaction' && name !== 'onTakeover')`,
      caughtBy: byTest(inFaults, `${reset} is asked once for ever with onTakeover refuse`),
    },
  ]),
  ...bugsIn('src/gateway/proxy/listener.ts', 'gateway', [
    {
      id: 'a key is given back when the upstream resets the connection',
      find: 'if (call.doubt) throw new InDoubtError(',
      replace: 'if (call.doubt) throw new Error(',
      caughtBy: byTest(inFaults, `${reset} ${inDoubt}`),
    },
    {
      id: 'an answer that broke off is told as the answer of the service',
      find: 'return call.doubt ? inDoubt(exchange, call, leaseMs) : conclude(exchange, call, delivery)',
      replace: 'return conclude(exchange, call, delivery)',
      caughtBy: byTest(inFaults, `${half} ${inDoubt}`),
    },
    {
      id: 'a client that goes away takes its request with a key along',
      find: 'if (!call.context || call.decided) call.abort?.()',
      replace: 'call.abort?.()',
      caughtBy: byTest(inFaults, 'a client that goes away does not lose the outcome of a request with a key'),
    },
  ]),
  ...bugsIn('src/gateway/proxy.ts', 'gateway', [
    {
      id: 'the gateway and the service behind it share their keys',
      find: 'scope: gatewayScope(service)',
      replace: 'scope: service',
      caughtBy: byTest(
        inForwarding,
        'a service with onceonly on the same store and the same key: one effect, and both remember',
      ),
    },
    {
      id: 'two services behind two gateways share their keys',
      find: 'scope: gatewayScope(service)',
      replace: `scope: 'gateway:default'`,
      caughtBy: byTest(inForwarding, 'two gateways in a row, and two services of one store'),
    },
    {
      id: 'a drain waits for nothing',
      find: '      await calls.quiet(settings.drainMs)\n',
      replace: '',
      caughtBy: byTest(
        'test/gateway/processes.test.ts',
        'what is under way is finished and stored, nothing more is accepted, and the program ends with 0',
        'time',
      ),
    },
    {
      id: 'a drain gives back the keys of what still runs',
      find: '      await upstream.close()\n',
      replace:
        '      calls.forEach(({ context, res }) => (context?.notBegun(), res.end()))\n      await upstream.close()\n',
      caughtBy: byTest(
        'test/gateway/processes.test.ts',
        'a request that does not end is left when the time of --drain is over: exit 1, and its key stays claimed',
        'time',
      ),
    },
  ]),
]

export const gatewayBugs: readonly SeededBug[] = [...upstream, ...requests, ...keys]

const inAdmin = 'src/gateway/admin.test.ts'
const onlyWithToken = 'an answer is its status and its size; what it says only with the token'
const byHand = 'needs the token and a reason, is only for what is parked, and is audited before it takes effect'
const needsToken = 'need the right token, by POST, as JSON, with a reason, and of a reasonable size'

export const dashboardBugs: readonly SeededBug[] = [
  ...bugsIn('src/gateway/admin/asked.ts', 'dashboard', [
    {
      id: 'a form of another site can send a change',
      find: `if (!/^application\\/json\\b/.test(request.headers['content-type'] ?? '')) {`,
      replace: `if (/^multipart/.test(request.headers['content-type'] ?? '')) {`,
      caughtBy: byTest(inAdmin, needsToken),
    },
  ]),
  ...bugsIn('src/gateway/admin/guard.ts', 'dashboard', [
    {
      id: 'keys are shown to whoever can reach the dashboard',
      find: 'refuseReading: async (request) => (local ? undefined : refuseToken(request))',
      replace: 'refuseReading: async (request) => (local || request ? undefined : refuseToken(request))',
      caughtBy: byTest(
        inAdmin,
        'where others can reach it, keys are shown only with the token; health and metrics to all',
      ),
    },
    {
      id: 'a change needs no token',
      find: 'refuseChange: refuseToken',
      replace: 'refuseChange: async (request) => (token === undefined ? refuseToken(request) : undefined)',
      caughtBy: byTest(inAdmin, needsToken),
    },
    {
      id: 'any token will do',
      find: 'return matches(given) ? undefined : wrong',
      replace: 'return undefined',
      caughtBy: byTest(inAdmin, needsToken),
    },
    {
      id: 'a page of another site may ask, and change what it likes',
      find: 'return foreign && !visit ?',
      replace: 'return foreign && !visit && site === undefined && origin === undefined ?',
      caughtBy: byTest(inAdmin, 'a page of another origin is told nothing; a person who follows a link sees the page'),
    },
    {
      id: 'a name that was rebound to this machine is served',
      find: `if (local && !names.has(host.replace(/:\\d+$/, '')))`,
      replace: `if (local && host === '')`,
      caughtBy: byTest(inAdmin, 'a name that was rebound to this machine is not served'),
    },
    {
      id: 'scripts that stand in a key may run on the page',
      find: `"default-src 'none'; script-src 'self';`,
      replace: `"default-src 'none'; script-src 'self' 'unsafe-inline';`,
      caughtBy: byTest(inAdmin, 'every answer forbids inline scripts, other origins, frames and caches'),
    },
  ]),
  ...bugsIn('src/gateway/admin.ts', 'dashboard', [
    {
      id: 'what an answer says is shown to whoever may see the keys',
      find: `'/api/outcome': reading('change',`,
      replace: `'/api/outcome': reading('reading',`,
      caughtBy: byTest(inAdmin, 'without a token at the start nothing can be changed, whatever is sent'),
    },
  ]),
  ...bugsIn('src/gateway/admin/guard.ts', 'dashboard', [
    {
      id: 'tokens can be guessed as fast as they can be sent',
      find: '    else patience.wrong(address)\n',
      replace: '',
      caughtBy: byTest(
        'src/gateway/admin/guard.test.ts',
        'whoever guesses is slowed down; the right token is let in, from there after a wait, from elsewhere at once',
      ),
    },
  ]),
  ...bugsIn('src/gateway/operation-by-hand.ts', 'dashboard', [
    {
      id: 'an operation is let go on before that is on record',
      find: '    await note(store, entry, reason)\n    await operation.resume(key.id)\n',
      replace: '    await operation.resume(key.id)\n    await note(store, entry, reason)\n',
      caughtBy: byTest(
        'test/seeded-bugs/dashboard.test.ts',
        'an operation whose resumption cannot be put on record stays parked',
      ),
    },
    {
      id: 'an operation that is not parked is let go on by hand',
      find: `const changed = status.state === 'parked'`,
      replace: `const changed = status.state !== 'completed'`,
      caughtBy: byTest(inAdmin, byHand),
    },
  ]),
  ...bugsIn('src/gateway/admin/entries.ts', 'dashboard', [
    {
      id: 'lists have the answers in them',
      find: `return { kind: 'response', status, bytes: body.length,`,
      replace: `return { kind: 'response', status, bytes: body.length, ...{ text: Buffer.from(body).toString() },`,
      caughtBy: byTest(inAdmin, onlyWithToken),
    },
  ]),
]

const inMessages = 'src/gateway/admin/messages.test.ts'

export const messagesViewBugs: readonly SeededBug[] = [
  ...bugsIn('src/gateway/admin.ts', 'dashboard', [
    {
      id: 'what a parked message says is shown to whoever may see the keys',
      find: `'/api/parked-message': reading('change',`,
      replace: `'/api/parked-message': reading('reading',`,
      caughtBy: byTest(inMessages, 'a parked message is shown without what it says, and with the token in full'),
    },
  ]),
  ...bugsIn('src/gateway/admin/messages.ts', 'dashboard', [
    {
      id: 'the list of dead letters says why the broker refused them',
      find: 'function letterRow({ reason: _reason, ...rest }: DeadLetter)',
      replace: 'function letterRow({ ...rest }: DeadLetter)',
      caughtBy: byTest(
        inMessages,
        'the outbox shows how far behind it is, and its dead letters without why they failed',
      ),
    },
    {
      id: 'a redrive takes every message of the same id with it',
      find: 'inboxByHand(store).redrive(name, reason)',
      replace: 'inboxByHand(store).redrive({ scope: name.scope, id: name.id }, reason)',
      caughtBy: byTest(inMessages, 'of two messages that have one id, the one that a person looked at is redriven'),
    },
  ]),
  ...bugsIn('src/gateway/admin/asking.ts', 'dashboard', [
    {
      id: 'a store without tables for messages is reported as broken',
      find: "callStore(calls, 'inspect', undefined, () => (async () => question())().catch(orNothing))",
      replace: "callStore(calls, 'inspect', undefined, async () => question()).catch(orNothing)",
      caughtBy: byTest(inMessages, 'the view says so, and nothing is logged'),
    },
  ]),
  ...bugsIn('src/core/once/on-record.ts', 'dashboard', [
    {
      id: 'a message is redriven before that is on record',
      find: `  await note(store, key, \`\${what}: \${reason}\`).catch((cause: unknown) => Promise.reject(asNotBegun(cause, why)))\n  if (!(await change())) return false\n`,
      replace: `  if (!(await change())) return false\n  await note(store, key, \`\${what}: \${reason}\`)\n`,
      caughtBy: byTest(inMessages, 'a redrive that cannot be put on record does not take place'),
    },
  ]),
  ...bugsIn('src/messages/outbox/held.ts', 'dashboard', [
    {
      id: 'a page of dead letters begins after the last millisecond, and not after the last row',
      find: 'sql`(added_at_ms, ${isId}) > (${integer(after.addedAtMs)}, ${after.id})`',
      replace: 'sql`added_at_ms > ${integer(after.addedAtMs)}`',
      caughtBy: byTest(inMessages, 'pages of dead letters follow each other without a gap, also within a millisecond'),
    },
  ]),
  ...bugsIn('src/messages/inbox/parked.ts', 'dashboard', [
    {
      id: 'a page of parked messages begins after the last id, and not after the last message',
      find: 'if (fingerprint === undefined) return sql`(scope, id) >',
      replace: 'if (fingerprint !== "") return sql`(scope, id) >',
      caughtBy: byTest(
        inMessages,
        'pages of parked messages follow each other without a gap, also between messages of one id',
      ),
    },
  ]),
  ...bugsIn('src/gateway/metrics.ts', 'dashboard', [
    {
      id: 'the lag of a relay that was stopped is told for ever',
      find: 'if (!latest || clock.elapsed() - latest.atMs > lagFreshMs) return []',
      replace: 'if (!latest) return []',
      caughtBy: byTest(
        'src/gateway/metrics.test.ts',
        'a process without an inbox and a relay has no figures of them, and the lag of a relay that fell silent is no figure',
      ),
    },
  ]),
]

const inPublished = 'test/gateway/published.test.ts'
const inFound = 'src/gateway/found-outcome.test.ts'

export const programBugs: readonly SeededBug[] = [
  ...bugsIn('src/gateway/proxy.ts', 'program', [
    {
      id: 'a gateway listens on a store that cannot serve a request',
      find: 'await checkStore(once, settings.sessions).catch(',
      replace: 'await Promise.resolve().catch(',
      caughtBy: byTest(
        'test/http/unfit-stores.test.ts',
        'the gateway does not start on a store that only a person can mend',
      ),
    },
    {
      id: 'problems of the gateway lead to a page that does not mention them',
      find: '      problems: Object.values(gatewayProblems),\n',
      replace: '',
      caughtBy: byTest(
        inPublished,
        'the type of every problem leads to a page that describes it, and to the same as JSON',
      ),
    },
    {
      id: 'the rules are published with the settings of all requests for every route',
      find: 'settings: protection?.settings }))',
      replace: 'settings: protection && routes.at(-1)!.protection?.settings }))',
      caughtBy: byTest(inPublished, 'the rules name the window, the headers and the omitted members of every route'),
    },
  ]),
  ...bugsIn('src/gateway/found-outcome.ts', 'program', [
    {
      id: 'a key of a gateway is resolved with a value that no retry can replay',
      find: `if (!isGatewayScope(key.scope) || 'response' in text) return`,
      replace: `if (!isGatewayScope(key.scope) || 'response' in text || 'value' in text) return`,
      caughtBy: byTest(
        inFound,
        'a key of a gateway takes a response and nothing else: a replay of a value would be a 500',
      ),
    },
    {
      id: 'a response that an editor changed is stored as it is',
      find: `if (length === undefined || length === String(body.length)) return`,
      replace: `if (length === undefined || Number(length) <= body.length) return`,
      caughtBy: byTest(inFound, '"HTTP/1.1 200 OK\\nContent-Length: 1\\n\\nx\\n" is refused'),
    },
    {
      id: 'what a person found out is kept for no longer than the attempt was',
      find: 'keepMs: entry.expiresAtMs - entry.leaseUntilMs,',
      replace: 'keepMs: entry.leaseUntilMs - entry.firstClaimedAtMs,',
      caughtBy: byTest(
        inFound,
        'a response is what curl -i prints, and is stored as the exchange would have stored it',
      ),
    },
  ]),
  ...bugsIn('src/http/exchange.ts', 'program', [
    {
      id: 'a request that ran unprotected is no event',
      find: `    publish('unprotected', attempt.key, { code: error.code })\n    attempt.produced = await`,
      replace: `    attempt.produced = await`,
      caughtBy: byTest(
        'src/http/exchange/unprotected.test.ts',
        'a request that runs without the store is an event, with a hash of its key and the reason',
      ),
    },
  ]),
  ...bugsIn('src/gateway/gateway-key.ts', 'program', [
    {
      id: 'the tenant of a key in doubt is not shown',
      find: 'return service === undefined ? undefined : tenantOf(service, scope)',
      replace: 'return service === scope ? tenantOf(service, scope) : undefined',
      caughtBy: byTest('test/cli/keys.test.ts', 'shows the keys of every tenant of a service, and whose they are'),
    },
  ]),
  ...bugsIn('src/cli/keys/mend.ts', 'program', [
    {
      id: 'a manual change is made without asking',
      find: `if (!yes && !asks) throw wrong(`,
      replace: `if (!yes && !asks && name === 'forget') throw wrong(`,
      caughtBy: byTest('test/cli/keys.test.ts', 'no manual change is made where no person can be asked'),
    },
  ]),
  ...bugsIn('src/gateway/proxy.ts', 'program', [
    {
      id: 'a Connection header takes the key of a route with its own key header out',
      find: '[settings, ...settings.routes].map(',
      replace: '[settings].map(',
      caughtBy: byTest(inHostile, 'so is one that would take out the key header of a route, and an alias of it'),
    },
    {
      id: 'a route that sets one part of the fingerprint loses what all requests have of it',
      find: 'const fingerprint = { ...settings.fingerprint, ...route.fingerprint }',
      replace: 'const fingerprint = route.fingerprint ?? settings.fingerprint ?? {}',
      caughtBy: byTest(
        'test/gateway/forms.test.ts',
        'a route that says how a query is compared keeps how bodies are, and can take it back',
      ),
    },
  ]),
  ...bugsIn('src/gateway/proxy/listener.ts', 'gateway', [
    {
      id: 'a client is told to wait for the lease of another route',
      find: 'options.leaseMs ?? once.settings.leaseMs',
      replace: 'once.settings.leaseMs',
      caughtBy: byTest('test/gateway/forms.test.ts', 'a request in doubt is asked again after the lease of its route'),
    },
  ]),
  ...bugsIn('src/gateway/readiness.ts', 'program', [
    {
      id: 'failures of a day add up until the gateway is not ready',
      find: '      failures = 0\n',
      replace: '',
      caughtBy: byTest(
        'src/gateway/readiness.test.ts',
        'failures that are not in a row do not make it not ready, however many there are',
      ),
    },
  ]),
  ...bugsIn('src/cli/arguments.ts', 'program', [
    {
      id: 'the file of the gateway refuses 0 for a duration',
      find: `type: ['string', 'integer'],\n    pattern: '^(?:0|`,
      replace: `type: 'string',\n    pattern: '^(?:0|`,
      caughtBy: byTest(
        'src/cli/gateway/config.test.ts',
        'every default that is documented can be typed, and 0 is 0 in the file too',
      ),
    },
  ]),
  ...bugsIn('src/cli/gateway/config.ts', 'program', [
    {
      id: 'an option of the adapters does not arrive when it is set per route',
      find: '...optionsOf(rest) }',
      replace: '...optionsOf({ ...rest, hashKeys: false }) }',
      caughtBy: byTest(
        'src/cli/gateway/config.test.ts',
        'of the adapters is the same by flag, in the file and per route',
      ),
    },
  ]),
  ...bugsIn('src/cli/with-store.ts', 'program', [
    {
      id: 'a command that is suggested works on the store of the environment, and not on the one that was asked for',
      find: '(given ?? named) === named && named !== describe',
      replace: 'named !== undefined && named !== describe',
      caughtBy: byTest(
        'src/cli/with-store.test.ts',
        'a command to be pasted names the store, unless the environment does and has a password',
      ),
    },
  ]),
  ...bugsIn('src/cli/doctor.ts', 'program', [
    {
      id: 'the doctor suggests a URL without its password where the environment has all of it',
      find: 'ready(each, storeWords(values.store, opened.describe))',
      replace: 'ready(each, `--store ${opened.describe}`)',
      caughtBy: byTest(
        'test/cli/doctor.test.ts',
        'what is wrong with the tables is found: missing, unlogged, another version, no index, no vacuum, no sweep',
        'postgres',
      ),
    },
  ]),
  ...bugsIn('src/cli/operations.ts', 'program', [
    {
      id: 'no unfinished operation is said to be there when a filter hid them',
      find: `No \${state ?? 'unfinished'} operation`,
      replace: 'No unfinished operation',
      caughtBy: byTest('test/operations/cli.test.ts', 'list shows what is not over, by state, page by page'),
    },
  ]),
  ...bugsIn('src/cli/words.ts', 'program', [
    {
      id: 'a key that begins with a dash is an option of the command that is suggested',
      find: `operands.every((each) => !each.startsWith('-'))`,
      replace: 'operands.length > 0',
      caughtBy: byTest('src/cli/words.test.ts', 'a command can be pasted, whatever is in its words'),
    },
    {
      id: 'a key steers the terminal of whoever looks at it',
      find: 'return given.replace(unprintable, (character)',
      replace: 'return given.replace(/\\u0000/g, (character)',
      caughtBy: byTest('src/cli/words.test.ts', 'what comes from a store is shown and never obeyed by the terminal'),
    },
  ]),
  ...bugsIn('src/cli/keys/outcome.ts', 'program', [
    {
      id: 'what an effect came to is told to whoever lists the keys',
      find: 'what: `a failure that is itself the answer, ${size(bytes)}`',
      replace: 'what: `a failure that is itself the answer: ${message}`',
      caughtBy: byTest('src/cli/keys/outcome.test.ts', 'the few words hold nothing of what is inside'),
    },
  ]),
]
