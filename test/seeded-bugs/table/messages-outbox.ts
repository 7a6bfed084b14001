// Bugs in the outbox and in the relay.

import { bugsIn, byTest } from '../bug.ts'
import type { CaughtBy, SeededBug } from '../bug.ts'

const inOutbox = (test: string): CaughtBy => byTest('test/messages/outbox.test.ts', test, 'postgres')
const inRelay = (test: string): CaughtBy => byTest('test/messages/relay.test.ts', test, 'postgres')
const inSimulation: CaughtBy = byTest(
  'test/messages/relay-simulation.test.ts',
  'fixed seeds: every committed event arrives, in the order of commits per key',
)
const inVerdicts = (test: string): CaughtBy => byTest('src/messages/relay/verdicts.test.ts', test)

const late = 'a transaction that commits late is not lost behind one that commits before it'
const waits = 'of one key the second transaction waits for the first, and is delivered after it'
const backlog = 'of a large backlog the age is told exactly, and no more rows are counted than tell something'
const fewRead =
  'the status reads the rows that it counts, and no table for each lane, whatever the planner finds cheap (many rows that are sent)'
const epoch = 'an old epoch can neither move a cursor nor hold a row, whatever it says'
const blocks = 'a head that fails blocks its key and no other, and is delivered first when it succeeds'
const dies = 'a relay that dies at any call loses nothing, repeats only what was not marked, and keeps the order'

export const outboxBugs: readonly SeededBug[] = [
  ...bugsIn('src/messages/outbox/envelope.ts', 'messages', [
    {
      id: 'outbox: data that JSON changes (NaN, an invalid Date, a Map) leaves as null or {}',
      find: 'isJson ? storableJson(data)',
      replace: 'isJson ? JSON.stringify(data)',
      caughtBy: byTest('src/messages/outbox/envelope.test.ts', 'data that JSON would silently change is refused'),
    },
  ]),
  ...bugsIn('src/messages/outbox/adding.ts', 'messages', [
    {
      id: 'outbox: a position is taken without the lock of its lane (PostgreSQL)',
      find: 'order by l.lane for update',
      replace: 'order by l.lane',
      caughtBy: inOutbox(waits),
    },
    {
      id: 'outbox: a connection outside of a transaction is accepted (PostgreSQL)',
      find: 'await session.query(sql`lock table ${lanes} in row share mode`)',
      replace: 'await Promise.resolve()',
      caughtBy: inOutbox('a connection outside of a transaction is refused, and nothing is added'),
    },
    {
      id: 'outbox: a connection outside of a transaction is accepted (MySQL)',
      find: 'if (!isMysql) return\n',
      replace: 'if (isMysql || !isMysql) return\n',
      caughtBy: byTest(
        'test/messages/outbox.test.ts',
        'a connection outside of a transaction is refused, and nothing is added',
        'mariadb',
      ),
    },
    {
      id: 'outbox: the rows of one call are in the wrong order (MySQL, SQLite)',
      find: 'const back = left.get(row.lane)! - 1',
      replace: 'const back = counts.get(row.lane)! - left.get(row.lane)!',
      caughtBy: byTest(
        'test/messages/outbox.test.ts',
        'what a transaction adds is delivered when it commits, and never when it is rolled back',
      ),
    },
  ]),
  ...bugsIn('src/messages/outbox/schema.sql.ts', 'messages', [
    {
      id: 'outbox: a sequence that went back stays behind the cursors (PostgreSQL)',
      find: ') m where m.last > (select',
      replace: ') m where m.last < (select',
      caughtBy: byTest(
        'test/messages/outbox-clients.test.ts',
        'tables that were copied without their sequence are mended by migrate, and no row is lost behind the cursors',
        'postgres',
      ),
    },
  ]),
  ...bugsIn('src/messages/outbox/reading.ts', 'messages', [
    {
      id: 'outbox: one cursor by sequence for all lanes',
      find: 'lanes.map((lane) => [lane, cursors.get(lane) ?? 0])',
      replace: 'lanes.map((lane) => [lane, Math.max(0, ...cursors.values())])',
      caughtBy: inOutbox(late),
    },
    {
      id: 'outbox: a held row is due though the one before it is parked',
      find: 'having min(position) = min(case when ${isDue} then position end)',
      replace: 'having min(case when ${isDue} then position end) is not null',
      caughtBy: inRelay('a row behind a parked one does not leave before it, though it was due when it was next'),
    },
  ]),
  ...bugsIn('src/messages/outbox/marking.ts', 'messages', [
    {
      id: 'outbox: the epoch is not checked where rows are marked sent',
      find: 'and epoch = ${integer(epoch)}`\n',
      replace: '`\n',
      caughtBy: inRelay(epoch),
    },
    {
      id: 'outbox: rows are held though the epoch is old',
      find: "if (moved === 'lost') {",
      replace: "if (moved === 'lost' && mark.hold.length === 0) {",
      caughtBy: inRelay(epoch),
    },
  ]),
  ...bugsIn('src/messages/outbox/shards.ts', 'messages', [
    {
      id: 'outbox: the epoch does not grow when a shard is taken',
      find: 'set epoch = epoch + 1, owner',
      replace: 'set epoch = epoch, owner',
      caughtBy: inRelay(epoch),
    },
    {
      id: 'outbox: a shard is taken while the lease of another relay lives',
      find: '(lease_until_ms <= ${database.nowMs()} or owner = ${owner})',
      replace: '(lease_until_ms >= 0 or owner = ${owner})',
      caughtBy: inRelay(epoch),
    },
    {
      id: 'outbox: an old epoch gives back the shard of another relay',
      find: 'where shard = ${integer(shard)} and epoch = ${integer(epoch)}`,',
      replace: 'where shard = ${integer(shard)} and ${integer(epoch)} >= 0`,',
      caughtBy: inRelay(epoch),
    },
  ]),
  ...bugsIn('src/messages/outbox/retention.ts', 'messages', [
    {
      id: 'outbox: rows that are not sent are removed with their period',
      find: 'if (unsent === undefined) await transaction.query(sql`truncate',
      replace: 'await transaction.query(sql`truncate',
      caughtBy: inOutbox('what is sent and old is removed, and what is not sent stays'),
    },
    {
      id: 'outbox: a period is read once per lane before it is emptied, and every relay waits',
      find: 'await transaction.query(sql`set local enable_seqscan = off`)',
      replace: 'await Promise.resolve()',
      caughtBy: inOutbox('a period is emptied without reading its rows once per lane, while others wait for its lock'),
    },
  ]),
  ...bugsIn('src/messages/outbox/status.ts', 'messages', [
    {
      id: 'outbox: every row of a backlog is counted, every ten seconds',
      find: ') o limit ${integer(unsentCountedMax)}',
      replace: ') o',
      caughtBy: inOutbox(backlog),
    },
    {
      id: 'outbox: the age of a backlog is that of a row that is not its oldest',
      find: 'order by o.position limit 1\n  ) o\n) oldest',
      replace: 'order by o.position desc limit 1\n  ) o\n) oldest',
      caughtBy: inOutbox(backlog),
    },
    {
      id: 'outbox: rows that are sent are read once per lane to count the others, since any order will do',
      find: 'where ${isUnsent} order by o.position limit ${integer(unsentCountedMax)}',
      replace: 'where ${isUnsent} limit ${integer(unsentCountedMax)}',
      caughtBy: inOutbox(fewRead),
    },
    {
      id: 'outbox: rows that are sent are read and sorted once per lane to count the others, if the planner likes',
      find: 'await transaction.query(sql`set local enable_sort = off`)',
      replace: 'await Promise.resolve()',
      caughtBy: inOutbox(fewRead),
    },
  ]),
  ...bugsIn('src/messages/relay/rounds.ts', 'messages', [
    {
      id: 'relay: rows are marked before they are sent',
      find: 'const published = free.length === 0 ? [] : await send(context, state, free)',
      replace: `await source.mark(state, { ...noMark, cursors: new Map(rows.map(({ lane, position }) => [lane, position])) }, context.leaseMs)
    const published = free.length === 0 ? [] : await send(context, state, free)`,
      caughtBy: inRelay(dies),
    },
    {
      id: 'relay: the later rows of a blocked key are sent',
      find: 'const free = rows.filter((row) => !state.blocked.has(orderKeyOf(row)))',
      replace: 'const free = rows',
      caughtBy: inRelay(blocks),
    },
    {
      id: 'relay: a failed head is skipped',
      find: 'const hold = [...held, ...stuck.map(behind)]',
      replace: 'const hold = stuck.map(behind)',
      caughtBy: inRelay(blocks),
    },
    {
      id: 'relay: a batch that the broker did not take is marked',
      find: 'if (published instanceof Error) return { ...nothing, error: published }\n  const { sent, held } = judge(free',
      replace:
        'if (published instanceof Error) return (await source.mark(state, { ...noMark, cursors: new Map(rows.map(({ lane, position }) => [lane, position])) }, context.leaseMs), nothing)\n  const { sent, held } = judge(free',
      caughtBy: inRelay(
        'a broker that takes nothing holds nothing: rows stay where they are and leave in order when it is back',
      ),
    },
  ]),
  ...bugsIn('src/messages/relay/worker.ts', 'messages', [
    {
      id: 'relay: a relay that could not take its shard anew goes on with what it knew',
      find: '        failure = next\n',
      replace: "        failure = next\n        return 'ours'\n",
      caughtBy: inSimulation,
    },
  ]),
  ...bugsIn('src/messages/relay/verdicts.ts', 'messages', [
    {
      id: 'relay: a row behind a failed one counts as sent',
      find: 'if (failed.has(key)) held.push(behind(row))',
      replace: 'if (failed.has(key) && error !== undefined) held.push(behind(row))',
      caughtBy: inVerdicts(
        'after the first failure of a key nothing of it counts as sent, whatever the publisher says',
      ),
    },
    {
      id: 'relay: a broker that is down makes dead letters',
      find: 'return failed && !isTransportUp && new Set',
      replace: 'return !failed && !isTransportUp && new Set',
      caughtBy: inVerdicts('an outage is when everything of several keys failed and nothing else was confirmed'),
    },
  ]),
  ...bugsIn('src/messages/relay/keeper.ts', 'messages', [
    {
      id: 'relay: stop does not wait for what is being published',
      find: 'await Promise.all(ending.map(({ ended }) => ended))',
      replace: 'await Promise.resolve()',
      caughtBy: inRelay('stop marks what is being published, and publishes no more'),
    },
    {
      id: 'relay: stop goes on publishing while it waits for its turn',
      find: 'for (const { worker } of workers.values()) worker.stop()\n',
      replace: '',
      caughtBy: inRelay('a relay that is stopped while it attends to its leases publishes no more'),
    },
  ]),
  ...bugsIn('src/messages/relay/keeper.ts', 'messages', [
    {
      id: 'relay: the lease of a shard that nobody works on is extended',
      find: 'await source.attend(owner, leaseMs, ours)',
      replace: 'await source.attend(owner, leaseMs, [0, 1])',
      caughtBy: inSimulation,
    },
  ]),
  ...bugsIn('src/messages/relay/timed-source.ts', 'messages', [
    {
      id: 'relay: a read that is never answered keeps its shard',
      find: 'read: (...given) => bounded(calls, () => source.read(...given))',
      replace: 'read: (...given) => source.read(...given)',
      caughtBy: inSimulation,
    },
  ]),
  ...bugsIn('src/messages/relay/shares.ts', 'messages', [
    {
      id: 'relay: a relay keeps more than its share',
      find: 'give: kept.slice(fair)',
      replace: 'give: kept.slice(shardsMax)',
      caughtBy: byTest(
        'src/messages/relay/shares.test.ts',
        'beside others it takes its fair share, and gives back what it has beyond it',
      ),
    },
  ]),
]
