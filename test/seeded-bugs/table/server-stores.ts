// Bugs in the stores on a server: what only its language, its clock or its transactions can get wrong.

import { bugsIn, byRedis, byTest } from '../bug.ts'
import type { SeededBug } from '../bug.ts'

const inPostgres = 'src/stores/postgres/contract.test.ts'
const inPeriods = 'src/stores/postgres/periods.test.ts'
const shortClaims = 'several claims of one moment are one short script, and so are several settles'
const heldByAnother = 'a key that an open transaction has claimed is busy for one claim and for many: none waits for it'
const inServer = 'src/stores/postgres/server.test.ts'
const twoLives = 'of two lives of a token that write at once, the old one is lost and the new one is served'
const advancedTogether =
  'advances of one batch write each its own records and end, of one that is lost nothing, beside claims'
const settledTogether =
  'settles of one batch write each its own outcome, of one that is lost nothing, and the others are done'
const inItsPeriod =
  'what is kept for longer than the ring reaches is swept row by row, and what is due is emptied at once'
const lateStep = 'a step of a holder whose claim came again after its operation was forgotten does not begin'
const swept =
  'after a sweep nothing of the input, the steps and the result of an expired operation is left in the tables'
const sweptOutcome = 'after a sweep nothing of an expired outcome or input is left in the store'
const inSilence = 'src/stores/postgres/silence.test.ts'
const largeAlone = 'of large outcomes that are asked for at once each comes alone, byte for byte'
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
    {
      id: 'postgres: a release by hand does not lock the row that it judges',
      find: 'where e.scope = mended_scope and e.id = mended_id for update skip locked;',
      replace: 'where e.scope = mended_scope and e.id = mended_id;',
      caughtBy: byTest(
        inServer,
        'a settle that comes between the look of a release by hand and its lock is not undone',
        'postgres',
      ),
    },
  ]),
  ...bugsIn('src/stores/postgres/decisions.sql.ts', 'stores', [
    {
      id: 'postgres: what is advanced together is written without token and fence',
      find: `h.token = c.token and h.fence = c.fence and h.state = 'r'`,
      replace: `h.state = 'r'`,
      caughtBy: byTest(inServer, advancedTogether, 'postgres'),
    },
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
      id: 'postgres: a write that comes again does not lock its row, and its record is left to the next life',
      find: `and e.state = entry.state for update skip locked;`,
      replace: `and e.state = entry.state;`,
      caughtBy: byTest(
        inServer,
        'a record that comes again is not left to the life after the one that was forgotten meanwhile',
        'postgres',
      ),
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
      caughtBy: byTest(inServer, heldByAnother, 'postgres'),
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
  ...bugsIn('src/stores/postgres/straight.sql.ts', 'stores', [
    {
      id: 'postgres: what is settled together is settled without token and fence',
      find: `h.token = c.token and h.fence = c.fence and h.state = 'r'`,
      replace: `h.state = 'r'`,
      caughtBy: byTest(inServer, settledTogether, 'postgres'),
    },
    {
      id: 'postgres: token without fence in what is settled together',
      find: `h.token = c.token and h.fence = c.fence and h.state = 'r'`,
      replace: `h.token = c.token and h.state = 'r'`,
      caughtBy: byTest(inServer, settledTogether, 'postgres'),
    },
    {
      id: 'postgres: of settles in one batch all are told done, whoever was written',
      find: `if written <> cardinality(settled_ids) then`,
      replace: `if written > cardinality(settled_ids) then`,
      caughtBy: byTest(inServer, settledTogether, 'postgres'),
    },
    {
      id: 'postgres: a settle that was written is asked for again, and is told lost when it has expired since',
      find: `settled[n] := case when found then 'done' else`,
      replace: `settled[n] := case when false then 'done' else`,
      caughtBy: byTest(
        inServer,
        'a settle that was written is told done beside one that is lost, however short it is kept',
        'postgres',
      ),
    },
    {
      id: 'postgres: a lone settle goes by the token, whatever the fence',
      find: `h.token = a_token and h.fence = a_fence and h.state = 'r'`,
      replace: `h.token = a_token and h.state = 'r'`,
      caughtBy: byTest(
        inPostgres,
        'a claim that comes again after its entry is over does not revive the old holder',
        'postgres',
      ),
    },
    {
      id: 'postgres: a lone claim inserts without the lock of its key, and waits for a transaction that has it',
      find: `elsif \${isReadCommitted} and pg_try_advisory_xact_lock(\${lockNumber(names, 'a_scope', 'an_id')}) then`,
      replace: `elsif \${isReadCommitted} then`,
      caughtBy: byTest(inServer, heldByAnother, 'postgres'),
    },
    {
      id: 'postgres: a lone claim of a table in periods goes to the table beside them',
      find: `    where not exists (select from \${qualified(names, '_periods')});`,
      replace: `    where true;`,
      caughtBy: byTest(inPeriods, inItsPeriod, 'postgres'),
    },
    {
      id: 'postgres: a transaction on a table in periods is recorded in the table beside them',
      find: `      and pg_get_partkeydef('\${entries}'::regclass) is null then`,
      replace: `      then`,
      caughtBy: byTest(inPeriods, inItsPeriod, 'postgres'),
    },
    {
      id: 'postgres: an effect that ended its transaction is recorded in the next one',
      find: `  if \${ownKey} = \${lockNumber(names, 'a_scope', 'an_id')}::text\n`,
      replace: `  if true\n`,
      caughtBy: byTest(
        inServer,
        'an effect that ends its transaction itself is told that its outcome is unknown, fresh or taken over',
        'postgres',
      ),
    },
    {
      id: 'postgres: a transaction commits without its record when its key has got an entry',
      find: `    if found then\n      return 'done';`,
      replace: `    if found or not found then\n      return 'done';`,
      caughtBy: byTest(
        inServer,
        'a key that got an entry behind the lock is not recorded twice, and what the effect wrote is rolled back',
        'postgres',
      ),
    },
  ]),
  ...bugsIn('src/stores/postgres/straight.ts', 'stores', [
    {
      id: 'postgres: of a key that is twice in a batch both claims insert',
      find: `if (ids.has(key.id)) terms[index] = -terms[index]!`,
      replace: `if (ids.has(key.id)) terms[index] = +terms[index]!`,
      caughtBy: byTest(
        inServer,
        'a batch may have a key twice, in one scope or two, and one claim of each key is granted',
        'postgres',
      ),
    },
    {
      id: 'postgres: that a session lost its prepared statements is found out at COMMIT, after the effect',
      find: `  return { ...prepared(names, 'in transaction', () => inTransactionText(names)), values }`,
      replace: `  const { name, text } = prepared(names, 'in transaction', () => inTransactionText(names))
  return { name: outcome === undefined ? name : \`\${name}_2\`, text, values }`,
      caughtBy: byTest(
        inServer,
        'a session that lost a prepared statement says so before the effect, which runs once',
        'postgres',
      ),
    },
    {
      id: 'postgres: claims of one batch share the lease of the first',
      find: `(term.leaseMs === request.leaseMs &&`,
      replace: `(term.leaseMs > 0 &&`,
      caughtBy: byTest(
        inServer,
        'terms of one batch are kept apart: each entry has its own lease, retention, version and input',
        'postgres',
      ),
    },
  ]),
  ...bugsIn('src/stores/postgres/batches.ts', 'stores', [
    {
      id: 'postgres: a pooler that forgets prepared statements makes the store unavailable',
      find: `if (!isUnprepared(error)) throw error`,
      replace: `throw error`,
      caughtBy: byTest(
        inServer,
        'a session that lost its prepared statements is asked without names from there on',
        'postgres',
      ),
    },
    {
      id: 'postgres: all that wait are one batch, and the server and the process wait for each other in turn',
      find: 'lane({ dispatch, batchMax, batchMin, dispatchesMax })',
      replace: 'lane({ dispatch, batchMax, dispatchesMax })',
      caughtBy: byTest(
        inServer,
        'claims of one moment are one statement, or two where they are many, settles too, and replays write nothing (values)',
        'postgres',
      ),
    },
    {
      id: 'postgres: claims that have committed fail with the operations of their batch, and hold their keys',
      find: 'return calls.map(() => ({ error }))',
      replace: 'throw error',
      caughtBy: byTest(inServer, 'of a batch whose operations the server refuses, the others are answered', 'postgres'),
    },
    {
      id: 'postgres: large outcomes are asked for alone, and come together nevertheless',
      find: `lane({ dispatch, batchMax: 1, dispatchesMax })`,
      replace: `lane({ dispatch, batchMax, dispatchesMax })`,
      caughtBy: byTest(inServer, largeAlone, 'postgres'),
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
      id: 'postgres: of advances in one batch all are told done, whoever was written',
      find: 'if cardinality(written) is distinct from cardinality(verbs) then',
      replace: 'if cardinality(written) > cardinality(verbs) then',
      caughtBy: byTest(inServer, advancedTogether, 'postgres'),
    },
    {
      id: 'postgres: in a batch the records of a claim that is lost are written',
      find: "`(advanced is null or advanced[${number}] = 'done')`",
      replace: '`(advanced is null or ${number} > 0)`',
      caughtBy: byTest(inServer, advancedTogether, 'postgres'),
    },
    {
      id: 'postgres: an operation that is parked in a batch is due at once',
      find: 'now_ms + nullif(c.after_ms, -1)',
      replace: 'now_ms + c.after_ms',
      caughtBy: byTest(inServer, advancedTogether, 'postgres'),
    },
    {
      id: 'postgres: of a record that comes twice in one batch the earlier revision stays',
      find: `r.name, r.revision desc\n      on conflict`,
      replace: `r.name, r.revision\n      on conflict`,
      caughtBy: byTest(
        inServer,
        'of a record that comes twice in one batch the later revision stays, whichever comes first',
        'postgres',
      ),
    },
    {
      id: 'postgres: in a batch a record that comes late overwrites a later one',
      find: `\n      where s.revision < excluded.revision;`,
      replace: ';',
      caughtBy: byTest(
        inServer,
        'of a record that comes twice in one batch the later revision stays, whichever comes first',
        'postgres',
      ),
    },
    {
      id: 'postgres: a wish for a cancel is told to the whole batch',
      find: `foreach turn in array wishes loop`,
      replace: `for turn in 1 .. cardinality(verbs) loop`,
      caughtBy: byTest(
        inServer,
        'a wish for a cancel is told to those of a batch that it is for, and to no other',
        'postgres',
      ),
    },
    {
      id: 'postgres: a life that begins in a batch has the records of the last one',
      find: 'if listed <> granted then',
      replace: 'if listed > granted then',
      caughtBy: byTest(
        inServer,
        'a life that begins after the entry of the last one is gone has none of its records, in a batch too',
        'postgres',
      ),
    },
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
  ...bugsIn('src/stores/postgres/inspection.ts', 'stores', [
    {
      id: 'postgres: a change by hand without a reply is told as one that was not done',
      find: "await alone(statement, what, 'unknown')",
      replace: 'await alone(statement, what)',
      caughtBy: byTest(
        inPostgres,
        'postgres: of a write whose reply was lost it is not said that it was not done',
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
  ...bugsIn('src/clients/postgres.ts', 'stores', [
    {
      id: 'postgres: a batch without an answer keeps its place of the lane',
      find: `return resultsOf(await answered(pool.query(queryOf(asked.limited) as string), limit))`,
      replace: `return resultsOf(await pool.query(queryOf(asked.limited) as string))`,
      caughtBy: byTest(inSilence, 'every batch ends after a while, and the next one is sent', 'postgres'),
    },
    {
      id: 'postgres: a connection that fell silent keeps its place in the pool',
      find: `return binds ? { text, query_timeout } : text`,
      replace: `return text`,
      caughtBy: byTest(inSilence, 'the first question of all ends, too', 'postgres'),
    },
    {
      id: 'postgres: a COMMIT without an answer keeps its connection',
      find: `return answered(inOneSync(client as unknown as SyncedClient, statements), limit, release)`,
      replace: `return inOneSync(client as unknown as SyncedClient, statements)`,
      caughtBy: byTest(inSilence, 'a COMMIT without an answer is unknown, and the pool is whole', 'postgres'),
    },
  ]),
  ...bugsIn('src/stores/postgres/names.ts', 'stores', [
    {
      id: 'postgres: the outcomes of a batch come in one message, however large they are',
      find: `const outcomeBytesMax = 64 * 1024`,
      replace: `const outcomeBytesMax = 2 ** 30`,
      caughtBy: byTest(inServer, largeAlone, 'postgres'),
    },
    {
      id: 'postgres: two versions of a function share a name when the table has a long one',
      find: `if (table.length + suffix.length <= nameBytesMax) return`,
      replace: `if (table.length <= nameBytesMax) return`,
      caughtBy: byTest(inServer, 'two versions of a table with the longest name share no function', 'postgres'),
    },
    {
      id: 'postgres: a small batch is planned anew with every call',
      find: ' set plan_cache_mode = force_generic_plan`',
      replace: '`',
      caughtBy: byTest(inServer, 'a small batch is planned once, and not anew with every call', 'postgres'),
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
      id: 'postgres: a batch whose key others committed in between is an error',
      find: `isPassing(error) || sqlStateOf(error) === '23505'`,
      replace: `isPassing(error)`,
      caughtBy: byTest(
        inServer,
        'a key that others commit between the look of a batch and its lock is not granted again',
        'postgres',
      ),
    },
    {
      id: 'postgres: a server that shuts down at COMMIT is taken at its word that nothing was committed',
      find: `/^(40|23|25|26|22|42|54|55|P0|OO)/`,
      replace: `/^(40|23|25|26|22|42|54|55|57|P0|OO)/`,
      caughtBy: byTest(inServer, 'a server that ends the session at COMMIT leaves the outcome unknown', 'postgres'),
    },
    {
      id: 'postgres: an effect that dropped the prepared statements is told that its outcome is unknown',
      find: `/^(40|23|25|26|22|42|54|55|P0|OO)/`,
      replace: `/^(40|23|25|22|42|54|55|P0|OO)/`,
      caughtBy: byTest(
        inServer,
        'an effect that drops the prepared statements is rolled back, and the next try of it commits',
        'postgres',
      ),
    },
  ]),
  ...bugsIn('src/stores/postgres/transactions.ts', 'stores', [
    {
      id: 'postgres: a claim that was lost while its effect was undone is committed nevertheless',
      find: `if (answer === 'lost') {`,
      replace: `if (answer === '') {`,
      caughtBy: byTest(
        inServer,
        'an effect that is undone while another caller gets its key is lost, and its connection goes on',
        'postgres',
      ),
    },
    {
      id: 'postgres: an effect that drops the prepared statements never commits',
      find: `if (isUnprepared(error)) protocol.keepsPrepared = false`,
      replace: `if (isUnprepared(error)) protocol.keepsPrepared = true`,
      caughtBy: byTest(
        inServer,
        'an effect that drops the prepared statements is rolled back, and the next try of it commits',
        'postgres',
      ),
    },
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
      id: 'postgres: a transaction whose session lost its prepared statements is not rolled back before it begins anew',
      find: `    protocol.keepsPrepared = false\n    await connection.run(['ROLLBACK'])`,
      replace: `    protocol.keepsPrepared = false`,
      caughtBy: byTest(
        inServer,
        'a session that lost a prepared statement says so before the effect, which runs once',
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
  ...bugsIn('src/clients/redis.ts', 'stores', [
    {
      id: 'redis: what was not written on a connection is sent on the next',
      find: "client.on!('reconnecting', () => unwritten!.drop())",
      replace: "client.on!('reconnecting', () => {})",
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        'what a client has not written when its connection ends is never sent: no claim, and no count that hides a loss',
        'redis',
      ),
    },
  ]),
  ...bugsIn('src/stores/redis/native/send.ts', 'stores', [
    {
      id: 'redis: what was heard of a batch that failed is thrown away',
      find: '      late(replies)\n      reject(failure)',
      replace: '      reject(failure)',
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        'a claim that was granted, and whose check had no reply, is taken back',
        'redis',
      ),
    },
    {
      id: 'redis: a user who may not use a command in a script is asked for it again with every batch',
      find: '|ACL failure|the user executing))/i',
      replace: '))/i',
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        'a user who may not INCR is served by scripts, 4 calls at once',
        'redis',
      ),
    },
  ]),
  ...bugsIn('src/stores/redis/native/check.ts', 'stores', [
    {
      id: 'redis: a quarantine that has ended by itself holds native claims for good',
      find: "(hold === '-' || Number(hold) <= bounds.earliestMs)",
      replace: "hold === '-'",
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        'after a quarantine that has ended by itself a claim is one command with its check again',
        'redis',
      ),
    },
  ]),
  ...bugsIn('src/stores/redis/native/take.ts', 'stores', [
    {
      id: 'redis: several native claims take whatever is there',
      find: `ARGV[2 * i - 7], 'NX', 'GET', 'PXAT'`,
      replace: `ARGV[2 * i - 7], 'GET', 'PXAT'`,
      caughtBy: byTest('src/stores/redis/native.test.ts', shortClaims, 'redis'),
    },
    {
      id: 'redis: several native claims do not count in the mark',
      find: `told[1] = redis.call('INCR', KEYS[1])`,
      replace: `told[1] = tonumber(redis.call('GET', KEYS[1])) + 1`,
      caughtBy: byTest('src/stores/redis/native.test.ts', shortClaims, 'redis'),
    },
    {
      id: 'redis: several native claims look at the floor in the place of the register',
      find: '[mark, [register, floor], ...rest]',
      replace: '[mark, [floor, register], ...rest]',
      caughtBy: byTest(
        'src/stores/redis/native/take.test.ts',
        'each claim is told by itself, and the check is read as if it had been asked',
      ),
    },
    {
      id: 'redis: a script that the server refuses has taken its names',
      find: '(Array.isArray(reply) ? (reply as readonly unknown[])[at + 3] : reply)',
      replace: '(Array.isArray(reply) ? (reply as readonly unknown[])[at + 3] : null)',
      caughtBy: byTest(
        'src/stores/redis/native/take.test.ts',
        'when the server refuses the script, nothing is taken, and the check has failed',
      ),
    },
  ]),
  ...bugsIn('src/stores/redis/native/swap.ts', 'stores', [
    {
      id: 'redis: a native settle by script writes whatever is there',
      find: `local isThere = redis.call('GET', KEYS[i]) == ARGV[at]`,
      replace: 'local isThere = true',
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        "of several settles of one moment, one whose key is another's is lost, and the others are done",
        'redis',
      ),
    },
    {
      id: 'redis: native settles with IFEQ write whatever is there',
      find: `ARGV[at + 1], 'IFEQ', ARGV[at], 'PXAT'`,
      replace: `ARGV[at + 1], 'PXAT'`,
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        "of several settles of one moment, one whose key is another's is lost, and the others are done",
        'valkey',
      ),
    },
    {
      id: 'redis: a native settle by script does not count in the mark',
      find: `told[1] = redis.call('INCR', KEYS[1])`,
      replace: `told[1] = tonumber(redis.call('GET', KEYS[1])) + 1`,
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        'a claim is one short script with its check, and so is a settle',
        'redis',
      ),
    },
    {
      id: 'redis: each settle of a native batch is told how the one before it went',
      find: 'toldIn(raw)[at + 1] === 1',
      replace: 'toldIn(raw)[Math.max(at, 1)] === 1',
      caughtBy: byTest(
        'src/stores/redis/native/swap.test.ts',
        'each swap is told by itself, and the count is the first of the check',
      ),
    },
  ]),
  ...bugsIn('src/stores/redis/native.ts', 'stores', [
    {
      id: 'redis: a server that has lost its scripts is asked by their hash for good',
      find: '  if (isUnknown) loaded.delete(script)\n  else loaded.add(script)',
      replace: '  loaded.add(script)',
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        'a server that has lost its scripts is told them again, 1 calls at once',
        'redis',
      ),
    },
    {
      id: 'redis: a script that the server does not have holds native claims back as a quarantine does',
      find: 'if (along && !wasRun(state, takeScript, raw[0])) return tell(stamped.map(() => undefined))\n',
      replace: 'if (along) wasRun(state, takeScript, raw[0])\n',
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        'a server that has lost its scripts is told them again, 1 calls at once',
        'redis',
      ),
    },
    {
      id: "redis: a process that only replays never hears the server's time",
      find: 'const asksTime = !along && ground.time.isOld(turn.sent)',
      replace: 'const asksTime = false as boolean',
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        "a process that only replays goes on hearing the server's time",
        'redis',
      ),
    },
  ]),
  ...bugsIn('src/stores/redis/decisions.lua.ts', 'stores', [
    {
      id: 'redis: a server without memory takes no release',
      find: "  call('DEL', name)\n  raiseFloor(entry)",
      replace: "  raiseFloor(entry)\n  call('DEL', name)",
      caughtBy: byTest(
        'src/stores/redis/batches.test.ts',
        'a server without memory still takes a release, so that the key is free',
        'redis',
      ),
    },
    {
      id: 'redis: what is damaged cannot be forgotten',
      find: "if action == 'forget ' and latest[name] == nil and entry and not isReadable(entry) then",
      replace: 'if false then',
      caughtBy: byTest(
        'src/stores/redis/batches.test.ts',
        'what is damaged is forgotten when a person says so, whatever it is, and the audit tells',
        'redis',
      ),
    },
  ]),
  ...bugsIn('src/stores/redis/places.ts', 'stores', [
    {
      id: 'redis: a fence that is no exact number is granted again with the same one',
      find: "return width < number ? '[0-9]' : '[0-8]'",
      replace: "return '[0-9]'",
      caughtBy: byTest(
        'src/stores/redis/batches.test.ts',
        'an entry whose fence is no exact number is unreadable: the one after it could be the same',
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
      id: 'redis: a write that was not sent is told as one that may have been done',
      find: 'reply instanceof NotSent || asks',
      replace: 'asks',
      caughtBy: byTest(
        'src/stores/redis/batches.test.ts',
        'node-redis: of a write that was not sent it is said that it was not done',
        'redis',
      ),
    },
    {
      id: 'redis: a settle without a reply is told as one that was not done',
      find: `new Set(['claim', 'show'])`,
      replace: `new Set(['claim', 'show', 'settle'])`,
      caughtBy: byTest(
        'src/stores/redis/contract.test.ts',
        'node-redis: of a write whose reply was lost it is not said that it was not done',
        'redis',
      ),
    },
    {
      id: 'redis: a heartbeat waits behind calls without a reply',
      find: 'extend: phase(byScript, heartbeatDispatchesMax),',
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
  ...bugsIn('src/stores/redis/native.ts', 'stores', [
    {
      id: 'redis: a native settle that is under way while its entry expires',
      find: 'if (nowMs + underWayMsMax >= written.expiresAtMs) return undefined',
      replace: 'if (nowMs >= written.expiresAtMs) return undefined',
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        'a settle whose entry may expire while it is under way is left to the script, which looks at the time',
        'valkey',
      ),
    },
    {
      id: 'redis: a native grant is told whatever its check has found',
      find: 'granted.filter((each) => !check.isClean || isBelow(each, check.floor))',
      replace: 'granted.filter((each) => check.isClean && isBelow(each, check.floor))',
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        'a grant whose check finds a quarantine is taken back, and nothing is left of it',
        'valkey',
      ),
    },
    {
      id: 'redis: a native claim that was stamped before a life that is gone keeps its fence',
      find: 'granted.filter((each) => !check.isClean || isBelow(each, check.floor))',
      replace: 'granted.filter(() => !check.isClean)',
      caughtBy: byRedis('fence-grows'),
    },
    {
      id: 'redis: a grant whose own check had no reply is told',
      find: '  const failed = (error: Error): never => {\n    throw error\n  }',
      replace: '  const failed = () => undefined as never',
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        'a claim that was granted after a replay, and whose check of its own had no reply, is not told',
      ),
    },
    {
      id: 'redis: a grant that its check does not bear out stays',
      find: 'return takeBack(ground, unfit).then(',
      replace: 'return takeBack(ground, []).then(',
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        'a grant whose check finds a quarantine is taken back, and nothing is left of it',
        'valkey',
      ),
    },
    {
      id: 'redis: a grant that could not be taken back is asked for again, and told',
      find: 'return reply instanceof Error ? [[each, reply]] : []',
      replace: 'return reply instanceof Error ? [] : []',
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        'a grant whose check finds a quarantine, and that cannot be taken back, is not told',
        'valkey',
      ),
    },
    {
      id: 'redis: what a check has counted is known only if something was granted',
      find: 'if (along || granted.length === 0) return told(read(raw))',
      replace: 'if (along || granted.length === 0) return told(granted.length > 0 ? read(raw) : undefined)',
      caughtBy: byTest(
        'test/simulation/world/redis.test.ts',
        'is found out by a process whose last claims, natively, were all of keys that others hold',
      ),
    },
    {
      id: 'redis: a native claim decides about a lease that has ended',
      find: 'if (digits(nowMs) >= reply.toString(',
      replace: 'if (digits(0) >= reply.toString(',
      caughtBy: byTest(
        'test/simulation/world/redis.test.ts',
        'a key whose lease is over is taken over: next attempt, new token, greater fence',
      ),
    },
    {
      id: 'redis: native commands on a connection that no script has looked at',
      find: 'if (connection === undefined || connection !== trusted.is) return undefined',
      replace: 'if (connection === undefined) return undefined',
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        'what the server has lost is found, although the first count on a new connection had no reply',
        'valkey',
      ),
    },
  ]),
  ...bugsIn('src/stores/postgres/straight.ts', 'stores', [
    {
      id: 'postgres: claims of one batch that differ in their tombstone alone get the same',
      find: ' || term.retention.tombstoneMs !== tombstoneMs) continue',
      replace: ') continue',
      caughtBy: byTest(
        'src/stores/postgres/server.test.ts',
        'claims of one batch keep each its own times, also those that differ in one of them alone',
        'postgres',
      ),
    },
  ]),
  ...bugsIn('src/stores/postgres/fitness.ts', 'stores', [
    {
      id: 'postgres: steps that a crash empties are not looked at',
      find: 'or c.oid in (select to_regclass(other)',
      replace: 'or false and c.oid in (select to_regclass(other)',
      caughtBy: byTest(
        'src/stores/postgres/judgements.test.ts',
        'tables that a crash empties are named one by one, of periods and of steps, too',
        'postgres',
      ),
    },
  ]),
  ...bugsIn('src/stores/redis/entries.ts', 'stores', [
    {
      id: 'redis: a settle names the entry of before a heartbeat, in vain',
      find: 'if (held instanceof HeldClaim) HeldClaim.extend(held)',
      replace: '',
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        'after a heartbeat the script settles, and nothing is asked natively in vain',
        'valkey',
      ),
    },
  ]),
  ...bugsIn('src/stores/redis/native/check.ts', 'stores', [
    {
      id: 'redis: what a check has counted is not known if the server refused another of its commands',
      find: 'if (raw[0] instanceof Error || !watch.count(turn.known, Number(raw[0]))) return unclean',
      replace:
        'if (raw.some((each) => each instanceof Error) || !watch.count(turn.known, Number(raw[0]))) return unclean',
      caughtBy: byTest(
        'src/stores/redis/native/check.test.ts',
        'a mark is known also when the server refused another command of the check',
      ),
    },
    {
      id: 'redis: native claims do not look at the register',
      find: 'if (register !== undefined && !isOpen(register, turn)) return unclean',
      replace: '',
      caughtBy: byTest(
        'src/stores/redis/native.test.ts',
        'a grant whose check finds a quarantine is taken back, and nothing is left of it',
        'valkey',
      ),
    },
  ]),
  ...bugsIn('src/stores/redis/data-loss/memory.ts', 'stores', [
    {
      id: 'redis: a native write counts in a mark that went back, and hides it',
      find: 'adopt(lineage, isMissing ? missing : Math.max(acknowledged, mark))',
      replace: 'adopt(lineage, Math.max(acknowledged, mark))',
      caughtBy: byTest(
        'src/stores/redis/data-loss/memory.test.ts',
        'a mark that went back under native writes stays too low for every script, however often they count in it',
      ),
    },
  ]),
  ...bugsIn('src/stores/redis/time.ts', 'stores', [
    {
      id: 'redis: a process that was suspended stamps its claims with the time of before',
      find: 'latestMs: serverMs + Math.max(now.elapsedMs - sent.elapsedMs, now.wallMs - sent.wallMs),',
      replace: 'latestMs: serverMs + now.elapsedMs - sent.elapsedMs,',
      caughtBy: byTest(
        'src/stores/redis/time.test.ts',
        'a machine that was suspended does not know the time, and says so',
      ),
    },
  ]),
  ...bugsIn('src/clients/redis.ts', 'stores', [
    {
      id: 'redis: a client without a connection keeps the commands of an outage',
      find: 'client.isReady === true ? asBytesAtOnce : asBytes',
      replace: 'asBytesAtOnce',
      caughtBy: byTest(
        'src/stores/redis/batches.test.ts',
        "a call to a client without a connection ends with the client's own time-out",
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
      id: 'mysql: a write that comes again does not lock its row, and its record is left to the next life',
      find: `if is_held and (e_state = 'r' or is_again) and not is_locked then`,
      replace: `if is_held and e_state = 'r' and not is_locked then`,
      caughtBy: byTest(
        inMysqlOperations,
        'a record that comes again is not left to the life after the one that was forgotten meanwhile',
        'mariadb',
      ),
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
      id: 'mysql: what a batch has settled is looked up after its commit',
      find: '    own: `${lookups(table, calls, settleColumns.slice(0, 4)',
      replace: "    own: 'do 0',\n    lookups: `${lookups(table, calls, settleColumns.slice(0, 4)",
      caughtBy: byTest(
        inMysqlServer,
        'a batch of settles answers by what it has written, whatever others do to its keys as soon as it is committed',
        'mariadb',
      ),
    },
    {
      id: 'mysql: whom a batch has granted a key is looked up after its commit',
      find: 'and e.token = a.token and e.fence = @onceonly_fence`,',
      replace: 'and false`,',
      caughtBy: byTest(
        inMysqlServer,
        'a batch of claims tells whom it has granted a key, whatever others do to it as soon as it is committed',
        'mariadb',
      ),
    },
    {
      id: 'mysql: a claim that was left out of a batch has the grant of the first, by its token',
      find: "where a.number in (${numbers.join(',')}) and e.token",
      replace: 'where e.token',
      caughtBy: byTest(
        inMysqlServer,
        'of two claims of one token in a batch, for different requests, one is a mismatch',
        'mariadb',
      ),
    },
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
  ...bugsIn('src/stores/failures.ts', 'stores', [
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
