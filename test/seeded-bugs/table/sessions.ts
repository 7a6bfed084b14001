// Bugs in sessions.

import { bugsIn, bySessions, byTest } from '../bug.ts'
import type { SeededBug } from '../bug.ts'

const caught = (name: string): ReturnType<typeof byTest> => byTest('src/sessions/sessions.test.ts', name)
const onRedis = (name: string): ReturnType<typeof byTest> => byTest('test/sessions/sessions.test.ts', name, 'redis')

const overHttp = (name: string): ReturnType<typeof byTest> => byTest('src/http/exchange/sessions.test.ts', name)

const order = 'the rules have an order: expired, fenced, forgotten, mismatch, replay, window, gap'
const mismatch = 'the same number with another content is a mismatch in every state, and runs and changes nothing'
const letGo = 'what the client has acknowledged is let go, and never runs again'
const beyond = 'beyond the window nothing runs, until answers are acknowledged'
const gap = 'a strict session refuses a gap, and goes on once it is filled'
const fenced = 'registering again raises the epoch and fences the old one'
const fencedInFlight =
  'an effect that runs while its client registers again has no answer, and is rolled back where the database can'
const lockOut =
  'a request whose process died is not locked out, and the dead one can answer nothing (lock-out of a client)'
const collision =
  'numbers of a client that lost its memory never meet those of before (request numbers colliding after a crash)'
const expired = 'a session that was silent for its lease is expired: a late request is refused and never runs'
const unknown = 'a session that nobody registered is refused, and none is made up'
const alive = 'every request and every keep-alive keeps the session alive'
const swept = 'what ended sessions left is swept, and a forgotten client is as unknown as ever'
const closed = 'a closed session runs nothing, and what was in flight has no answer'
const business = 'a business failure is the answer, and is given again'
const again = 'a request that comes again is given its stored answer, whichever process gets it'
const hostile = 'numbers and names that make no sense are refused by name, before anything is asked of the store'
const twice = 'of many deliveries of one request at once, through two processes, one has its effect'
const stalled = 'an attempt without a heartbeat is taken over and stores nothing, and a transaction needs no heartbeat'
const seen = 'a person sees the floor, the window, the lease and the numbers above the floor, with what became of them'
const listed = 'a person lists the sessions of all services page by page, without a gap, and by how a client begins'
const unavailable = 'a store that breaks off or does not answer is unavailable within its time limit, whatever is asked'
const lostReply = 'of a change whose reply was lost it is not said that it was not made'
const closedByHand = 'a person closes a session whose epoch is not known, and the reason is on record'

export const sessionBugs: readonly SeededBug[] = [
  ...bugsIn('src/sessions/sessions/sql/shown.ts', 'sessions', [
    {
      id: 'sessions: a request that failed is shown to people as answered',
      find: 'case when outcome is null then 0 else 1 end',
      replace: 'case when outcome is null then 1 else 1 end',
      caughtBy: caught(seen),
    },
    {
      id: 'sessions: the next page begins after the client, in whichever scope that is',
      find: 'sql`(scope, client) > (${bound(after.scope)}, ${bound(after.session)})`',
      replace: 'sql`scope >= ${bound(after.scope)} and client > ${bound(after.session)}`',
      caughtBy: caught(listed),
    },
    {
      id: 'sessions: how a client begins is no condition for its end',
      find: ' and substr(client, 1, ${integer(length)}) = ${bound(begins)}`',
      replace: ' and ${integer(length)} > 0`',
      caughtBy: caught(listed),
    },
  ]),
  ...bugsIn('src/sessions/sessions/timed-ground.ts', 'sessions', [
    {
      id: 'sessions: a registration has no time limit, and fails as its driver does',
      find: 'register: (client) => change(() => ground.register(client))',
      replace: 'register: (client) => ground.register(client)',
      caughtBy: byTest('test/sessions/sessions.test.ts', unavailable, 'postgres'),
    },
  ]),
  ...bugsIn('src/sessions/sessions/by-hand.ts', 'sessions', [
    {
      id: 'sessions: a person closes the session of a client that registered again since',
      find: '(epoch === undefined || epoch === found.epoch)',
      replace: '(epoch === undefined || epoch <= found.epoch)',
      caughtBy: caught(closedByHand),
    },
  ]),
  ...bugsIn('src/sessions/sessions/rules.ts', 'sessions', [
    {
      id: 'sessions: an old sequence number runs again',
      find: 'if (sequence <= session.floor) return',
      replace: 'if (sequence < session.floor) return',
      caughtBy: caught(letGo),
    },
    {
      id: 'sessions: the fingerprint is compared before the floor',
      find: `  if (sequence <= session.floor) return { code: 'FORGOTTEN', session }\n  if (known)`,
      replace: `  if (sequence <= session.floor) return { code: 'MISMATCH', session }\n  if (known)`,
      caughtBy: caught(order),
    },
    {
      id: 'sessions: fingerprints are not compared',
      find: 'known.fingerprint === fingerprint ? undefined',
      replace: 'fingerprint ? undefined',
      caughtBy: caught(mismatch),
    },
    {
      id: 'sessions: the window has one place too many',
      find: 'Math.max(session.floor, acknowledged) + window)',
      replace: 'Math.max(session.floor, acknowledged) + window + 1)',
      caughtBy: caught(beyond),
    },
    {
      id: 'sessions: a gap is accepted',
      find: 'strict && sequence > session.last + 1',
      replace: 'strict && sequence > session.last + 2',
      caughtBy: caught(gap),
    },
    {
      id: 'sessions: a request of an older epoch is taken for one of this epoch',
      find: `  if (epoch < session.epoch) return { code: 'FENCED', session }\n`,
      replace: '',
      caughtBy: caught(fenced),
    },
    {
      id: 'sessions: an epoch that was never given out is taken for the current one',
      find: `epoch > session.epoch ? { code: 'SESSION_EXPIRED' } : undefined`,
      replace: 'undefined',
      caughtBy: caught(unknown),
    },
    {
      id: 'sessions: a session never expires',
      find: 'session.isClosed || nowMs >= session.leaseUntilMs',
      replace: 'session.isClosed',
      caughtBy: caught(expired),
    },
    {
      id: 'sessions: a closed session goes on',
      find: 'session.isClosed || nowMs >= session.leaseUntilMs) return',
      replace: 'false) return',
      caughtBy: caught(closed),
    },
    {
      id: 'sessions: a late duplicate lowers the floor',
      find: 'floor: Math.max(session.floor, asked.acknowledged)',
      replace: 'floor: asked.acknowledged',
      caughtBy: caught(letGo),
    },
    {
      id: 'sessions: registering again keeps the epoch',
      find: 'Math.max((session?.epoch ?? 0) + 1, nowMs)',
      replace: 'Math.max(session?.epoch ?? 0, session ? 0 : nowMs)',
      caughtBy: caught(fenced),
    },
    {
      id: 'sessions: epochs begin at 1 again for a client that was forgotten',
      find: 'Math.max((session?.epoch ?? 0) + 1, nowMs)',
      replace: '(session?.epoch ?? 0) + 1',
      caughtBy: caught(swept),
    },
    {
      id: 'sessions: registering again keeps what was acknowledged',
      find: '    floor: 0,\n    last: 0,\n',
      replace: '    floor: session?.floor ?? 0,\n    last: session?.last ?? 0,\n',
      caughtBy: byTest('src/sessions/sessions.test.ts', 'a new epoch begins with nothing acknowledged'),
    },
    {
      id: 'sessions: a request does not keep its session alive',
      find: 'fence: Math.max(session.fence + 1, nowMs * 1_000),\n    leaseUntilMs: nowMs + leaseMs,\n  }\n}\n\n/**\n * The session after a registration.',
      replace:
        'fence: Math.max(session.fence + 1, nowMs * 1_000),\n  }\n}\n\n/**\n * The session after a registration.',
      caughtBy: caught(alive),
    },
    {
      id: 'sessions: a request renews its session for two leases',
      find: 'fence: Math.max(session.fence + 1, nowMs * 1_000),\n    leaseUntilMs: nowMs + leaseMs,\n  }',
      replace: 'fence: Math.max(session.fence + 1, nowMs * 1_000),\n    leaseUntilMs: nowMs + 2 * leaseMs,\n  }',
      caughtBy: bySessions('expired-not-run'),
    },
    {
      id: 'sessions: an old epoch is fenced only when the new one has been used',
      find: 'if (epoch < session.epoch) return',
      replace: 'if (epoch < session.epoch && session.last > 0) return',
      caughtBy: bySessions('fenced-not-run'),
    },
    {
      id: 'sessions: the last number is counted one too high',
      find: 'last: Math.max(session.last, asked.sequence),',
      replace: 'last: Math.max(session.last, asked.sequence + 1),',
      caughtBy: bySessions('gap-not-run'),
    },
    {
      id: 'sessions: the window begins at the last number',
      find: 'Math.max(session.floor, acknowledged) + window)',
      replace: 'session.last + window)',
      caughtBy: bySessions('window-kept'),
    },
    {
      id: 'sessions: contents are compared only when there is an answer',
      find: 'if (known) return known.fingerprint',
      replace: "if (known && 'outcome' in known) return known.fingerprint",
      caughtBy: bySessions('one-content'),
    },
    {
      id: 'sessions: epochs begin at 1 again after a session was closed',
      find: 'Math.max((session?.epoch ?? 0) + 1, nowMs)',
      replace: '(session && !session.isClosed ? session.epoch : 0) + 1',
      caughtBy: bySessions('epoch-grows'),
    },
  ]),
  ...bugsIn('src/sessions/sessions/memory.ts', 'sessions', [
    {
      id: 'sessions: a session that had a request is never forgotten',
      find: 'const forgetAtMs = session.leaseUntilMs + settings.tombstoneMs\n  table.set(asked.client',
      replace: 'const forgetAtMs = Infinity\n  table.set(asked.client',
      caughtBy: bySessions('rows-bounded'),
    },
    {
      id: 'sessions: an attempt that was taken over is told that its answer was stored',
      find: "(claim.fence !== 0 && held.fence !== claim.fence)) return 'lost'",
      replace: "(claim.fence !== 0 && held.fence !== claim.fence)) return held ? 'done' : 'lost'",
      caughtBy: bySessions('same-answer'),
    },
    {
      id: 'sessions: a number is locked out when its process has died',
      find: 'if (known && !isOurs && now() < known.leaseUntilMs) {',
      replace: 'if (known && !isOurs) {',
      caughtBy: caught(lockOut),
    },
    {
      id: 'sessions: an attempt that was taken over stores its answer',
      find: 'if (!held || held.token !== claim.token || (claim.fence !== 0 && held.fence !== claim.fence))',
      replace: 'if (!held)',
      caughtBy: caught(stalled),
    },
    {
      id: 'sessions: a request that was given back keeps its lease, and its client waits for nothing',
      find: "held.outcome ? undefined : { ...held, token: '', leaseUntilMs: context.now() },",
      replace: "held.outcome ? undefined : { ...held, token: '', leaseUntilMs: Infinity },",
      caughtBy: bySessions('not-locked-out'),
    },
    {
      id: 'sessions: a request lets go of all answers below it',
      find: 'if (number <= session.floor) found.requests.delete(number)',
      replace: 'if (number < sequence) found.requests.delete(number)',
      caughtBy: bySessions('one-effect'),
    },
    {
      id: 'sessions: an effect of an older epoch stores its answer into the new one',
      find: `  if (session.epoch !== asked.epoch) throw refusedBySession({ code: 'FENCED', session }, asked, context.settings)\n`,
      replace: '',
      caughtBy: caught(fencedInFlight),
    },
    {
      id: 'sessions: a new epoch replays the answers of the old one',
      find: 'forgetAtMs: session.leaseUntilMs + tombstoneMs, requests: new Map() })\n      return',
      replace:
        'forgetAtMs: session.leaseUntilMs + tombstoneMs, requests: table.get(client)?.requests ?? new Map() })\n      return',
      caughtBy: caught(collision),
    },
    {
      id: 'sessions: a number that runs is given to a second attempt',
      find: 'now() < known.leaseUntilMs) {',
      replace: 'now() < 0) {',
      caughtBy: caught(twice),
    },
    {
      id: 'sessions: acknowledged answers are kept for ever',
      find: 'if (number <= session.floor) found.requests.delete(number)',
      replace: 'if (number < 0) found.requests.delete(number)',
      caughtBy: caught(letGo),
    },
  ]),
  ...bugsIn('src/sessions/sessions/redis.ts', 'sessions', [
    {
      id: 'sessions on redis: a renewal or a closing without a reply is said not to be made',
      find: "executed = 'unknown', ...call",
      replace: "executed = 'no', ...call",
      caughtBy: onRedis(lostReply),
    },
    {
      id: 'sessions on redis: a registration without a reply is said not to be made',
      find: "executed: 'unknown',",
      replace: "executed: 'no',",
      caughtBy: onRedis(lostReply),
    },
  ]),
  ...bugsIn('src/sessions/sessions/redis/decisions.lua.ts', 'sessions', [
    {
      id: 'sessions on Redis: a number that runs is given to a second attempt',
      find: 'if known and not isOurs and now < tonumber(heldUntil) then',
      replace: 'if known and not isOurs and now < 0 then',
      caughtBy: onRedis(twice),
    },
    {
      id: 'sessions on Redis: an attempt that was taken over stores its answer',
      find: `if token ~= ARGV[3] or (ARGV[4] ~= '0' and heldFence ~= ARGV[4]) then return { 'lost' } end`,
      replace: '',
      caughtBy: onRedis(stalled),
    },
    {
      id: 'sessions on Redis: the epoch is not looked at when an answer is stored',
      find: `if epoch ~= tonumber(ARGV[1]) then return refused('FENCED') end\nif isClosed`,
      replace: 'if isClosed',
      caughtBy: onRedis(fencedInFlight),
    },
    {
      id: 'sessions on Redis: fingerprints are not compared',
      find: 'if fingerprint ~= ARGV[4] then',
      replace: 'if fingerprint == nil then',
      caughtBy: onRedis(mismatch),
    },
    {
      id: 'sessions on Redis: acknowledged answers are kept for ever',
      find: `  call('HDEL', key, 'r' .. whole(number), 'o' .. whole(number))\n`,
      replace: '',
      caughtBy: onRedis(letGo),
    },
    {
      id: 'sessions on Redis: a session never expires',
      find: 'isClosed or now >= leaseUntil then',
      replace: 'isClosed then',
      caughtBy: onRedis(expired),
    },
    {
      id: 'sessions on Redis: a gap is accepted',
      find: `if ARGV[10] == '1' and sequence > last + 1`,
      replace: `if ARGV[10] == 'yes' and sequence > last + 1`,
      caughtBy: onRedis(gap),
    },
  ]),
  ...bugsIn('src/sessions/sessions/sql.ts', 'sessions', [
    {
      id: 'sessions: the last sequence is saved apart from the effect',
      find: `        else await rows.answer(open, asked, Buffer.from(outcome).toString('base64'))`,
      replace: `        else await Promise.resolve(outcome)`,
      caughtBy: caught(again),
    },
    {
      id: 'sessions: what a refused effect wrote is committed with the refusal',
      find: '    async undoEffect() {\n      await open.rollback()\n',
      replace: '    async undoEffect() {\n      await open.commit()\n',
      caughtBy: caught(business),
    },
    {
      id: 'sessions: a refused request acknowledges',
      find: '  if (refusal) throw refusedBySession(refusal, asked, settings)\n  const next = afterRequest(found, asked, { ...settings, nowMs: found.nowMs })\n  await rows.write(session, client, next)\n',
      replace:
        '  const next = afterRequest(found, asked, { ...settings, nowMs: found.nowMs })\n  await rows.write(session, client, next)\n  if (refusal) {\n    await (session as SqlTransaction<unknown>).commit()\n    throw refusedBySession(refusal, asked, settings)\n  }\n',
      caughtBy: caught(mismatch),
    },
    {
      id: 'sessions: rows of acknowledged requests stay',
      find: '  if (next.floor > found.floor) await rows.clean(session, client, next)\n',
      replace: '',
      caughtBy: caught(letGo),
    },
    {
      id: 'sessions: the epoch is not looked at before COMMIT',
      find: 'if (!session || session.epoch !== asked.epoch || session.isClosed) throw',
      replace: 'if (!session) throw',
      caughtBy: byTest('test/sessions/sessions.test.ts', fencedInFlight, 'postgres'),
    },
  ]),
  ...bugsIn('src/http/exchange/scoped-key.ts', 'sessions', [
    {
      id: 'sessions over HTTP: tenants share the names of their clients',
      find: 'const name = `${escapePart(tenant)}/${session}`',
      replace: 'const name = session',
      caughtBy: overHttp('a session belongs to its tenant'),
    },
    {
      id: 'sessions over HTTP: hashed keys, and a session that can be read',
      find: "if (how === 'plain' && tenant.isWellFormed()) {\n    const name",
      replace: 'if (tenant.isWellFormed()) {\n    const name',
      caughtBy: overHttp('with hashed keys the store is given neither tenant nor session'),
    },
  ]),
  ...bugsIn('src/http/exchange/named-request.ts', 'sessions', [
    {
      id: 'sessions over HTTP: a number runs without its session',
      find: 'numberKey(settings.sessions!, numbered), numbered }',
      replace: 'numberKey(settings.sessions!, numbered), numbered: undefined }',
      caughtBy: overHttp('what was acknowledged is gone, and never runs again'),
    },
    {
      id: 'sessions over HTTP: a caller without a tenant shares one',
      find: '  return !tenant\n',
      replace: '  return false\n',
      caughtBy: overHttp('a caller without a tenant can neither register nor use a session'),
    },
  ]),
  ...bugsIn('src/http/exchange/sessions.ts', 'sessions', [
    {
      id: 'sessions over HTTP: beside a key the number is ignored',
      find: "  if (asked.keyLines.length > 0) return { problem: 'sessionAndKey', details: {} }\n",
      replace: '',
      caughtBy: overHttp(
        'a request with a key and a session is refused, and so is one whose headers are not all there',
      ),
    },
    {
      id: 'sessions over HTTP: what is not offered is ignored',
      find: 'return asked.header(numberedBy[0]) !== undefined || asked.header(numberedBy[1]) !== undefined',
      replace: 'return asked.header(numberedBy[0]) !== undefined && asked.header(numberedBy[1]) !== undefined',
      caughtBy: overHttp('without sessions a numbered request is refused by name, and a key protects as ever'),
    },
    {
      id: 'sessions over HTTP: a number may have a sign or a fraction',
      find: 'const digits = /^(?:0|[1-9][0-9]{0,14})(?=;|$)/',
      replace: 'const digits = /^[-+]?[0-9.]+(?=;|$)/',
      caughtBy: overHttp(
        'a request with a key and a session is refused, and so is one whose headers are not all there',
      ),
    },
    {
      id: 'sessions over HTTP: closing only renews',
      find: '  await sessions.close(session)\n',
      replace: '  await sessions.keepAlive(session)\n',
      caughtBy: overHttp('a session that is renewed in time stays, and one that is closed is gone'),
    },
  ]),
  ...bugsIn('src/gateway/proxy/forwarded-headers.ts', 'sessions', [
    {
      id: 'sessions over HTTP: the service behind the gateway is given headers that are not for it',
      find: '    if (derivedKey !== undefined && replacedByKey.has(lower)) continue\n',
      replace: '',
      caughtBy: byTest(
        'test/gateway/sessions.test.ts',
        'the service is given a key of its own for each number, and no header of the session',
      ),
    },
  ]),
  ...bugsIn('src/gateway/proxy/listener.ts', 'sessions', [
    {
      id: 'sessions over HTTP: the gateway counts a registration as refused',
      find: "isServed ? 'passed' : 'refused'",
      replace: "isServed ? 'refused' : 'refused'",
      caughtBy: byTest(
        'test/gateway/sessions.test.ts',
        'the log counts numbers as it counts keys, and a registration as passed',
      ),
    },
  ]),
  ...bugsIn('src/http/exchange.ts', 'sessions', [
    {
      id: 'sessions over HTTP: numbers are compared without their request',
      find: 'settings.sessions!.apply({ ...numbered, fingerprint },',
      replace: "settings.sessions!.apply({ ...numbered, fingerprint: '' },",
      caughtBy: overHttp('a number in another request is refused, and nothing runs'),
    },
    {
      id: 'sessions over HTTP: the handler has no transaction',
      find: 'tellOnce(settings, attempt, op, settings.transaction ? tx : undefined)',
      replace: 'tellOnce(settings, attempt, op, undefined)',
      caughtBy: overHttp('in a transaction effect and answer commit together, and a refusal without what it wrote'),
    },
  ]),
  ...bugsIn('src/sessions/sessions.ts', 'sessions', [
    {
      id: 'sessions: a request may acknowledge itself',
      find: 'if (acknowledged >= sequence) {',
      replace: 'if (acknowledged > sequence) {',
      caughtBy: caught(hostile),
    },
  ]),
]
