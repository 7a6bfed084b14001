// Bugs in the stores on a server: what only its language, its clock or its transactions can get wrong.

import { bugsIn, byTest } from '../bug.ts'
import type { SeededBug } from '../bug.ts'

const inPostgres = 'src/stores/postgres/contract.test.ts'
const inPeriods = 'src/stores/postgres/periods.test.ts'
const inServer = 'src/stores/postgres/server.test.ts'
const twoLives = 'of two lives of a token that write at once, the old one is lost and the new one is served'
const lateStep = 'a step of a holder whose claim came again after its operation was forgotten does not begin'
const swept =
  'after a sweep nothing of the input, the steps and the result of an expired operation is left in the tables'
const sweptOutcome = 'after a sweep nothing of an expired outcome or input is left in the store'
const inSmallPool = 'src/stores/postgres/small-pool.test.ts'
const wholePool = 'pg: effects that wait for each other are told the cause and the cure, and the pool is whole'

export const postgresBugs: readonly SeededBug[] = [
  ...bugsIn('src/stores/postgres/schema.sql.ts', 'stores', [
    {
      id: 'postgres: a swept tombstone keeps the input of its operation',
      find: 'set outcome = null, input = null, sweep_at_ms',
      replace: 'set outcome = null, sweep_at_ms',
      caughtBy: byTest(
        'test/seeded-bugs/postgres.test.ts',
        'a sweep takes outcome and input of a tombstone out of the table',
        'postgres',
      ),
    },
  ]),
  ...bugsIn('src/stores/postgres/decisions.sql.ts', 'stores', [
    {
      id: 'postgres: commit without a fence',
      find: `h.state = 'r'\n      and h.token = a_token and (h.fence = a_fence or a_fence = 0 and verb in ('open', 'forget'))`,
      replace: `h.state = 'r'`,
      caughtBy: byTest(inPostgres, "after a takeover the old holder's settle is lost and changes nothing", 'postgres'),
    },
    {
      id: 'postgres: no mismatch check',
      find: `      elsif entry.fingerprint <> a_fingerprint then`,
      replace: `      elsif entry.fingerprint <> a_fingerprint and false then`,
      caughtBy: byTest(
        inPostgres,
        'another fingerprint on a key that is settled is a mismatch and harms nothing, whatever the policies',
        'postgres',
      ),
    },
    {
      id: 'postgres: the fence of a takeover is the old one',
      find: 'entry.fence := greatest(now_us, entry.fence + 1);',
      replace: 'entry.fence := entry.fence;',
      caughtBy: byTest(inPostgres, 'every takeover is one more attempt with a greater fence', 'postgres'),
    },
  ]),
  ...bugsIn('src/stores/postgres/decisions.sql.ts', 'stores', [
    {
      id: 'postgres: a heartbeat without the token',
      find: `h.token = c.token and h.fence = c.fence and h.state = 'r'`,
      replace: `h.state = 'r'`,
      caughtBy: byTest(
        inPostgres,
        'of many writes at once, those of holders that were taken over are lost and change nothing',
        'postgres',
      ),
    },
    {
      id: 'postgres: token without fence: a claim delivered once more revives the holder of a life that is over',
      find: `h.token = a_token and (h.fence = a_fence or a_fence = 0 and verb in ('open', 'forget'))`,
      replace: `h.token = a_token`,
      caughtBy: byTest(
        inPostgres,
        'a claim that comes again after its entry is over does not revive the old holder',
        'postgres',
      ),
    },
    {
      id: 'postgres: token without fence in what is written together',
      find: `h.token = c.token and h.fence = c.fence and h.state = 'r'`,
      replace: `h.token = c.token and h.state = 'r'`,
      caughtBy: byTest(inPostgres, twoLives, 'postgres'),
    },
    {
      id: 'postgres: who was written in a batch is told by the token alone',
      find: `if written[turn] = n then`,
      replace: `if tokens[written[turn]] = tokens[n] then`,
      caughtBy: byTest(inPostgres, twoLives, 'postgres'),
    },
    {
      id: 'postgres: who was written in a batch is told by token and fence, whatever the verb',
      find: `if written[turn] = n then`,
      replace: `if tokens[written[turn]] = tokens[n] and fences[written[turn]] = fences[n] then`,
      caughtBy: byTest(inServer, 'a release beside a heartbeat of the same claim is carried out', 'postgres'),
    },
    {
      id: 'postgres: an effect that ended its transaction itself is told success',
      find: `  if \${ownKey} is distinct from \${lockNumber(names, 'a_scope', 'an_id')}::text then
    raise exception using errcode = '\${endedState}', message = 'onceonly: the transaction had ended';
  end if;
  if not`,
      replace: `  if not`,
      caughtBy: byTest(
        inServer,
        'an effect that ends its transaction itself is told that its outcome is unknown, fresh or taken over',
        'postgres',
      ),
    },
    {
      id: 'postgres: a key is claimed once more inside of its own transaction',
      find: `  if \${ownKey} = \${lockNumber(names, 'a_scope', 'an_id')}::text then
    return 'held';
  end if;
`,
      replace: '',
      caughtBy: byTest(inServer, 'a key is in flight inside of its own transaction', 'postgres'),
    },
    {
      id: 'postgres: a claim waits for a transaction that has its key',
      find: `if not locked and not pg_try_advisory_xact_lock(`,
      replace: `if not locked and false and not pg_try_advisory_xact_lock(`,
      caughtBy: byTest(
        inPostgres,
        'a key claimed in an open transaction is granted to nobody else, and nobody hangs',
        'postgres',
      ),
    },
    {
      id: 'postgres: of claims of one key in one batch each looks into another table, and each is granted',
      find: `b.answer = 'absent' and b.nth = 1 and pg_try`,
      replace: `b.answer = 'absent' and pg_try`,
      caughtBy: byTest(
        inPeriods,
        'of claims of one key with retentions of different tables, one is granted, in one batch or two sessions',
        'postgres',
      ),
    },
  ]),
  ...bugsIn('src/stores/postgres/periods.sql.ts', 'stores', [
    {
      id: 'postgres: an entry is put into a table that is emptied a millisecond too early',
      find: 'where p.ends_at_ms >= ${forgottenAtMs} order by',
      replace: 'where p.ends_at_ms >= ${forgottenAtMs} - 1 order by',
      caughtBy: byTest(
        'test/seeded-bugs/postgres.test.ts',
        'an entry that outlives a period by a millisecond is not emptied with it',
        'postgres',
      ),
    },
    {
      id: 'postgres: an entry that outlives its period stays in the table that is emptied then',
      find: 'elsif entry.lease_until_ms + entry.keep_ms + entry.tombstone_ms > entry.sweep_at_ms then',
      replace: 'elsif entry.sweep_at_ms < 0 then',
      caughtBy: byTest(
        inPeriods,
        'every write that prolongs an entry moves it: a repeated claim, a takeover, a release, a longer retention',
        'postgres',
      ),
    },
  ]),
  ...bugsIn('src/stores/postgres/operations.sql.ts', 'stores', [
    {
      id: 'postgres: a record that comes late overwrites a later one',
      find: `\n  where s.revision < excluded.revision;`,
      replace: ';',
      caughtBy: byTest(inPostgres, 'a record that comes late never overwrites a later one', 'postgres'),
    },
    {
      id: 'postgres: the step of a holder that was taken over is committed',
      find: `if answers[1] <> 'done' and verb <> plain_verb then`,
      replace: `if answers[1] = 'never' and verb <> plain_verb then`,
      caughtBy: byTest(
        inPostgres,
        'a step whose holder is taken over while it runs is rolled back at its commit',
        'postgres',
      ),
    },
  ]),
  ...bugsIn('src/stores/postgres/operations.ts', 'stores', [
    {
      id: 'postgres: a step begins by the token, whatever the fence',
      find: ` and e.fence = \${integer('fence', fence)}\n`,
      replace: '\n',
      caughtBy: byTest(inPostgres, lateStep, 'postgres'),
    },
  ]),
  ...bugsIn('src/stores/postgres/fitness.ts', 'stores', [
    {
      id: 'postgres: a server that does not sync its commits is accepted',
      find: `judge(value === 'off' ? 'violated' : 'ok', value, mend)`,
      replace: `judge('ok', value, mend)`,
      caughtBy: byTest(
        'src/stores/postgres/server.test.ts',
        'synchronous_commit = off, an unlogged table and another encoding are refused',
        'postgres',
      ),
    },
  ]),
  ...bugsIn('src/stores/postgres/names.ts', 'stores', [
    {
      id: 'postgres: two versions of a function share a name when the table has a long one',
      find: `if (table.length + suffix.length <= nameBytesMax) return`,
      replace: `if (table.length <= nameBytesMax) return`,
      caughtBy: byTest(inServer, 'two versions of a table with the longest name share no function', 'postgres'),
    },
    {
      id: 'postgres: now() for clock_timestamp()',
      find: 'extract(epoch from clock_timestamp())',
      replace: 'extract(epoch from now())',
      caughtBy: byTest(
        inPostgres,
        'a key whose lease is over is taken over: next attempt, new token, greater fence',
        'postgres',
      ),
    },
  ]),
  ...bugsIn('src/clients/lent-connections.ts', 'stores', [
    {
      id: 'pools: a wait for connections that the store itself holds ends without a word',
      find: 'if (!areAllLent()) return',
      replace: 'if (size !== -1) return',
      caughtBy: byTest(inSmallPool, wholePool, 'postgres'),
    },
  ]),
  ...bugsIn('src/stores/postgres/errors.ts', 'stores', [
    {
      id: 'postgres: a code of Prisma is taken for what the server said',
      find: '[meta?.driverAdapterError?.cause?.originalCode, meta?.code, code]',
      replace: '[meta?.code, code]',
      caughtBy: byTest(
        'src/stores/postgres/prisma.test.ts',
        'Prisma: a serialization failure is a conflict, however it is wrapped; others are not',
        'postgres',
      ),
    },
    {
      id: 'postgres: a server that shuts down at COMMIT is taken at its word that nothing was committed',
      find: `/^(40|23|25|22|42|54|55|P0|OO)/`,
      replace: `/^(40|23|25|22|42|54|55|57|P0|OO)/`,
      caughtBy: byTest(inServer, 'a server that ends the session at COMMIT leaves the outcome unknown', 'postgres'),
    },
  ]),
  ...bugsIn('src/stores/postgres/transactions.ts', 'stores', [
    {
      id: 'postgres: a COMMIT that nobody answered is told as rolled back',
      find: `throw commitUnknown(key, error)`,
      replace: `throw commitRefused(key, error)`,
      caughtBy: byTest(
        inPostgres,
        'a connection cut after COMMIT is OUTCOME_UNKNOWN, and the retry is told the outcome: one effect in the end',
        'postgres',
      ),
    },
    {
      id: 'postgres: a client returns to the pool inside a transaction',
      find: `    await rollback(connection)\n    return { verdict }`,
      replace: `    connection.release()\n    return { verdict }`,
      caughtBy: byTest(
        'test/seeded-bugs/postgres.test.ts',
        'a begin that is refused gives its connection back without a transaction on it',
        'postgres',
      ),
    },
  ]),
]

const inRedis = 'src/stores/redis/contract.test.ts'
export const redisBugs: readonly SeededBug[] = [
  ...bugsIn('src/stores/redis/decisions.lua.ts', 'stores', [
    {
      id: 'redis: DEL without the token',
      find: `if isExpired(entry) or not isHeldBy(entry, verb, fence, token) then return 0 end`,
      replace: `if isExpired(entry) then return 0 end`,
      caughtBy: byTest(inRedis, "after a takeover the old holder's release open is lost and changes nothing", 'redis'),
    },
    {
      id: 'redis: token without fence: a claim delivered once more revives the holder of a life that is over',
      find: 'if find(entry, fence, ${entry.fence.from}, true) == ${entry.fence.from} then return true end',
      replace: 'if fence then return true end',
      caughtBy: byTest(
        inRedis,
        'a claim that comes again after its entry was given back does not revive the old holder',
        'redis',
      ),
    },
    {
      id: 'redis: no mismatch check for running keys',
      find: '  if sub(entry, ${at(entry.fingerprint)}) ~= sub(rest, ${at(claimWords.fingerprint)}) then return entry end\n',
      replace: '',
      caughtBy: byTest(
        inRedis,
        'another fingerprint on a key that is open is a mismatch and harms nothing, whatever the policies',
        'redis',
      ),
    },
    {
      id: 'redis: a running key is taken over',
      find: 'local isLeased = nowText < sub(entry, ${at(entry.lease)})',
      replace: `local isLeased = nowText < '0'`,
      caughtBy: byTest(inRedis, 'a key is not taken over while its lease lasts', 'redis'),
    },
    {
      id: 'redis: a large outcome is not kept as long as its entry',
      find: "  call('PEXPIREAT', nameOf('outcome', name), format('%d', kept))\n",
      replace: '',
      caughtBy: byTest(
        'src/stores/redis/batches.test.ts',
        'a keep prolongs how long Redis keeps an entry and its large outcome',
        'redis',
      ),
    },
    {
      id: 'redis: a resolve leaves the holder its fence',
      find: 'sub(entry, ${at(entry.fence)}) + 1))\n  local fenced',
      replace: 'sub(entry, ${at(entry.fence)}) + 1))\n  fence = sub(entry, ${at(entry.fence)})\n  local fenced',
      caughtBy: byTest(
        'src/stores/redis/batches.test.ts',
        'outcome that a person found out is replayed, and its holder is fenced off',
        'redis',
      ),
    },
    {
      id: 'redis: SET, then EXPIRE with the lease: what is settled is gone too early',
      find: `  write(name, settled, forgotten)`,
      replace: `  call('SET', name, settled, 'PX', '1')\n  written = true`,
      caughtBy: byTest(
        inRedis,
        'a settled key is replayed until its time is over, then it is expired, then absent',
        'redis',
      ),
    },
  ]),
  ...bugsIn('src/stores/redis/data-loss/memory.ts', 'stores', [
    {
      id: 'redis: a reply that could not know of a loss makes an instance forget what was lost',
      find: `sent.lineage === lineage || evidence !== 'none'`,
      replace: 'sent.lineage === lineage || found !== sent.lineage',
      caughtBy: byTest(
        'src/stores/redis/data-loss/memory.test.ts',
        'a reply to a question of an instance that knew nothing does not make it forget the dataset that it heard of since',
      ),
    },
    {
      id: 'redis: a late reply that acknowledged what is lost by now is forgotten',
      find: 'bornAt(found) < bornAt(lineage)',
      replace: 'lineage === found',
      caughtBy: byTest(
        'src/stores/redis/data-loss/memory.test.ts',
        'a late reply that acknowledges a write of a dataset that is gone by then makes the next question ask for it',
      ),
    },
    {
      id: 'redis: a process that was idle for a week counts on a mark that has gone, and stops everybody',
      find: 'clock.elapsed() - wroteAtMs < markKeepMs / 2 ? acknowledged : 0',
      replace: 'acknowledged',
      caughtBy: byTest(
        'src/stores/redis/data-loss.test.ts',
        'a process that was idle for a week has lost nothing, and stops nobody',
        'redis',
      ),
    },
  ]),
  ...bugsIn('src/stores/redis/batches.ts', 'stores', [
    {
      id: 'redis: a heartbeat waits behind calls without a reply',
      find: 'extend: phase(writeScript, fencedOf, heartbeatDispatchesMax),',
      replace: 'extend: write,',
      caughtBy: byTest(
        'src/stores/redis/batches.test.ts',
        'a heartbeat does not wait behind calls without a reply',
        'redis',
      ),
    },
    {
      id: 'redis: a call is sent long after its caller has given up',
      find: 'nowMs - sinceMs >= timeoutMs',
      replace: 'nowMs - sinceMs >= 60 * timeoutMs',
      caughtBy: byTest(
        'src/stores/redis/batches.test.ts',
        'what has waited behind a hanging server for as long as its caller waits is not sent',
        'redis',
      ),
    },
  ]),
  ...bugsIn('src/stores/redis/data-loss/register.lua.ts', 'stores', [
    {
      id: 'redis: data that went back is not noticed',
      find: 'elseif mark < tonumber(ARGV[${valueAt.mark}]) then\n',
      replace: 'elseif mark < 0 then\n',
      caughtBy: byTest(
        'src/stores/redis/data-loss.test.ts',
        'a server that came back with an older dataset is found by the writes that are missing; what it knows is replayed',
        'redis',
      ),
    },
  ]),
  ...bugsIn('src/stores/redis/fitness.ts', 'stores', [
    {
      id: 'redis: a server that forgets keys when its memory is full is accepted',
      find: `judge(policy === 'noeviction' ? 'ok' : 'violated', policy, mend)`,
      replace: `judge(policy === '' ? 'violated' : 'ok', policy, mend)`,
      caughtBy: byTest(
        'src/stores/redis/fitness.test.ts',
        'refuses a server that evicts, unless eviction is accepted, and has written nothing',
        'redis',
      ),
    },
    {
      id: 'redis: a server without an append-only file is accepted',
      find: `    if (appendOnly !== '1') {`,
      replace: `    if (appendOnly === '') {`,
      caughtBy: byTest(
        'src/stores/redis/fitness.test.ts',
        'refuses a server without an append-only file, unless durability is relaxed',
        'redis',
      ),
    },
  ]),
]

const inMysql = 'src/stores/mysql/contract.test.ts'
const inMysqlServer = 'src/stores/mysql/server.test.ts'
const inMysqlOperations = 'src/stores/mysql/operations.test.ts'
export const mysqlBugs: readonly SeededBug[] = [
  ...bugsIn('src/stores/mysql/transactions.ts', 'stores', [
    {
      id: 'mysql: a step that committed its transaction itself is told that nothing was executed',
      find: `if (isSavepointMissing(cause)) return endedByEffect(key, cause)`,
      replace: `if (isSavepointMissing(cause)) return commitRefused(key, cause, 'The transaction had ended.')`,
      caughtBy: byTest(
        inMysql,
        'a step that commits its transaction itself is OUTCOME_UNKNOWN, and is not recorded',
        'mariadb',
      ),
    },
  ]),
  ...bugsIn('src/stores/mysql/decisions.sql.ts', 'stores', [
    {
      id: 'mysql: a swept tombstone keeps the input of its operation',
      find: 'e.outcome = null, e.input = null, e.sweep_at_ms',
      replace: 'e.outcome = null, e.sweep_at_ms',
      caughtBy: byTest(inMysql, swept, 'mariadb'),
    },
    {
      id: 'mysql: commit without a fence',
      find: "set is_held = is_there and e_token = a_token and (e_fence = a_fence or a_fence = 0 and verb in ('open', 'forget'))",
      replace: 'set is_held = is_there',
      caughtBy: byTest(inMysql, "after a takeover the old holder's extend is lost and changes nothing", 'mariadb'),
    },
    {
      id: 'mysql: an outcome is stored although the effect had committed its transaction itself',
      find: 'if is_ended then',
      replace: 'if false then',
      caughtBy: byTest(
        inMysqlServer,
        'an effect that ends its transaction itself is told that its outcome is unknown (commit)',
        'mariadb',
      ),
    },
    {
      id: 'mysql: an effect that rolled back and committed something else is told that nothing was executed',
      find: "set answer = 'ended'",
      replace: "set answer = 'lost'",
      caughtBy: byTest(
        inMysqlServer,
        'an effect that rolls back, writes and commits is not told that nothing was executed',
        'mariadb',
      ),
    },
    {
      id: 'mysql: an entry that is resolved by hand keeps its fence',
      find: 'e.fence = greatest(now_us, e.fence + 1), e.lease_until_ms',
      replace: 'e.lease_until_ms',
      caughtBy: byTest(
        inMysqlServer,
        'a running, abandoned or open entry is resolved, its holder is fenced off, and its operation is settled',
        'mariadb',
      ),
    },
    {
      id: 'mysql: the fence of a takeover is the old one',
      find: 'set e_fence = greatest(now_us, e_fence + 1);',
      replace: 'set e_fence = e_fence;',
      caughtBy: byTest(inMysql, 'every takeover is one more attempt with a greater fence', 'mariadb'),
    },
  ]),
  ...bugsIn('src/stores/mysql/schema.sql.ts', 'stores', [
    {
      id: 'mysql: keys are folded by the column',
      find: `  scope varbinary(255) not null,\n  id varbinary(255) not null,\n  state`,
      replace: `  scope varbinary(255) not null,\n  id varchar(255) character set utf8mb4 collate utf8mb4_general_ci not null,\n  state`,
      caughtBy: byTest(
        inMysql,
        'keys that differ in case, blanks, accents, form or width are different keys',
        'mariadb',
      ),
    },
    {
      id: 'mysql: a key is cut off by its column',
      find: `  scope varbinary(255) not null,\n  id varbinary(255) not null,\n  state`,
      replace: `  scope varbinary(255) not null,\n  id varbinary(254) not null,\n  state`,
      caughtBy: byTest(inMysql, 'keys of 255 bytes that differ in their last byte are different keys', 'mariadb'),
    },
  ]),
  ...bugsIn('src/stores/mysql/operations.sql.ts', 'stores', [
    {
      id: 'mysql: a takeover resets the steps',
      find: 'if is_there and (o_life_fence = a_fence or not is_fresh) then',
      replace: 'if is_there and o_life_fence = a_fence then',
      caughtBy: byTest(
        inMysql,
        'after a takeover the old holder can write no record, and can neither settle nor give back',
        'mariadb',
      ),
    },
    {
      id: 'mysql: an enlisting that is repeated clears what was recorded since',
      find: 'if is_there and (o_life_fence = a_fence or not is_fresh) then',
      replace: 'if is_there and not is_fresh then',
      caughtBy: byTest(inMysql, 'an enlisting repeated with its token keeps what was recorded since', 'mariadb'),
    },
    {
      id: 'mysql: the records of a holder that was taken over are written with its end',
      find: `  if answer = 'done' then\n    if records is not null then`,
      replace: `  if answer is not null then\n    if records is not null then`,
      caughtBy: byTest(
        inMysql,
        'after a takeover the old holder can write no record, and can neither settle nor give back',
        'mariadb',
      ),
    },
    {
      id: 'mysql: the step of a holder that was taken over is committed',
      find: `  if answer in ('done', 'cancelled') then\n    commit;\n  else\n    rollback;`,
      replace: `  if answer in ('done', 'cancelled') then\n    commit;\n  else\n    commit;`,
      caughtBy: byTest(
        inMysql,
        'a step whose holder is taken over while it runs is rolled back at its commit',
        'mariadb',
      ),
    },
    {
      id: 'mysql: a step begins by the token, whatever the fence',
      find: 'e.token = a_token and e.fence = a_fence and',
      replace: 'e.token = a_token and',
      caughtBy: byTest(inMysql, lateStep, 'mariadb'),
    },
    {
      id: 'mysql: a step commits although its transaction had ended',
      find: '  release savepoint onceonly_step;\n',
      replace: '',
      caughtBy: byTest(
        inMysqlOperations,
        'what a step writes after its transaction was rolled back is not committed alone',
        'mariadb',
      ),
    },
    {
      id: 'mysql: a due operation is handed to every worker that asks',
      find: 'set o.due_at_ms = now_ms + a_hold_ms where',
      replace: 'set o.due_at_ms = o.due_at_ms where',
      caughtBy: byTest(
        inMysql,
        'a hundred due operations are shared by workers that ask at once, each given to one',
        'mariadb',
      ),
    },
    {
      id: 'mysql: a sweep takes the records of operations that go on',
      find: 'elseif e_expires_at_ms is null or e_expires_at_ms <= now_ms then',
      replace: 'elseif true then',
      caughtBy: byTest(
        inMysql,
        'a sweep leaves the records of an operation that has run for longer than it would be kept',
        'mariadb',
      ),
    },
  ]),
  ...bugsIn('src/stores/mysql/advances.ts', 'stores', [
    {
      id: 'mysql: a record that comes late overwrites a later one',
      find: '= if(r.revision > ${steps}.revision, ${value}, ${steps}.${column})`',
      replace: '= ${value}`',
      caughtBy: byTest(inMysql, 'a record that comes late never overwrites a later one', 'mariadb'),
    },
    {
      id: 'mysql: a batch of records looks at the tokens and not at the fences',
      find: "e.fence = a.fence and e.state = 'r' and ${now} < e.lease_until_ms + e.keep_ms\n      limit",
      replace: "e.state = 'r' and ${now} < e.lease_until_ms + e.keep_ms\n      limit",
      caughtBy: byTest(inMysql, twoLives, 'mariadb'),
    },
  ]),
  ...bugsIn('src/stores/mysql/batches.ts', 'stores', [
    {
      id: 'mysql: a settle that is repeated in a batch looks at the token and not at the fence',
      find: "if(e.token = a.token and e.fence = a.fence and e.state = 's'",
      replace: "if(e.token = a.token and e.state = 's'",
      caughtBy: byTest(inMysql, twoLives, 'mariadb'),
    },
  ]),
]

const inDynamodb = 'src/stores/dynamodb/contract.test.ts'
const inTransactions = 'src/stores/dynamodb/transactions.test.ts'
export const dynamodbBugs: readonly SeededBug[] = [
  ...bugsIn('src/stores/dynamodb/writes.ts', 'stores', [
    {
      id: 'dynamodb: commit without a fence',
      find: 'return { condition: `${condition} AND #fence = :fence`,',
      replace:
        'return { condition: `(${condition} AND #fence = :fence) OR (attribute_exists(#token) AND #wrote = :claim AND #expiresAtMs > :sure)`,',
      caughtBy: byTest(inDynamodb, "after a takeover the old holder's settle is lost and changes nothing", 'dynamodb'),
    },
    {
      id: 'dynamodb: token without fence: a claim delivered once more revives the holder of a life that is over',
      find: 'return { condition: `${condition} AND #fence = :fence`,',
      replace: 'return { condition: `${condition} AND (#fence = :fence OR attribute_exists(#fence))`,',
      caughtBy: byTest(
        inDynamodb,
        'a claim that comes again after its entry is over does not revive the old holder',
        'dynamodb',
      ),
    },
  ]),
  ...bugsIn('src/stores/dynamodb/transactions.ts', 'transactions', [
    {
      id: 'dynamodb: a commit that another attempt has overtaken is reported as done',
      find: `settledBy(own.Item, claim, moment) ? 'done' : 'lost'`,
      replace: `settledBy(own.Item, claim, moment) ? 'done' : 'done'`,
      caughtBy: byTest(inTransactions, 'whose claim was taken over is CLAIM_LOST and writes nothing', 'dynamodb'),
    },
    {
      id: 'dynamodb: a commit whose reply was lost is reported as lost',
      find: `settledBy(own.Item, claim, moment) ? 'done' : 'lost'`,
      replace: `settledBy(own.Item, claim, moment) ? 'lost' : 'lost'`,
      caughtBy: byTest(
        inTransactions,
        'repeated with its token is done, and the items are not written again',
        'dynamodb',
      ),
    },
    {
      id: 'dynamodb: what an effect collects after its end is not refused',
      find: '      hasEnded = true\n',
      replace: '',
      caughtBy: byTest(
        inTransactions,
        'an effect that hangs is given up: nothing is written, what it collects later is refused, and the key is free',
        'dynamodb',
      ),
    },
  ]),
  ...bugsIn('src/core/once/collecting.ts', 'transactions', [
    {
      id: 'collecting: a failure is stored with the writes that led to it',
      find: `ended.is === 'returned' && usual.do === 'settle'`,
      replace: `usual.do === 'settle'`,
      caughtBy: byTest(inTransactions, 'a failure that is the answer is stored without the items', 'dynamodb'),
    },
    {
      id: 'collecting: an effect that threw leaves its attempt behind',
      find: `if (ended.is === 'hung' || usual.do === 'open') return`,
      replace: `if (ended.is === 'hung') return`,
      caughtBy: byTest(
        inTransactions,
        'an effect that throws writes nothing and leaves no trace: another request may use the key',
        'dynamodb',
      ),
    },
  ]),
  ...bugsIn('src/core/once/collecting.ts', 'transactions', [
    {
      id: 'collecting: a failure that cannot be stored is told as executed',
      find: `usual.do === 'settle' ? { ...usual, notStored: (reason) => undoneAsNotStored(call.key, reason) } : usual`,
      replace: `usual`,
      caughtBy: byTest(
        inTransactions,
        'a failure that cannot be stored has executed nothing, and the key is free at once',
        'dynamodb',
      ),
    },
  ]),
  ...bugsIn('src/http/exchange/failures.ts', 'http', [
    {
      id: 'http: a response too large for the store is told as processed though it was rolled back',
      find: `rolledBack: 'thrown', forward`,
      replace: 'forward',
      caughtBy: byTest(
        'src/stores/mysql/server.test.ts',
        'of a value too large for a packet, a transaction undoes effect and claim, over HTTP too, and run keeps that it ran',
        'mariadb',
      ),
    },
  ]),
  ...bugsIn('src/core/once/transaction.ts', 'transactions', [
    {
      id: 'within: a value too large for the store is told as executed',
      find: `    await undo()
    throw undoneAsNotStored(call.key, error.message)`,
      replace: `    throw error`,
      caughtBy: byTest(
        'src/stores/mysql/server.test.ts',
        'of a value too large for a packet, a transaction undoes effect and claim, over HTTP too, and run keeps that it ran',
        'mariadb',
      ),
    },
  ]),
  ...bugsIn('src/core/once/run.ts', 'transactions', [
    {
      id: 'collecting: a refused commit keeps its key until the lease ends',
      find: `await held.release('forget').catch(() => 'done' as const)`,
      replace: `await Promise.resolve('done' as string)`,
      caughtBy: byTest(
        inTransactions,
        'a condition that does not hold is COMMIT_REFUSED, writes nothing, and the key is free at once',
        'dynamodb',
      ),
    },
  ]),
  ...bugsIn('src/stores/dynamodb/errors.ts', 'stores', [
    {
      id: 'dynamodb: an expired token is told as passing',
      find: `  'ExpiredTokenException',\n`,
      replace: '',
      caughtBy: byTest(
        'src/stores/dynamodb/faults.test.ts',
        'ExpiredTokenException is no matter of retries, and the cure is named',
        'dynamodb',
      ),
    },
  ]),
  ...bugsIn('src/stores/refusals.ts', 'stores', [
    {
      id: 'a certificate that is not trusted is told as passing',
      find: '/certificate|does',
      replace: '/does',
      caughtBy: byTest(
        'test/http/unfit-stores.test.ts',
        'with TLS where the server has none, or a certificate that is not trusted or of another host',
        'postgres',
      ),
    },
    {
      id: 'a settle that meets expired credentials is given up at once',
      find: `Correct \${correct}.\`
  return new OnceError('STORE_UNAVAILABLE', { message, executed: 'no'`,
      replace: `Correct \${correct}.\`
  return new OnceError('STORE_UNAVAILABLE', { message, executed: 'unknown'`,
      caughtBy: byTest(
        'src/stores/dynamodb/faults.test.ts',
        'credentials that are renewed while an outcome waits to be stored let it through: one effect',
        'dynamodb',
      ),
    },
  ]),
  ...bugsIn('src/stores/dynamodb/claims.ts', 'stores', [
    {
      id: 'dynamodb: read-then-write claim',
      find: `'attribute_not_exists(#key)'`,
      replace: `'attribute_exists(#key) OR attribute_not_exists(#key)'`,
      caughtBy: byTest(
        inDynamodb,
        'of 1,000 concurrent claims of one key, one is granted and the others are busy',
        'dynamodb',
      ),
    },
    {
      id: 'dynamodb: a global table is taken like any other',
      find: '  if (objection) throw objection\n',
      replace: '  void objection\n',
      caughtBy: byTest(
        'src/stores/dynamodb/fitness.test.ts',
        'is refused before the first effect, leaves no trace, and is looked at again',
        'dynamodb',
      ),
    },
  ]),
  ...bugsIn('src/stores/dynamodb/sweep.ts', 'stores', [
    {
      id: 'dynamodb: a swept tombstone keeps its outcome and its input',
      find: 'removes: contents }',
      replace: 'removes: contents.slice(1, 2) }',
      caughtBy: byTest('src/stores/dynamodb/contract.test.ts', sweptOutcome, 'dynamodb'),
    },
  ]),
  ...bugsIn('src/stores/dynamodb/entries.ts', 'stores', [
    {
      id: 'dynamodb: lease by local clock',
      find: 'return { now, sure: now - clockSkewMs, clockSkewMs }',
      replace: 'return { now, sure: now, clockSkewMs }',
      caughtBy: byTest(
        'src/stores/dynamodb/fitness.test.ts',
        'the lease of a process that is behind is not cut short by one that is ahead',
        'dynamodb',
      ),
    },
  ]),
]

const inMongodb = 'src/stores/mongodb/contract.test.ts'
export const mongodbBugs: readonly SeededBug[] = [
  ...bugsIn('src/stores/mongodb/sweep.ts', 'stores', [
    {
      id: 'mongodb: a swept tombstone keeps its outcome',
      find: `$unset: { outcome: '', input: '' },`,
      replace: `$unset: { input: '' },`,
      caughtBy: byTest(inMongodb, sweptOutcome, 'mongodb'),
    },
  ]),
  ...bugsIn('src/stores/mongodb/entries.ts', 'stores', [
    {
      id: 'mongodb: commit without a fence',
      find: `return { ...held, $expr: { $and: [held['$expr'], { $eq: [fenceOfDocument, claim.fence] }] } }`,
      replace: `return Object.fromEntries(Object.entries(held).filter(([name]) => name !== 'token'))`,
      caughtBy: byTest(inMongodb, "after a takeover the old holder's settle is lost and changes nothing", 'mongodb'),
    },
    {
      id: 'mongodb: token without fence: a claim delivered once more revives the holder of a life that is over',
      find: `return { ...held, $expr: { $and: [held['$expr'], { $eq: [fenceOfDocument, claim.fence] }] } }`,
      replace: 'return held',
      caughtBy: byTest(
        inMongodb,
        'a claim that comes again after its entry is over does not revive the old holder',
        'mongodb',
      ),
    },
    {
      id: 'mongodb: a takeover of what has changed since it was read',
      find: 'return { _id: idOf(key), token, revision, $expr: { $eq: [fenceOfDocument, fence] } }',
      replace: `return { _id: idOf(key), ...(revision + fence < 0 && { token }) }`,
      caughtBy: byTest(inMongodb, 'of concurrent claims of an abandoned key, one takes it over', 'mongodb'),
    },
    {
      id: 'mongodb: another life of the same token is taken for what was read',
      find: 'return { _id: idOf(key), token, revision, $expr: { $eq: [fenceOfDocument, fence] } }',
      replace: `return { _id: idOf(key), token, ...(fence >= 0 && { revision }) }`,
      caughtBy: byTest(
        'src/stores/mongodb/faults.test.ts',
        'a takeover and a sweep that stall leave another life of the same token alone',
        'mongodb',
      ),
    },
  ]),
]

export const redisPostgresBugs: readonly SeededBug[] = [
  ...bugsIn('src/stores/redis-postgres/sealed.ts', 'stores', [
    {
      id: 'redis over postgres: whatever Redis says is believed',
      find: `  if (!timingSafeEqual(code, bytes.subarray(0, codeLength))) return undefined\n`,
      replace: `  if (!timingSafeEqual(code, code)) return undefined\n`,
      caughtBy: byTest('src/stores/redis-postgres/lies.test.ts', 'every single bit of an entry counts', 'redis'),
    },
    {
      id: 'redis over postgres: the cached answer is not bound to the request',
      find: `const parts = [key.scope, key.id, fingerprint]`,
      replace: `const parts = [key.scope, key.id, fingerprint.slice(43)]`,
      caughtBy: byTest(
        'src/stores/redis-postgres/faults.test.ts',
        'a hit with another fingerprint is decided by the database',
        'redis',
      ),
    },
  ]),
  ...bugsIn('src/stores/redis-postgres.ts', 'stores', [
    {
      id: 'redis over postgres: an answer is remembered before it is committed',
      find: `  const fenced = await write()\n  if (fenced === 'done' && asked`,
      replace: `  const writing = write()\n  const fenced = asked ? 'done' : await writing\n  await sleep(systemClock, 200)\n  if (asked`,
      caughtBy: byTest('src/stores/redis-postgres/lies.test.ts', 'a settle that was lost is not remembered', 'redis'),
    },
    {
      id: 'redis over postgres: what is forgotten by hand is still told by Redis',
      find: `      const before = await inspected.mend(key, action, reason)\n      await cache.bar(key)\n`,
      replace: `      const before = await inspected.mend(key, action, reason)\n`,
      caughtBy: byTest('src/stores/redis-postgres/lies.test.ts', 'a name is barred after the change, too', 'redis'),
    },
  ]),
  ...bugsIn('src/stores/redis-postgres/cache.ts', 'stores', [
    {
      id: 'redis over postgres: an answer is told however long ago it was sealed',
      find: 'leftMs > marginMs && leftMs <= ageMaxMs',
      replace: 'leftMs > marginMs',
      caughtBy: byTest(
        'src/stores/redis-postgres/lies.test.ts',
        'a database whose clock is set back has its answers remembered no longer than ageMaxMs',
        'redis',
      ),
    },
    {
      id: 'redis over postgres: an answer is told after it has expired',
      find: 'const leftMs = (cached?.untilMs ?? 0) - known.time.latestMs\n',
      replace: 'const leftMs = (cached ? ageMaxMs : 0) + 0 * known.time.latestMs\n',
      caughtBy: byTest(
        'src/stores/redis-postgres/lies.test.ts',
        'an answer comes from Redis until shortly before it expires, and not one millisecond after',
        'redis',
      ),
    },
  ]),
]
