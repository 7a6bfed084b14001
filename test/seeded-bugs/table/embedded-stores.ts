// Bugs in the stores that need no server, which most mistakes can be shown on.

import { bugsIn, bySimulation, byTest } from '../bug.ts'
import type { SeededBug } from '../bug.ts'

const inMemory = 'src/stores/memory/contract.test.ts'
const inSqlite = 'src/stores/sqlite/contract.test.ts'
const swept =
  'after a sweep nothing of the input, the steps and the result of an expired operation is left in the tables'

export const memoryBugs: readonly SeededBug[] = [
  ...bugsIn('src/core/entry.ts', 'stores', [
    {
      id: 'memory: a swept tombstone keeps the input of its operation',
      find: `const { outcome: _outcome, input: _input, ...rest } = entry`,
      replace: `const { outcome: _outcome, ...rest } = entry`,
      caughtBy: byTest(inMemory, swept),
    },
    {
      id: 'memory: no mismatch check',
      find: `  if (entry.fingerprint !== request.fingerprint) return refused({ is: 'mismatch' })\n`,
      replace: '',
      caughtBy: bySimulation('own-answer'),
    },
    {
      id: 'memory: mismatch only against settled entries',
      find: `if (entry.fingerprint !== request.fingerprint) return refused({ is: 'mismatch' })`,
      replace: `if (state === 'settled' && entry.fingerprint !== request.fingerprint) return refused({ is: 'mismatch' })`,
      caughtBy: bySimulation('linearizable'),
    },
    {
      id: 'memory: a running key is taken over',
      find: `if (state === 'running') return refused({ is: 'busy', retryAfterMs: entry.leaseUntilMs - nowMs })`,
      replace: `if (state === 'running' && entry.attempt > 1) return refused({ is: 'busy', retryAfterMs: entry.leaseUntilMs - nowMs })`,
      caughtBy: bySimulation('one-holder'),
    },
    {
      id: 'memory: no takeover',
      find: `return nowMs < entry.leaseUntilMs ? 'running' : 'abandoned'`,
      replace: `return 'running'`,
      caughtBy: bySimulation('no-wedge'),
    },
    {
      id: 'memory: the token is not changed on takeover',
      find: `    token: request.token,\n    attempt:`,
      replace: `    token: before && how === 'taken-over' ? before.token : request.token,\n    attempt:`,
      caughtBy: bySimulation('linearizable'),
    },
    {
      id: 'memory: fence on state only, any token writes',
      find: `return isOf(entry, claim) && (state === 'running' || state === 'abandoned')`,
      replace: `return claim.fence >= 0 && (state === 'running' || state === 'abandoned')`,
      caughtBy: bySimulation('holder-writes'),
    },
    {
      id: 'memory: token without fence: a claim delivered once more revives the holder of a life that is over',
      find: `return entry?.token === claim.token && entry.fence === claim.fence`,
      replace: `return entry?.token === claim.token`,
      caughtBy: byTest(
        inMemory,
        'a claim that comes again after its entry was given back does not revive the old holder',
      ),
    },
    {
      id: 'memory: a holder whose lease is over cannot settle although nobody has followed',
      find: `return isOf(entry, claim) && (state === 'running' || state === 'abandoned')`,
      replace: `return isOf(entry, claim) && state === 'running'`,
      caughtBy: byTest(inMemory, 'a holder whose lease is over can still settle while nobody has followed'),
    },
    {
      id: 'memory: a settled outcome is overwritten',
      find: `  if (isOf(entry, claim) && stateOf(entry, nowMs) === 'settled') return 'done'\n  if (!isHeldBy(entry, claim, nowMs)) return 'lost'\n  const { keepMs`,
      replace: `  if (!entry || (stateOf(entry, nowMs) !== 'settled' && !isHeldBy(entry, claim, nowMs))) return 'lost'\n  const { keepMs`,
      caughtBy: bySimulation('settled-is-final'),
    },
    {
      id: 'memory: a settle once more is lost',
      find: `  if (isOf(entry, claim) && stateOf(entry, nowMs) === 'settled') return 'done'\n`,
      replace: '',
      caughtBy: bySimulation('linearizable'),
    },
    {
      id: 'memory: a claim once more is not recognised',
      find: `return state === 'open' ? refused({ is: 'busy', retryAfterMs: 0 }) : { is: 'repeated', entry }`,
      replace: `return refused({ is: 'busy', retryAfterMs: 0 })`,
      caughtBy: bySimulation('linearizable'),
    },
    {
      id: 'memory: a ghost of a claim that was given back holds the key',
      find: `return state === 'open' ? refused({ is: 'busy', retryAfterMs: 0 }) : { is: 'repeated', entry }`,
      replace: `return { is: 'repeated', entry: { ...entry, wrote: 'claim' } }`,
      caughtBy: bySimulation('linearizable'),
    },
    {
      id: 'memory: a takeover starts at attempt 1 again',
      find: `attempt: (before?.attempt ?? 0) + 1,`,
      replace: `attempt: 1,`,
      caughtBy: bySimulation('attempts-grow'),
    },
    {
      id: 'memory: a later attempt that never began deletes the entry',
      find: `if (how === 'forget' && entry.attempt === 1) return 'forget'`,
      replace: `if (how === 'forget') return 'forget'`,
      caughtBy: bySimulation('live-kept'),
    },
    {
      id: 'memory: running entries expire',
      find: `if (nowMs >= expiresAtMs(entry)) return 'tombstone'`,
      replace: `if (nowMs >= ((entry as EntryRecord).firstClaimedAtMs ?? entry.leaseUntilMs) + entry.keepMs) return 'tombstone'`,
      caughtBy: byTest(inMemory, 'a running key never expires, however long ago it was first claimed'),
    },
    {
      id: 'memory: retention is counted from the claim',
      find: `wrote: 'settle', outcome, leaseUntilMs: nowMs, keepMs`,
      replace: `wrote: 'settle', outcome, leaseUntilMs: entry.firstClaimedAtMs, keepMs`,
      caughtBy: byTest(inMemory, 'the retention of a settled key counts from its settle, not from its claim'),
    },
    {
      id: 'memory: an expired key runs again',
      find: `if (state === 'tombstone') return request.onExpired === 'run' ? granted('fresh') : refused({ is: 'expired' })`,
      replace: `if (state === 'tombstone') return granted('fresh')`,
      caughtBy: bySimulation('linearizable'),
    },
  ]),
  ...bugsIn('src/stores/memory.ts', 'stores', [
    {
      id: 'memory: a change by hand leaves no record',
      find: `        data.audit.push({ key, atMs: data.now(), action: mendingName(action), reason, before: before.state })\n`,
      replace: '',
      caughtBy: byTest(inMemory, 'every manual change is on record with its reason, also after the entry is gone'),
    },
  ]),
  ...bugsIn('src/stores/memory/entries.ts', 'stores', [
    {
      id: 'memory: the fence starts again with the attempt',
      find: `  data.fence = fenceAfter(data.fence, nowMs)\n  return data.fence`,
      replace: `  return fenceAfter(0, nowMs) > 0 ? 1 : 2`,
      caughtBy: bySimulation('fence-grows'),
    },
    {
      id: 'memory: a sweep deletes what is running',
      find: `    if (state && !strip) {`,
      replace: `    if (state && state !== 'running' && !strip) {`,
      caughtBy: bySimulation('live-kept'),
    },
    {
      id: 'memory: a sweep forgets nothing',
      find: `      swept.forgotten++\n      forget(data, name)`,
      replace: `      swept.forgotten++`,
      caughtBy: bySimulation('storage-bounded'),
    },
    {
      id: 'memory: tenants share their keys',
      find: '=> data.entries.get(name)',
      replace: '=> [...data.entries.values()].find((each) => name.endsWith(each.key.id))',
      caughtBy: bySimulation('own-answer'),
    },
    {
      id: 'memory: a full store pushes a live key out',
      find: `  if (data.entries.size < entriesMax) return\n  throw`,
      replace: `  if (data.entries.size >= entriesMax) data.entries.delete(data.entries.keys().next().value!)\n  if (data.entries.size < entriesMax) return\n  throw`,
      caughtBy: byTest(inMemory, 'refuses a new key with STORE_UNAVAILABLE and forgets nothing that is alive'),
    },
    {
      id: 'memory: the stored outcome is the buffer of the caller',
      find: `{ outcome: keptCopy(outcome), retention }`,
      replace: `{ outcome, retention }`,
      caughtBy: byTest(inMemory, 'bytes that callers change afterwards do not change the outcome'),
    },
  ]),
  ...bugsIn('src/stores/memory/kept-bytes.ts', 'stores', [
    {
      id: 'memory: an outcome is written over the one before it',
      find: '  used += bytes.length\n',
      replace: '',
      caughtBy: bySimulation('same-answer'),
    },
  ]),
]

export const sqliteBugs: readonly SeededBug[] = [
  ...bugsIn('src/stores/sqlite/entries.ts', 'stores', [
    {
      id: 'sqlite: a swept tombstone keeps the input of its operation',
      find: 'SET outcome = NULL, input = NULL, sweep_at',
      replace: 'SET outcome = NULL, sweep_at',
      caughtBy: byTest(
        'src/stores/sqlite/sweep.test.ts',
        'a sweep takes outcome and input of a tombstone off the disk',
      ),
    },
    {
      id: 'sqlite: a sweep keeps every other call waiting until it has all that is due',
      find: 'const atMost = Math.min(limit, sweptAtOnceMax)',
      replace: 'const atMost = limit',
      caughtBy: byTest(
        'src/stores/sqlite/sweep.test.ts',
        'a sweep goes in short steps, as it keeps the event loop, and says that there is more',
      ),
    },
    {
      id: 'sqlite: a swept tombstone keeps the steps of its operation',
      find: `      forgetOperation(statements, row)\n      statements.strip`,
      replace: `      statements.strip`,
      caughtBy: byTest(inSqlite, swept),
    },
    {
      id: 'sqlite: commit without a fence',
      find: `WHERE scope = ? AND id = ? AND token = ? AND fence = ? AND state = 'running' AND lease_until + keep_ms > ?`,
      replace: `WHERE scope = ? AND id = ? AND ? IS NOT NULL AND ? IS NOT NULL AND state = 'running' AND lease_until + keep_ms > ?`,
      caughtBy: byTest(inSqlite, "after a takeover the old holder's settle is lost and changes nothing"),
    },
    {
      id: 'sqlite: token without fence: a claim delivered once more revives the holder of a life that is over',
      find: `AND token = ? AND fence = ? AND state = 'running'`,
      replace: `AND token = ? AND ? IS NOT NULL AND state = 'running'`,
      caughtBy: byTest(inSqlite, 'a claim that comes again after its entry is over does not revive the old holder'),
    },
    {
      id: 'sqlite: a settled outcome is overwritten by its own holder',
      find: `AND fence = ? AND state = 'running' AND lease_until`,
      replace: `AND fence = ? AND lease_until`,
      caughtBy: byTest(inSqlite, 'a second settle with another outcome does not overwrite the first'),
    },
    {
      id: 'sqlite: a holder whose entry has expired still writes',
      find: `AND state = 'running' AND lease_until + keep_ms > ?`,
      replace: `AND state = 'running' AND ? IS NOT NULL`,
      caughtBy: byTest(inSqlite, 'writes with the token of an expired key are lost and do not bring it back'),
    },
    {
      id: 'sqlite: late failure releases the claim of the new owner',
      find: `const after = released(find(key), held, how, time.now())`,
      replace: `const found = find(key)\n      const after = released(found, { ...held, token: found?.token ?? '', fence: 0 }, how, time.now())`,
      caughtBy: byTest(inSqlite, "after a takeover the old holder's release open is lost and changes nothing"),
    },
    {
      id: 'sqlite: no mismatch check',
      find: `look: (key, request) => answered(decide(find(key), request, time.now())),`,
      replace: `look: (key, request) => answered(decide(find(key), { ...request, fingerprint: find(key)?.fingerprint ?? '' }, time.now())),`,
      caughtBy: byTest(
        inSqlite,
        'another fingerprint on a key that is settled is a mismatch and harms nothing, whatever the policies',
      ),
    },
    {
      id: 'sqlite: a takeover loses the input of the operation',
      find: 'const after = attemptOf(key, decision, request,',
      replace:
        'const after = attemptOf(key, { ...decision, before: decision.before && { ...decision.before, input: undefined! } }, request,',
      caughtBy: byTest(inSqlite, 'the input is kept for later attempts that bring none'),
    },
    {
      id: 'sqlite: a sweep forgets what was extended since',
      find: '    const state = stateOf(times, nowMs)\n    if (!state) {',
      replace: '    const state = undefined as ReturnType<typeof stateOf>\n    if (!state) {',
      caughtBy: byTest(inSqlite, 'a sweep never touches a running key, however long ago it was first claimed'),
    },
  ]),
  ...bugsIn('src/stores/sqlite/schema.ts', 'stores', [
    {
      id: 'sqlite: keys are folded by the column',
      find: `  scope TEXT NOT NULL,\n  id TEXT NOT NULL,\n  state`,
      replace: `  scope TEXT NOT NULL,\n  id TEXT COLLATE NOCASE NOT NULL,\n  state`,
      caughtBy: byTest(inSqlite, 'keys that differ in case, blanks, accents, form or width are different keys'),
    },
  ]),
  ...bugsIn('src/stores/sqlite/batches.ts', 'stores', [
    {
      id: 'sqlite: an error at COMMIT is swallowed',
      find: '    return replies\n  } catch (error) {\n    rollBack(database)\n    throw error',
      replace:
        "    return replies\n  } catch {\n    rollBack(database)\n    return batch.map(() => ({ value: 'done' }))",
      caughtBy: byTest(
        'src/stores/sqlite/faults.test.ts',
        'fails a settle as STORE_UNAVAILABLE, keeps the claim, and takes a smaller outcome',
      ),
    },
  ]),
  ...bugsIn('src/stores/sqlite/batches.ts', 'stores', [
    {
      id: 'sqlite: a lock that somebody else holds is swallowed',
      find: `      } catch (error) {\n        throw asOnceError(error)\n      } finally {\n        endTurn()`,
      replace: `      } catch {\n        return batch.map(() => ({ value: 'done' }))\n      } finally {\n        endTurn()`,
      caughtBy: byTest(
        'src/stores/sqlite/faults.test.ts',
        'fails what must write as STORE_UNAVAILABLE after lockWaitMs, and nothing of it happens later',
      ),
    },
  ]),
  ...bugsIn('src/stores/sqlite/transactions.ts', 'stores', [
    {
      id: 'sqlite: a transaction that the effect has begun itself is taken for ours',
      find: '        leaveOpening(database, key)\n',
      replace: '',
      caughtBy: byTest(
        'src/stores/sqlite/transactions.test.ts',
        'because its effect ran COMMIT or ROLLBACK is OUTCOME_UNKNOWN',
      ),
    },
    {
      id: 'sqlite: an effect that committed its transaction itself is offered a retry',
      find: `throw isClosed() ? closedMeanwhile(key) : endedByEffect(key)`,
      replace: `throw closedMeanwhile(key)`,
      caughtBy: byTest(
        inSqlite,
        'an effect that commits its transaction itself is OUTCOME_UNKNOWN, and no retry is offered',
      ),
    },
    {
      id: 'sqlite: the effect is outside of the transaction',
      find: `    tx: database,\n    commit: (outcome`,
      replace: `    tx: ground.connect(),\n    commit: (outcome`,
      caughtBy: byTest(inSqlite, 'begin and rollback leave neither effect nor entry'),
    },
    {
      id: 'sqlite: a commit that failed is told as not executed',
      find: `  return new OnceError('OUTCOME_UNKNOWN', {\n    message: \`SQLite failed`,
      replace: `  return new OnceError('STORE_UNAVAILABLE', {\n    message: \`SQLite failed`,
      caughtBy: byTest(
        'src/stores/sqlite/transactions.test.ts',
        'because the disk fails at COMMIT is OUTCOME_UNKNOWN, and the retry tells the truth: one effect in the end',
      ),
    },
  ]),
  ...bugsIn('src/stores/sqlite/inspection.ts', 'stores', [
    {
      id: 'sqlite: a change by hand is on record also when nothing was changed',
      find: `      if (!mended) return before\n`,
      replace: `      if (!before) return before\n`,
      caughtBy: byTest(inSqlite, 'releasing by hand changes nothing where there is nothing to release'),
    },
  ]),
  ...bugsIn('src/stores/sqlite/operations.ts', 'stores', [
    {
      id: 'sqlite: a record that comes late overwrites a later one',
      find: `\n       WHERE excluded.revision > revision`,
      replace: '',
      caughtBy: byTest(inSqlite, 'a record that comes late never overwrites a later one'),
    },
    {
      id: 'sqlite: a fresh life of a key begins with the records of the last one',
      find: `const before = how !== 'fresh' || known?.life_fence === fence ? known : undefined`,
      replace: `const before = known`,
      caughtBy: byTest(inSqlite, 'a fresh life of the key begins without the records of the last one'),
    },
    {
      id: 'sqlite: a due operation is handed to every worker that asks',
      find: `      for (const { id } of found) statements.moveDue.run(heldUntilMs, scope, id)\n`,
      replace: '',
      caughtBy: byTest(
        inSqlite,
        'an operation is due when its lease is over, not before, and for one worker at a time',
      ),
    },
  ]),
  ...bugsIn('src/stores/sqlite/fitness.ts', 'stores', [
    {
      id: 'sqlite: a connection that does not sync its commits is accepted',
      find: `return level >= synchronousLevels`,
      replace: `return level + 9 >= synchronousLevels`,
      caughtBy: byTest(
        'src/stores/sqlite/faults.test.ts',
        'a better-sqlite3 database that was opened again in WAL mode is at NORMAL, and refused',
      ),
    },
  ]),
  ...bugsIn('src/stores/sqlite/time.ts', 'stores', [
    {
      id: 'sqlite: lease by local clock',
      find: 'if (markMs > now()) offsetMs = markMs - clock.elapsed()',
      replace: 'if (markMs > now()) offsetMs += 0',
      caughtBy: byTest(
        'src/stores/sqlite/time.test.ts',
        'processes whose clocks differ agree as soon as both have written',
      ),
    },
    {
      id: 'sqlite: a wall clock that is set moves leases',
      find: 'const now = (): number => Math.floor(offsetMs + clock.elapsed())',
      replace: 'const now = (): number => Math.floor(clock.now() + 0 * offsetMs)',
      caughtBy: byTest(
        'src/stores/sqlite/time.test.ts',
        'a clock that is set back revives nothing that has expired, and one set forward expires nothing',
      ),
    },
  ]),
]
