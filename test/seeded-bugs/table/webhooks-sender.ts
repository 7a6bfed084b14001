// Bugs in the webhook sender.

import { bugsIn, byTest } from '../bug.ts'
import type { CaughtBy, SeededBug } from '../bug.ts'

const onSqlite = (test: string): CaughtBy => byTest('test/webhooks/sender.test.ts', test)
const onPostgres = (test: string): CaughtBy => byTest('test/webhooks/sender.test.ts', test, 'postgres')
const onMariadb = (test: string): CaughtBy => byTest('test/webhooks/sender.test.ts', test, 'mariadb')
const inGuard = (test: string): CaughtBy => byTest('src/webhooks/sender/guard.test.ts', test)
const inVerdicts = (test: string): CaughtBy => byTest('src/webhooks/sender/verdicts.test.ts', test)

const one = 'an event has one delivery per endpoint that wants its topic and its type, however often it is published'
const zombie = 'a sender that lost its endpoint records nothing, whatever its attempt came to'
const rebinding =
  'a name that changes its address between two connections is checked for each, and one address that is refused refuses the name'
const failing = 'an endpoint of which every attempt failed for a time is disabled, and one success begins the time anew'
const replayed =
  'a delivery is replayed by id and by range, with the same id and a schedule of its own, and its reason is on record'

export const webhookSenderBugs: readonly SeededBug[] = [
  ...bugsIn('src/webhooks/sender/addresses.ts', 'webhooks', [
    {
      id: 'webhook sender: the metadata of a cloud can be reached',
      find: `'169.254.0.0/16',`,
      replace: `'169.253.0.0/16',`,
      caughtBy: inGuard('169.254.169.254 is refused'),
    },
    {
      id: 'webhook sender: IPv4 inside of IPv6 can be reached',
      find: 'return !globalIpv6.check(address, family) || refusedIpv6.check(address, family)',
      replace: 'return refusedIpv6.check(address, family)',
      caughtBy: inGuard('::ffff:10.0.0.1 is refused'),
    },
    {
      id: 'webhook sender: an address inside of a 6to4 address can be reached',
      find: `  '2002::/16', // 6to4: holds an IPv4 address\n`,
      replace: '',
      caughtBy: inGuard('2002:7f00:1:: is refused'),
    },
  ]),
  ...bugsIn('src/webhooks/sender/guard.ts', 'webhooks', [
    {
      id: 'webhook sender: an address that is given as such is not checked where a connection is opened',
      find: 'if (isIP(host) && guard.refuses(host, host)) return callback(new AddressRefusedError(host, host), null)',
      replace: '',
      caughtBy: inGuard('a connection to an address that is not allowed is not opened, by address or by name'),
    },
    {
      id: 'webhook sender: what a name resolves to is not checked',
      find: 'addresses?.find(({ address }) => guard.refuses(hostname, address))',
      replace: 'addresses?.find(() => false)',
      caughtBy: inGuard(rebinding),
    },
    {
      id: 'webhook sender: of the addresses of a name only the first is checked',
      find: 'addresses?.find(({ address }) => guard.refuses(hostname, address))',
      replace: 'addresses?.slice(0, 1).find(({ address }) => guard.refuses(hostname, address))',
      caughtBy: inGuard(rebinding),
    },
    {
      id: 'webhook sender: a URL may hold a password',
      find: `if (url.username !== '' || url.password !== '') {`,
      replace: `if (url.username === '' && url.password !== '') {`,
      caughtBy: inGuard('is absolute, http or https, and holds no password'),
    },
  ]),
  ...bugsIn('src/webhooks/sender/posting.ts', 'webhooks', [
    {
      id: 'webhook sender: an answer without an end is read until the time is over',
      find: 'if (bytes > bytesMax) break',
      replace: '',
      caughtBy: inGuard('of an answer without an end only the first bytes are read, and its status counts'),
    },
    {
      id: 'webhook sender: an attempt has no time limit',
      find: 'signal: late.signal',
      replace: 'signal: null',
      caughtBy: inGuard(
        'an endpoint that never answers is given up, and an answer that breaks off after its status counts',
      ),
    },
  ]),
  ...bugsIn('src/webhooks/sender/verdicts.ts', 'webhooks', [
    {
      id: 'webhook sender: a redirect counts as a delivery',
      find: 'status < 300',
      replace: 'status < 400',
      caughtBy: inVerdicts('only 2xx is a delivery: redirects, refusals and no answer at all are tried again'),
    },
    {
      id: 'webhook sender: Retry-After has no bound',
      find: 'Math.min(retryAfterMs, pausesMs.webhookRetryAfterMax)',
      replace: 'retryAfterMs',
      caughtBy: onSqlite('Retry-After lengthens a pause up to an hour, and shortens none'),
    },
    {
      id: 'webhook sender: Retry-After shortens the pauses of the schedule',
      find: 'Math.max(webhookPauseMs(pauseMs ?? 0, random), askedMs)',
      replace: 'askedMs || webhookPauseMs(pauseMs ?? 0, random)',
      caughtBy: onSqlite('Retry-After lengthens a pause up to an hour, and shortens none'),
    },
    {
      id: 'webhook sender: the schedule has an attempt too many',
      find: 'scheduleMs[tries]',
      replace: 'scheduleMs[tries - 1]',
      caughtBy: inVerdicts(
        'pauses are those of the schedule, a tenth shorter or longer, and the tenth attempt is the last',
      ),
    },
    {
      id: 'webhook sender: 410 does not disable an endpoint',
      find: `if (status === 410) return { is: 'gone', inMs }`,
      replace: '',
      caughtBy: onSqlite('410 disables an endpoint, its events wait, and they are sent when it is enabled'),
    },
  ]),
  ...bugsIn('src/webhooks/sender/schema.sql.ts', 'webhooks', [
    {
      id: 'webhook sender: a row that is published again makes a second delivery (PostgreSQL)',
      find: '  ended_at_ms bigint,\n  unique (event_id, endpoint_id)',
      replace: '  ended_at_ms bigint',
      caughtBy: onPostgres(one),
    },
    {
      id: 'webhook sender: a row that is published again makes a second delivery (MySQL)',
      find: 'unique key event (event_id, endpoint_id)',
      replace: 'key event (event_id, endpoint_id)',
      caughtBy: onMariadb(one),
    },
    {
      id: 'webhook sender: a row that is published again makes a second delivery (SQLite)',
      find: '  UNIQUE (event_id, endpoint_id)',
      replace: '  UNIQUE (event_id, endpoint_id, position)',
      caughtBy: onSqlite(one),
    },
  ]),
  ...bugsIn('src/webhooks/sender/fan-out.ts', 'webhooks', [
    {
      id: 'webhook sender: an endpoint gets types that it did not ask for',
      find: 'topic === message.topic && wants(types, typeOf(message))',
      replace: 'topic === message.topic',
      caughtBy: onSqlite(one),
    },
    {
      id: 'webhook sender: headers for our own services leave the house',
      find: `name === 'content-type' || name.startsWith('ce-')`,
      replace: 'name.length > 0',
      caughtBy: onSqlite(one),
    },
  ]),
  ...bugsIn('src/webhooks/sender/holdings.ts', 'webhooks', [
    {
      id: 'webhook sender: a sender records without its epoch',
      find: 'id = ${endpoint} and epoch = ${integer(epoch)}',
      replace: 'id = ${endpoint} and epoch >= ${integer(epoch)}',
      caughtBy: onSqlite(zombie),
    },
    {
      id: 'webhook sender: the epoch does not grow when an endpoint is taken',
      find: 'set epoch = epoch + 1, owner',
      replace: 'set epoch = epoch + 0, owner',
      caughtBy: onPostgres(zombie),
    },
    {
      id: 'webhook sender: a lease has ended when it is prolonged',
      find: 'set lease_until_ms = ${nowMs()} + ${integer(leaseMs)} where ${own}',
      replace: 'set lease_until_ms = ${nowMs()} - ${integer(leaseMs)} where ${own}',
      caughtBy: onSqlite(zombie),
    },
    {
      id: 'webhook sender: a webhook that fails is overtaken by those of its key',
      find: `b.state = 'pending' and b.position < d.position`,
      replace: `b.state = 'none' and b.position < d.position`,
      caughtBy: onSqlite('of an endpoint in order a webhook that fails holds back those of its key and no others'),
    },
    {
      id: 'webhook sender: a success does not begin the time of failures anew',
      find: '? sql`failing_since_ms = null`',
      replace: '? sql`failing_since_ms = failing_since_ms`',
      caughtBy: onSqlite(failing),
    },
    {
      id: 'webhook sender: the time of failures is judged after it was begun (MySQL)',
      find: 'state = case when ${isDue} then',
      replace: `state = 'active', state = case when \${isDue} then`,
      caughtBy: onMariadb(failing),
    },
  ]),
  ...bugsIn('src/webhooks/sender/attempts.ts', 'webhooks', [
    {
      id: 'webhook sender: every attempt has the time of the first',
      find: 'sentAtMs: clock.now()',
      replace: 'sentAtMs: 1_700_000_000_000',
      caughtBy: onSqlite(
        'every attempt has the id of the event and a time of its own, and is kept with its status, its duration and the first bytes',
      ),
    },
  ]),
  ...bugsIn('src/webhooks/sender/endpoints.ts', 'webhooks', [
    {
      id: 'webhook sender: a secret that was changed signs no more',
      find: 'untilMs: nowMs + keepOldMs, ...each',
      replace: 'untilMs: nowMs, ...each',
      caughtBy: onSqlite('while a secret is changed every webhook is signed with the old and the new one'),
    },
    {
      id: 'webhook sender: a secret signs for ever',
      find: 'return secrets.filter(({ untilMs = Infinity }) => untilMs > nowMs)',
      replace: 'return secrets',
      caughtBy: inVerdicts('a secret signs until its time is over'),
    },
    {
      id: 'webhook sender: what was to be sent to an endpoint that is removed stays',
      find: `where endpoint_id = \${id} and state = 'pending'`,
      replace: `where endpoint_id = \${id} and state = 'none'`,
      caughtBy: onSqlite('an endpoint is changed, and what was to be sent to one that is removed is not sent'),
    },
  ]),
  ...bugsIn('src/webhooks/sender/deliveries.ts', 'webhooks', [
    {
      id: 'webhook sender: a replay of a range sends what has arrived, too',
      find: `...(filter.id === undefined && { state: 'failed' }), `,
      replace: '',
      caughtBy: onSqlite(replayed),
    },
    {
      id: 'webhook sender: the reason of a replay is not on record',
      find: 'if (reason === undefined) await again',
      replace: `if (reason !== '') await again`,
      caughtBy: onSqlite(replayed),
    },
    {
      id: 'webhook sender: a replay has no attempts left',
      find: `set state = 'pending', tries = 0, since_at_ms`,
      replace: `set state = 'failed', tries = 0, since_at_ms`,
      caughtBy: onSqlite(replayed),
    },
  ]),
  ...bugsIn('src/webhooks/sender/retention.ts', 'webhooks', [
    {
      id: 'webhook sender: what waits for a disabled endpoint is never given up',
      find: `set state = 'failed', ended_at_ms`,
      replace: `set state = 'pending', ended_at_ms`,
      caughtBy: onSqlite('what waited too long is given up, and what ended long ago is removed'),
    },
  ]),
]
