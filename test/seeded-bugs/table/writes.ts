// Bugs in the writes that may be repeated.

import { bugsIn, byTest } from '../bug.ts'
import type { SeededBug } from '../bug.ts'

const inSqlite = 'src/writes/sqlite.test.ts'
const inMachine = 'src/writes/state-machine.test.ts'
const newer = 'upsertIfNewer: newer is applied, the same is there, older is stale, and nothing goes back'
const conditional = 'upsertIf: a new row, the expected one, the same again, and neither'
const swapped = 'compareAndSet: applied, already, conflict, missing'
const counted = 'addOnce counts an event once, and several columns at once'
const appended = 'appendOnce: an event once, at the version that was expected'

const everywhere: readonly SeededBug[] = [
  ...bugsIn('src/writes/returning.ts', 'writes', [
    {
      id: 'upsertIfNewer: the same version is written again',
      find: 'kept.${name(column)} < excluded.${name(column)}',
      replace: 'kept.${name(column)} <= excluded.${name(column)}',
      caughtBy: byTest(inSqlite, newer),
    },
    {
      id: 'upsertIfNewer: an older version overwrites a newer one',
      find: `      where kept.\${name(column)} is null or kept.\${name(column)} < excluded.\${name(column)}\n`,
      replace: '',
      caughtBy: byTest(inSqlite, newer),
    },
    {
      id: 'upsertIf: a row is written whatever it holds',
      find: "where ${holds(expect, 'kept')} and (${differsFromExcluded(set)})",
      replace: 'where (${differsFromExcluded(set)})',
      caughtBy: byTest(inSqlite, conditional),
    },
    {
      id: 'upsertIf: what neither holds is told as already there',
      find: `then 'again' else 'conflict' end`,
      replace: `then 'again' else 'already' end`,
      caughtBy: byTest(inSqlite, conditional),
    },
    {
      id: 'upsertIfNewer: what is stale is told as already there',
      find: `then 'already' else 'stale' end`,
      replace: `then 'already' else 'already' end`,
      caughtBy: byTest(inSqlite, newer),
    },
    {
      id: 'insertOnce: the last one wins',
      find: `on conflict (\${names(key)}) do nothing returning 'applied' as answer\`\n  return answerOf(result) ?? 'already'`,
      replace: `on conflict (\${names(key)}) do update set \${fromExcluded(row)} returning 'applied' as answer\`\n  return answerOf(result) ?? 'already'`,
      caughtBy: byTest(inSqlite, 'insertOnce: the first is applied, the others are already there and change nothing'),
    },
    {
      id: 'compareAndSet: what is expected is not looked at',
      find: 'where ${where(key)} and ${holds(expect)} and not (${holds(set)})',
      replace: 'where ${where(key)} and not (${holds(set)})',
      caughtBy: byTest(inSqlite, swapped),
    },
    {
      id: 'appendOnce: a gap in a stream is accepted',
      find: 'after === 0 ? sql`1 = 1` : sql`exists (${before})`',
      replace: 'after < 0 ? sql`exists (${before})` : sql`1 = 1`',
      caughtBy: byTest(inSqlite, appended),
    },
  ]),
  ...bugsIn('src/writes/sqlite.ts', 'writes', [
    {
      id: 'addOnce: an event is counted before it is marked',
      find: '  const marked = yield sql`',
      replace:
        '  yield sql`update ${name(table)} set ${additions(add)} where ${where(key)} returning 1`\n  const marked = yield sql`',
      caughtBy: byTest(inSqlite, counted),
    },
    {
      id: 'addOnce: mark and count are not one',
      find: 'addOnce: (table, request) => atomically(addOnce(table, request))',
      replace: 'addOnce',
      caughtBy: byTest(inSqlite, 'a write that fails in the middle leaves neither mark nor count'),
    },
  ]),
  ...bugsIn('src/writes/state-machine.ts', 'writes', [
    {
      id: 'transition: the state that it is to leave is not looked at',
      find: 'expect: { [stateColumn]: from }',
      replace: 'expect: { [idColumn]: id }',
      caughtBy: byTest(inMachine, 'applied, already, conflict, missing; nothing else of the row changes'),
    },
    {
      id: 'transition: an edge that nobody declared is followed',
      find: '      refuseUndeclared(following, from, to)\n',
      replace: '',
      caughtBy: byTest(inMachine, 'an undeclared edge is refused before anything is sent'),
    },
  ]),
  ...bugsIn('src/writes/requests.ts', 'writes', [
    {
      id: 'a name of a column is written into a statement as it comes',
      find: 'const namePattern = /^[A-Za-z_][A-Za-z0-9_]{0,62}$/',
      replace: 'const namePattern = /^[^]{1,63}$/',
      caughtBy: byTest(inSqlite, 'names that are not names are refused before anything is sent'),
    },
  ]),
]

const onServers: readonly SeededBug[] = [
  ...bugsIn('src/writes/postgres.ts', 'writes', [
    {
      id: 'postgres: an event that was marked before is counted again',
      find: 'set ${additions} from marked where ${kept}',
      replace: 'set ${additions} from counter where ${kept}',
      caughtBy: byTest('test/writes/postgres.test.ts', counted, 'postgres'),
    },
  ]),
  ...bugsIn('src/writes/mysql/statements.ts', 'writes', [
    {
      id: 'mysql: the same version is written again',
      find: '${exact(version)} > ${name(column)})`',
      replace: '${exact(version)} >= ${name(column)})`',
      caughtBy: byTest('test/writes/mysql.test.ts', newer, 'mariadb'),
    },
    {
      id: 'mysql: upsertIf takes a row that is there for a new one',
      find: "if (locked.insertId !== marks.same) return 'applied'",
      replace: "if (locked.insertId !== marks.otherRow) return 'applied'",
      caughtBy: byTest('test/writes/mysql.test.ts', conditional, 'mariadb'),
    },
    {
      id: 'mysql: an event is counted although it was marked before',
      find: `  if (duplicate) return 'already'\n`,
      replace: '',
      caughtBy: byTest('test/writes/mysql.test.ts', counted, 'mariadb'),
    },
    {
      id: 'mysql: mark and count are two commits',
      find: 'if (errnoOf(error) !== 1305) throw error',
      replace: 'if (errnoOf(error) === 1305) return yield* steps',
      caughtBy: byTest(
        'test/writes/mysql-sessions.test.ts',
        'outside of a transaction addOnce is refused, as mark and count would be two commits',
        'mariadb',
      ),
    },
  ]),
  ...bugsIn('src/writes/dynamodb/expressions.ts', 'writes', [
    {
      id: 'dynamodb: the same version is written again',
      find: '`${name} < ${valueOf(value)}`',
      replace: '`${name} <= ${valueOf(value)}`',
      caughtBy: byTest('test/writes/dynamodb.test.ts', newer, 'dynamodb'),
    },
  ]),
  ...bugsIn('src/writes/dynamodb.ts', 'writes', [
    {
      id: 'dynamodb: upsertIf writes an item whatever it holds',
      find: 'const meets = build.all([build.holds(expect), build.not(build.holds(set))])',
      replace: 'const meets = build.not(build.holds(set))',
      caughtBy: byTest('test/writes/dynamodb.test.ts', conditional, 'dynamodb'),
    },
  ]),
  ...bugsIn('src/writes/mongodb.ts', 'writes', [
    {
      id: 'mongodb: upsertIf looks twice, and a document that came between is a conflict',
      find: '{ $nor: [equal(expect), equal(set)] }',
      replace: '{ $nor: [equal(expect)] }',
      caughtBy: byTest(
        'test/writes/mongodb.test.ts',
        'upsertIf: of a hundred that want the same one is applied, whether the row is new or there',
        'mongodb',
      ),
    },
    {
      id: 'mongodb: the same version is written again',
      find: '{ [field]: { $lt: version } }',
      replace: '{ [field]: { $lte: version } }',
      caughtBy: byTest('test/writes/mongodb.test.ts', newer, 'mongodb'),
    },
    {
      id: 'mongodb: an event is counted although it was marked before',
      find: '{ ...equal(key), [field]: { $ne: event } }',
      replace: '{ ...equal(key) }',
      caughtBy: byTest('test/writes/mongodb.test.ts', counted, 'mongodb'),
    },
  ]),
]

export const writesBugs: readonly SeededBug[] = [...everywhere, ...onServers]
