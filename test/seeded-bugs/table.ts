// The seeded bugs, in one table: mistakes that idempotency layers really make, each with the assertion that must notice it.
// To add one: a row with a find that stands in its file once, and npm run seeded-bugs -- --only "its id".

import { bySimulation, byTest } from './bug.ts'
import type { Group, SeededBug } from './bug.ts'

type Row = Omit<SeededBug, 'group' | 'file'>

function bugsIn(file: string, group: Group, rows: readonly Row[]): SeededBug[] {
  return rows.map((row) => ({ ...row, group, file }))
}

const inKeyFuzz = 'test/fuzz/keys.test.ts'
const inOnce = 'src/core/once.test.ts'
const inTransaction = 'src/core/transaction.test.ts'
const inMemory = 'src/stores/memory.test.ts'
const inSqlite = 'src/stores/sqlite.test.ts'

const core: readonly SeededBug[] = [
  ...bugsIn('src/core/once.ts', 'claim, lease, fence', [
    {
      id: 'an attempt that was fenced off still answers with its value',
      find: `  if (fenced === 'lost') throw claimLost(held, call.settings, { cause: plan.thrown })\n`,
      replace: '',
      caughtBy: bySimulation('same-answer'),
    },
    {
      id: 'the answer is given before the outcome is settled',
      find: '  try {\n    fenced = await attempt.settle(stored.bytes, call.request.retention)',
      replace:
        "  try {\n    fenced = 'done' as string\n    void attempt.settle(stored.bytes, call.request.retention).catch(() => {})",
      caughtBy: bySimulation('answer-after-settle'),
    },
    {
      id: 'the key of an effect that hangs is given back while it still runs',
      find: `if (ended.is === 'hung') return { do: 'left-to-lease', thrown }`,
      replace: `if (ended.is === 'hung') return { do: 'open', thrown }`,
      caughtBy: bySimulation('release-fits-effect'),
    },
    {
      id: 'an effect that is in doubt is given back as if it had failed',
      find: `if (thrown instanceof InDoubtError || settings.onThrow === 'doubt')`,
      replace: `if (settings.onThrow === 'doubt')`,
      caughtBy: bySimulation('release-fits-effect'),
    },
    {
      id: 'a failure forgets the attempt instead of opening the key',
      find: `return { do: 'open', thrown }`,
      replace: `return { do: 'forget', thrown }`,
      caughtBy: bySimulation('release-fits-effect'),
    },
    {
      id: 'a final failure is not stored, and runs again',
      find: `if (thrown instanceof FinalError) return { do: 'settle', outcome: { kind: 'failure', error: thrown }, thrown }\n`,
      replace: '\n',
      caughtBy: bySimulation('release-fits-effect'),
    },
    {
      id: 'a process that stood still starts the effect although its lease is over',
      find: '  await stillHeld(ground, verdict.claim, call.settings, askedMs)\n',
      replace: '',
      caughtBy: byTest(
        inOnce,
        'a process that stood still from asking until its lease was over does not start what another has taken',
      ),
    },
    {
      id: 'the first caller is given its own object and every replay the stored one',
      find: 'const { outcome } = stored',
      replace: 'const { outcome } = plan',
      caughtBy: byTest(inOnce, 'the first caller is given what every replay is given'),
    },
    {
      id: 'a heartbeat outlives an attempt that was left to its lease',
      find: '    attempt.leave()\n    protocol.wake(call)',
      replace: '    protocol.wake(call)',
      caughtBy: bySimulation('quiet-after-end'),
    },
  ]),
  ...bugsIn('src/core/claiming.ts', 'claim, lease, fence', [
    {
      id: 'a store that does not answer runs the effect all the same',
      find: `    if (error instanceof OnceError && error.code === 'STORE_UNAVAILABLE') disown()\n    throw error`,
      replace: `    const claim = { key, token: request.token, attempt: 1, fence: 1 }\n    return { verdict: { is: 'granted', how: 'fresh', claim }, askedMs }`,
      caughtBy: bySimulation('claim-before-effect'),
    },
    {
      id: 'a claim that nobody heard of blocks its key for a lease',
      find: `    if (error instanceof OnceError && error.code === 'STORE_UNAVAILABLE') disown()\n`,
      replace: '',
      caughtBy: byTest(inOnce, 'a claim that landed although its reply was lost does not block the key'),
    },
    {
      id: 'a claim that lands late is kept by nobody',
      find: `    if (verdict.is === 'granted') disown()\n`,
      replace: '',
      caughtBy: byTest(inOnce, 'a claim that lands after its caller gave up is released when it does'),
    },
  ]),
  ...bugsIn('src/core/protocol.ts', 'claim, lease, fence', [
    {
      id: 'the token is the name of the process',
      find: 'askOnce({ ...call.request, token: random.uuid() })',
      replace: "askOnce({ ...call.request, token: '00000000-0000-4000-8000-000000000001' })",
      caughtBy: bySimulation('one-execution-a-claim'),
    },
    {
      id: 'no fingerprint is taken of what is asked',
      find: 'const asked = fingerprint(options.fingerprint)',
      replace: 'const asked = fingerprint(undefined)',
      caughtBy: bySimulation('own-answer'),
    },
    {
      id: 'nobody wakes the duplicates when the effect ends',
      find: 'wake: (call) => waiting.wake(call.group),',
      replace: 'wake: () => {},',
      caughtBy: byTest(inOnce, 'the end of a local effect wakes its duplicates without a poll'),
    },
    {
      id: 'an expired key says nothing about itself and is replayed as undefined',
      find: `      if (verdict.is === 'settled') return replay(call, verdict, startedMs)`,
      replace: `      if (verdict.is === 'settled') return replay(call, verdict, startedMs)\n      if (verdict.is === 'expired') return { value: undefined as never, replayed: true, attempt: 1 }`,
      caughtBy: byTest(
        inOnce,
        'after keepMs a retry is told EXPIRED and nothing runs; after the tombstone the key is new',
      ),
    },
  ]),
  ...bugsIn('src/core/waiting.ts', 'claim, lease, fence', [
    {
      id: 'a grant is told to every duplicate that waits',
      find: `if (asked.verdict.is !== 'granted') {`,
      replace: `if (asked.verdict.is) {`,
      caughtBy: bySimulation('one-execution-a-claim'),
    },
    {
      id: 'a leader that leaves hands the lead to nobody',
      find: `      group.leader?.answer('lead')\n`,
      replace: '',
      caughtBy: byTest(
        inOnce,
        'when the first is released, exactly one waiter takes over and the others get its outcome',
      ),
    },
    {
      id: 'every duplicate polls for itself',
      find: '      if (group.leader) {',
      replace: '      if (group.leader === member) {',
      caughtBy: byTest(inOnce, 'a thousand local duplicates share one wait, not a thousand polls'),
    },
  ]),
  ...bugsIn('src/core/attempt.ts', 'claim, lease, fence', [
    {
      id: 'a heartbeat outlives the deadline of its effect',
      find: '    stopHeartbeat()\n    return deadlinePassed',
      replace: '    return deadlinePassed',
      caughtBy: bySimulation('quiet-after-end'),
    },
    {
      id: 'a heartbeat that is told that the claim is lost goes on',
      find: `    if (fenced === 'lost') return end('lost')\n`,
      replace: '',
      caughtBy: bySimulation('told-when-lost'),
    },
    {
      id: 'there is no heartbeat',
      find: 'const periodMs = leaseMs / 3',
      replace: 'const periodMs = leaseMs * 300',
      caughtBy: bySimulation('calm-is-free'),
    },
    {
      id: 'a lease that ran out in silence is not noticed',
      find: `    if (leftMs() < 1) return end('silent')\n`,
      replace: '',
      caughtBy: bySimulation('told-when-lost'),
    },
    {
      id: 'a settle that nobody confirmed is taken for done',
      find: 'if (fenced !== undefined) return fenced',
      replace: `return fenced ?? 'done'`,
      caughtBy: bySimulation('answer-after-settle'),
    },
    {
      id: 'a settle whose reply was lost is not repeated',
      find: '  const writing = repeat(ground, once, untilMs)\n',
      replace: '  const writing = Promise.resolve(untilMs < 0 ? await once() : undefined)\n',
      caughtBy: byTest(inOnce, 'a settle whose reply is lost is repeated and recognised'),
    },
  ]),
  ...bugsIn('src/core/effect.ts', 'claim, lease, fence', [
    {
      id: 'an effect that ignores its signal hangs its caller',
      find: `    cancelTimer = clock.schedule(() => ended.resolve({ is: 'hung', thrown: error }), options.graceMs)\n`,
      replace: '',
      caughtBy: bySimulation('everybody-answered'),
    },
    {
      id: 'every attempt hands another key to the systems behind it',
      find: 'this.keyFor = (name) => deriveKey(claim.key, name)',
      replace: 'this.keyFor = (name) => deriveKey({ ...claim.key, id: claim.token }, name)',
      caughtBy: bySimulation('same-derived-key'),
    },
    {
      id: 'the signal of an effect that lost its claim does not abort',
      find: '    controller?.abort(error)\n',
      replace: '',
      caughtBy: bySimulation('told-when-lost'),
    },
  ]),
  ...bugsIn('src/core/store-call.ts', 'claim, lease, fence', [
    {
      id: 'a store that never answers hangs its caller',
      find: 'over = true',
      replace: 'if (!over) return',
      caughtBy: bySimulation('everybody-answered'),
    },
  ]),
  ...bugsIn('src/core/sweeping.ts', 'claim, lease, fence', [
    {
      id: 'expiry never runs',
      find: 'for (let more = true; more && !closing.aborted;) more = await sweepStep(ground, store)',
      replace: 'for (let more = false; more && !closing.aborted;) more = await sweepStep(ground, store)',
      caughtBy: byTest(inOnce, 'sweepEveryMs expires entries in the background, until close'),
    },
  ]),
  ...bugsIn('src/core/key.ts', 'claim, lease, fence', [
    {
      id: 'a derived key forgets the scope: two tenants share it',
      find: `uuidOf(['keyFor', parent.scope, parent.id, name])`,
      replace: `uuidOf(['keyFor', parent.id, name])`,
      caughtBy: byTest('src/core/key.test.ts', 'a derived key depends on scope, id and name'),
    },
    {
      id: 'parts of a key run into each other',
      find: 'return [length, bytes]',
      replace: 'return [bytes]',
      caughtBy: byTest(inKeyFuzz, 'no parts of a key imitate the frame between them'),
    },
    {
      id: 'a key is trimmed',
      find: 'return Object.freeze({ scope, id })',
      replace: 'return Object.freeze({ scope, id: id.trim() })',
      caughtBy: byTest('src/core/key.test.ts', 'a key keeps every byte: nothing is trimmed, folded or truncated'),
    },
  ]),
  ...bugsIn('src/core/fingerprint.ts', 'claim, lease, fence', [
    {
      id: 'a text and the bytes of it have one fingerprint',
      find: '`text\\n${asked}`',
      replace: '`bytes\\n${asked}`',
      caughtBy: byTest('src/core/fingerprint.test.ts', 'bytes, text, JSON and nothing never meet'),
    },
  ]),
  ...bugsIn('src/core/events.ts', 'claim, lease, fence', [
    {
      id: 'the key is in what is logged',
      find: 'keyHash: key && hashKey(key)',
      replace: 'keyHash: key && `${key.scope}/${key.id}`',
      caughtBy: byTest(inOnce, 'the life of a key is told, with a hash and never with the key or the value'),
    },
  ]),
  ...bugsIn('src/core/outcome.ts', 'claim, lease, fence', [
    {
      id: 'an outcome that cannot be read is replayed as nothing',
      find: "      throw new Error(`it begins with byte ${stored[0] ?? 'none'}, which no version of onceonly writes`)",
      replace: `      return { kind: 'value', value: undefined }`,
      caughtBy: byTest(inOnce, 'unreadable stored data is an error, never a second run'),
    },
  ]),
]

const transactions: readonly SeededBug[] = bugsIn('src/core/transaction.ts', 'transactions', [
  {
    id: 'a commit that nobody confirmed is told as not executed',
    find: `    throw new OnceError('OUTCOME_UNKNOWN', {\n      message:\n        \`The transaction`,
    replace: `    throw new OnceError('STORE_UNAVAILABLE', {\n      message:\n        \`The transaction`,
    caughtBy: bySimulation('not-executed-left-nothing'),
  },
  {
    id: 'a final failure is committed together with the writes that led to it',
    find: `    if (stored.outcome.kind === 'failure') await bounded(ground.calls, () => granted.undoEffect())\n`,
    replace: '',
    caughtBy: bySimulation('transaction-once'),
  },
  {
    id: 'a serialization failure is thrown at the caller instead of tried again',
    find: `      if (!store.isConflict(error)) throw error\n`,
    replace: `      throw error\n`,
    caughtBy: byTest(inTransaction, 'a conflict with others is tried again, as the rollback took the effect along'),
  },
  {
    id: 'a commit that was lost is answered as done',
    find: `if ((await commit(ground, call, granted, stored)) === 'lost') throw lostInTransaction(call.key)`,
    replace: `await commit(ground, call, granted, stored)`,
    caughtBy: bySimulation('answer-has-effect', 20_000),
  },
  {
    id: 'the transaction of an effect that still runs goes back to the pool',
    find: `ended.is === 'hung' ? 'abandon' : 'rollback'`,
    replace: `ended.is === 'hung' ? 'rollback' : 'rollback'`,
    caughtBy: byTest(
      inTransaction,
      'an effect that hangs past its deadline is rolled back, and what it writes later reaches nobody',
    ),
  },
  {
    id: 'any throw is stored as the answer of a transaction',
    find: `return store ? { kind: 'failure', error: failureOf(ended.thrown) } : undefined`,
    replace: `return store || ended.thrown ? { kind: 'failure', error: failureOf(ended.thrown) } : undefined`,
    caughtBy: byTest(inTransaction, 'a throw takes effect and claim back'),
  },
  {
    id: 'a transaction that began too late is left open',
    find: `    if (began.granted) ground.background(takeBack(ground, began.granted, 'rollback'))\n`,
    replace: '',
    caughtBy: bySimulation('no-wedge'),
  },
  {
    id: 'a rollback that is never answered hangs the caller',
    find: '    await bounded(ground.calls, () => granted[how]())',
    replace: '    await granted[how]()',
    caughtBy: byTest(inTransaction, 'a rollback that is never answered hangs nobody, and the connection is cut off'),
  },
])

const memory: readonly SeededBug[] = bugsIn('src/stores/memory.ts', 'stores', [
  {
    id: 'memory: no mismatch check',
    find: `  if (entry.fingerprint !== request.fingerprint) return { is: 'mismatch' }\n`,
    replace: '',
    caughtBy: bySimulation('own-answer'),
  },
  {
    id: 'memory: mismatch only against settled entries',
    find: `if (entry.fingerprint !== request.fingerprint) return { is: 'mismatch' }`,
    replace: `if (state === 'settled' && entry.fingerprint !== request.fingerprint) return { is: 'mismatch' }`,
    caughtBy: bySimulation('linearizable'),
  },
  {
    id: 'memory: a running key is taken over',
    find: `if (state === 'running') return { is: 'busy', retryAfterMs: entry.leaseUntilMs - data.now() }`,
    replace: `if (state === 'running' && entry.attempt > 1) return { is: 'busy', retryAfterMs: entry.leaseUntilMs - data.now() }`,
    caughtBy: bySimulation('one-holder'),
  },
  {
    id: 'memory: no takeover',
    find: `return now < entry.leaseUntilMs ? 'running' : 'abandoned'`,
    replace: `return 'running'`,
    caughtBy: bySimulation('no-wedge'),
  },
  {
    id: 'memory: the token is not changed on takeover',
    find: `    how,\n    token: request.token,\n    attempt: entry.attempt + 1,`,
    replace: `    how,\n    attempt: entry.attempt + 1,`,
    caughtBy: bySimulation('linearizable'),
  },
  {
    id: 'memory: fence on state only, any token writes',
    find: `return entry?.token === held.token && (state === 'running' || state === 'abandoned')`,
    replace: `return state === 'running' || state === 'abandoned'`,
    caughtBy: bySimulation('holder-writes'),
  },
  {
    id: 'memory: a holder whose lease is over cannot settle although nobody has followed',
    find: `(state === 'running' || state === 'abandoned')\n}`,
    replace: `state === 'running'\n}`,
    caughtBy: byTest(inMemory, 'a holder whose lease is over can still settle while nobody has followed'),
  },
  {
    id: 'memory: a settled outcome is overwritten',
    find: `      if (state === 'settled' && entry?.token === held.token) return 'done'\n      if (!isHeldBy(entry, state, held)) return 'lost'`,
    replace: `      if (!entry || (state !== 'settled' && !isHeldBy(entry, state, held))) return 'lost'`,
    caughtBy: bySimulation('settled-is-final'),
  },
  {
    id: 'memory: a settle once more is lost',
    find: `      if (state === 'settled' && entry?.token === held.token) return 'done'\n`,
    replace: '',
    caughtBy: bySimulation('linearizable'),
  },
  {
    id: 'memory: a claim once more is not recognised',
    find: `    return state === 'open' ? { is: 'busy', retryAfterMs: 0 } : grantAgain(data, entry, request)`,
    replace: `    return { is: 'busy', retryAfterMs: 0 }`,
    caughtBy: bySimulation('linearizable'),
  },
  {
    id: 'memory: a ghost of a claim that was given back holds the key',
    find: `return state === 'open' ? { is: 'busy', retryAfterMs: 0 } : grantAgain(data, entry, request)`,
    replace: `return grantAgain(data, { ...entry, wrote: 'claim' }, request)`,
    caughtBy: bySimulation('linearizable'),
  },
  {
    id: 'memory: the fence starts again with the attempt',
    find: `  data.fence = Math.max(data.fence + 1, data.now() * 1_000)\n  return data.fence`,
    replace: `  return data.now() > 0 ? 1 : 2`,
    caughtBy: bySimulation('fence-grows'),
  },
  {
    id: 'memory: a takeover starts at attempt 1 again',
    find: `    attempt: entry.attempt + 1,\n    fence: nextFence(data),`,
    replace: `    attempt: 1,\n    fence: nextFence(data),`,
    caughtBy: bySimulation('attempts-grow'),
  },
  {
    id: 'memory: a later attempt that never began deletes the entry',
    find: `if (how === 'open' || entry.attempt > 1) {`,
    replace: `if (how === 'open') {`,
    caughtBy: bySimulation('live-kept'),
  },
  {
    id: 'memory: running entries expire',
    find: `  return entry.leaseUntilMs + entry.keepMs\n`,
    replace: `  return entry.firstClaimedAtMs + entry.keepMs\n`,
    caughtBy: byTest(inMemory, 'a running key never expires, however long ago it was first claimed'),
  },
  {
    id: 'memory: retention is counted from the claim',
    find: `      const leaseUntilMs = data.now()\n`,
    replace: `      const leaseUntilMs = entry.firstClaimedAtMs\n`,
    caughtBy: byTest(inMemory, 'the retention of a settled key counts from its settle, not from its claim'),
  },
  {
    id: 'memory: an expired key runs again',
    find: `(state === 'tombstone' && request.onExpired === 'execute')`,
    replace: `state === 'tombstone'`,
    caughtBy: bySimulation('linearizable'),
  },
  {
    id: 'memory: a sweep deletes what is running',
    find: `    if (state && !strip) {`,
    replace: `    if (state && state !== 'running' && !strip) {`,
    caughtBy: bySimulation('live-kept'),
  },
  {
    id: 'memory: a sweep forgets nothing',
    find: `      swept.forgotten++\n      data.entries.delete(name)`,
    replace: `      swept.forgotten++`,
    caughtBy: bySimulation('storage-bounded'),
  },
  {
    id: 'memory: tenants share their keys',
    find: `  const entry = data.entries.get(name)\n`,
    replace: `  const entry = [...data.entries.values()].find((each) => each.key.id === key.id)\n`,
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
    find: `const kept = copyOf(outcome)`,
    replace: `const kept = outcome`,
    caughtBy: byTest(inMemory, 'bytes that callers change afterwards do not change the outcome'),
  },
])

const sqlite: readonly SeededBug[] = [
  ...bugsIn('src/stores/sqlite-entries.ts', 'stores', [
    {
      id: 'sqlite: commit without a fence',
      find: `WHERE scope = ? AND id = ? AND token = ? AND state = 'running' AND lease_until + keep_ms > ?`,
      replace: `WHERE scope = ? AND id = ? AND ? IS NOT NULL AND state = 'running' AND lease_until + keep_ms > ?`,
      caughtBy: byTest(inSqlite, "after a takeover the old holder's settle is lost and changes nothing"),
    },
    {
      id: 'sqlite: a settled outcome is overwritten by its own holder',
      find: `AND token = ? AND state = 'running' AND lease_until`,
      replace: `AND token = ? AND lease_until`,
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
      find: `  if (!holds(row, token, now)) return 'lost'\n`,
      replace: '',
      caughtBy: byTest(inSqlite, "after a takeover the old holder's release open is lost and changes nothing"),
    },
    {
      id: 'sqlite: no mismatch check',
      find: `  if (row.fingerprint !== request.fingerprint) return { is: 'mismatch' }\n`,
      replace: '',
      caughtBy: byTest(
        inSqlite,
        'another fingerprint on a key that is settled is a mismatch and harms nothing, whatever the policies',
      ),
    },
    {
      id: 'sqlite: a takeover loses the input of the operation',
      find: 'input: request.input ?? before?.input ?? null,',
      replace: 'input: request.input ?? null,',
      caughtBy: byTest(inSqlite, 'the input is kept for later attempts that bring none'),
    },
    {
      id: 'sqlite: a sweep forgets what was extended since',
      find: '    const state = stateOf(row, now)\n    const expiresAt',
      replace: '    const state = undefined as ReturnType<typeof stateOf>\n    const expiresAt',
      caughtBy: byTest(inSqlite, 'a sweep never touches a running key, however long ago it was first claimed'),
    },
  ]),
  ...bugsIn('src/stores/sqlite-schema.ts', 'stores', [
    {
      id: 'sqlite: keys are folded by the column',
      find: `  scope TEXT NOT NULL,\n  id TEXT NOT NULL,\n  state`,
      replace: `  scope TEXT NOT NULL,\n  id TEXT COLLATE NOCASE NOT NULL,\n  state`,
      caughtBy: byTest(inSqlite, 'keys that differ in case, blanks, accents, form or width are different keys'),
    },
  ]),
  ...bugsIn('src/stores/sqlite-calls.ts', 'stores', [
    {
      id: 'sqlite: an error at COMMIT is swallowed',
      find: '    return replies\n  } catch (error) {\n    rollBack(database)\n    throw error',
      replace:
        "    return replies\n  } catch {\n    rollBack(database)\n    return batch.map(() => ({ value: 'done' }))",
      caughtBy: byTest(
        'src/stores/sqlite-faults.test.ts',
        'fails a settle as STORE_UNAVAILABLE, keeps the claim, and takes a smaller outcome',
      ),
    },
  ]),
  ...bugsIn('src/stores/sqlite-connection.ts', 'stores', [
    {
      id: 'sqlite: a connection that does not sync its commits is accepted',
      find: `synchronous >= needed) return`,
      replace: `synchronous >= 0) return`,
      caughtBy: byTest(
        'src/stores/sqlite-faults.test.ts',
        'a better-sqlite3 database that was opened again in WAL mode is at NORMAL, and refused',
      ),
    },
  ]),
  ...bugsIn('src/stores/sqlite-time.ts', 'stores', [
    {
      id: 'sqlite: lease by local clock',
      find: 'if (markMs > now()) offsetMs = markMs - clock.elapsed()',
      replace: 'if (markMs > now()) offsetMs += 0',
      caughtBy: byTest(
        'src/stores/sqlite-time.test.ts',
        'processes whose clocks differ agree as soon as both have written',
      ),
    },
    {
      id: 'sqlite: a wall clock that is set moves leases',
      find: 'const now = (): number => Math.floor(offsetMs + clock.elapsed())',
      replace: 'const now = (): number => Math.floor(clock.now() + 0 * offsetMs)',
      caughtBy: byTest(
        'src/stores/sqlite-time.test.ts',
        'a clock that is set back revives nothing that has expired, and one set forward expires nothing',
      ),
    },
  ]),
]

const inPostgres = 'src/stores/postgres.test.ts'
const postgres: readonly SeededBug[] = [
  ...bugsIn('src/stores/postgres-functions.ts', 'stores', [
    {
      id: 'postgres: commit without a fence',
      find: `h.id = an_id and h.token = a_token\n      and h.state = 'r'`,
      replace: `h.id = an_id\n      and h.state = 'r'`,
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
  ...bugsIn('src/stores/postgres-names.ts', 'stores', [
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
  ...bugsIn('src/stores/postgres-transactions.ts', 'stores', [
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

const inRedis = 'src/stores/redis.test.ts'
const redis: readonly SeededBug[] = bugsIn('src/stores/redis-script.ts', 'stores', [
  {
    id: 'redis: DEL without the token',
    find: `if isExpired(entry) or not isBy(entry, token) then return 0 end`,
    replace: `if isExpired(entry) then return 0 end`,
    caughtBy: byTest(inRedis, "after a takeover the old holder's release open is lost and changes nothing", 'redis'),
  },
  {
    id: 'redis: no mismatch check for running keys',
    find: `  if sub(entry, \${at('fingerprint')}) ~= sub(rest, 38, 80) then return entry end\n`,
    replace: '',
    caughtBy: byTest(
      inRedis,
      'another fingerprint on a key that is open is a mismatch and harms nothing, whatever the policies',
      'redis',
    ),
  },
  {
    id: 'redis: a running key is taken over',
    find: `if not isOpen and (nowText < sub(entry, \${at('lease')}) or`,
    replace: `if not isOpen and (nowText < '0' or`,
    caughtBy: byTest(inRedis, 'a key is not taken over while its lease lasts', 'redis'),
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
  {
    id: 'redis: data that went back is not noticed',
    find: `elseif mark < tonumber(ARGV[2]) then\n  evidence = 'went-back'`,
    replace: `elseif mark < 0 then\n  evidence = 'went-back'`,
    caughtBy: byTest(
      'src/stores/redis-data-loss.test.ts',
      'a server that came back with an older dataset is found by the writes that are missing; what it knows is replayed',
      'redis',
    ),
  },
])

const inMysql = 'src/stores/mysql.test.ts'
const mysql: readonly SeededBug[] = bugsIn('src/stores/mysql-schema.ts', 'stores', [
  {
    id: 'mysql: commit without a fence',
    find: 'set is_held = is_there and e_token = a_token and (',
    replace: 'set is_held = is_there and (',
    caughtBy: byTest(inMysql, "after a takeover the old holder's extend is lost and changes nothing", 'mariadb'),
  },
  {
    id: 'mysql: keys are folded by the column',
    find: `  scope varbinary(255) not null,\n  id varbinary(255) not null,\n  state`,
    replace: `  scope varbinary(255) not null,\n  id varchar(255) character set utf8mb4 collate utf8mb4_general_ci not null,\n  state`,
    caughtBy: byTest(inMysql, 'keys that differ in case, blanks, accents, form or width are different keys', 'mariadb'),
  },
  {
    id: 'mysql: the fence of a takeover is the old one',
    find: 'set e_fence = greatest(now_us, e_fence + 1);',
    replace: 'set e_fence = e_fence;',
    caughtBy: byTest(inMysql, 'every takeover is one more attempt with a greater fence', 'mariadb'),
  },
])

const inDynamodb = 'src/stores/dynamodb.test.ts'
const dynamodb: readonly SeededBug[] = [
  ...bugsIn('src/stores/dynamodb-writes.ts', 'stores', [
    {
      id: 'dynamodb: commit without a fence',
      find: `condition: '#token = :token AND #wrote = :claim AND #expiresAtMs > :sure'`,
      replace: `condition: '(#token = :token OR attribute_exists(#token)) AND #wrote = :claim AND #expiresAtMs > :sure'`,
      caughtBy: byTest(inDynamodb, "after a takeover the old holder's settle is lost and changes nothing", 'dynamodb'),
    },
  ]),
  ...bugsIn('src/stores/dynamodb-claims.ts', 'stores', [
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
  ]),
  ...bugsIn('src/stores/dynamodb-entries.ts', 'stores', [
    {
      id: 'dynamodb: lease by local clock',
      find: 'return { now, sure: now - clockSkewMs, clockSkewMs }',
      replace: 'return { now, sure: now, clockSkewMs }',
      caughtBy: byTest(
        'src/stores/dynamodb-clock.test.ts',
        'the lease of a process that is behind is not cut short by one that is ahead',
        'dynamodb',
      ),
    },
  ]),
]

const inMongodb = 'src/stores/mongodb.test.ts'
const mongodb: readonly SeededBug[] = bugsIn('src/stores/mongodb-entries.ts', 'stores', [
  {
    id: 'mongodb: commit without a fence',
    find: `return { _id: idOf(key), token, wrote: 'claim', $expr`,
    replace: `return { _id: idOf(key), ...(token === '' && { token }), wrote: 'claim', $expr`,
    caughtBy: byTest(inMongodb, "after a takeover the old holder's settle is lost and changes nothing", 'mongodb'),
  },
  {
    id: 'mongodb: a takeover of what has changed since it was read',
    find: 'return { _id: idOf(key), token, revision }',
    replace: `return { _id: idOf(key), ...(revision < 0 && { token }) }`,
    caughtBy: byTest(inMongodb, 'of concurrent claims of an abandoned key, one takes it over', 'mongodb'),
  },
])

const redisPostgres: readonly SeededBug[] = bugsIn('src/stores/redis-postgres-entry.ts', 'stores', [
  {
    id: 'redis over postgres: whatever Redis says is believed',
    find: `  if (!timingSafeEqual(code, bytes.subarray(0, codeLength))) return undefined\n`,
    replace: `  if (!timingSafeEqual(code, code)) return undefined\n`,
    caughtBy: byTest('src/stores/redis-postgres-lies.test.ts', 'every single bit of an entry counts', 'redis'),
  },
  {
    id: 'redis over postgres: the cached answer is not bound to the request',
    find: `const parts = [key.scope, key.id, fingerprint]`,
    replace: `const parts = [key.scope, key.id, fingerprint.slice(43)]`,
    caughtBy: byTest(
      'src/stores/redis-postgres-faults.test.ts',
      'a hit with another fingerprint is decided by the database',
      'redis',
    ),
  },
])

const inStored = 'src/http/stored-response.test.ts'
const inRequest = 'src/http/request-fingerprint.test.ts'
const inAdapters = 'src/http/adapters.test.ts'
const inHoles = 'src/http/holes.test.ts'
const parts = 'method, path, query, media type, content coding and body each make another request'
const http: readonly SeededBug[] = [
  ...bugsIn('src/http/key-header.ts', 'http', [
    {
      id: 'joined header lines are accepted',
      find: 'const bare = /^[\\x21\\x23-\\x2b\\x2d-\\x3a\\x3c-\\x5b\\x5d-\\x7e]+$/',
      replace: 'const bare = /^[\\x20\\x21\\x23-\\x3a\\x3c-\\x5b\\x5d-\\x7e]+$/',
      caughtBy: byTest('src/http/key-header.test.ts', 'is refused: "a,b"'),
    },
    {
      id: 'of two header lines the first one counts',
      find: `if (lines.length !== 1) return`,
      replace: `if (lines.length === 0) return`,
      caughtBy: byTest('src/http/key-header.test.ts', 'no line, an empty one and more than one are never a key'),
    },
    {
      id: 'the length of a key is not bounded',
      find: 'if (key.length > rules.keyLengthMax) return',
      replace: 'if (key.length > rules.keyLengthMax * 1_000) return',
      caughtBy: byTest('src/http/key-header.test.ts', 'the length is that of the key, not of the field'),
    },
  ]),
  ...bugsIn('src/http/request-fingerprint.ts', 'http', [
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
      find: '    bodyPart(settings, request, body),\n',
      replace: '',
      caughtBy: byTest(inRequest, parts),
    },
    {
      id: 'the parts of a request run into each other',
      find: 'return JSON.stringify(parts)',
      replace: `return parts.join('')`,
      caughtBy: byTest(inKeyFuzz, 'no two requests meet, whatever character moves from one part to the next'),
    },
    {
      id: 'the order of repeated parameters is lost',
      find: 'parameters.sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0))',
      replace: 'parameters.sort((a, b) => (a.parameter < b.parameter ? -1 : 1))',
      caughtBy: byTest(inRequest, 'a query keeps its meaning'),
    },
  ]),
  ...bugsIn('src/http/strict-json.ts', 'http', [
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
  ...bugsIn('src/http/stored-response.ts', 'http', [
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
  ...bugsIn('src/http/node-response.ts', 'http', [
    {
      id: 'a partial body is stored as complete',
      find: `  if (hold.is === 'whole' && declaredLength(hold, hold.bytes) !== hold.bytes) beginStream(hold)\n`,
      replace: '',
      caughtBy: byTest(
        'src/http/node-response.test.ts',
        'an answer that is shorter or longer than it said is not replayed as if it were whole',
      ),
    },
    {
      id: 'an answer leaves before it is settled',
      find: `  if (phase === 'passing' || hold.ended || refused) return Reflect.apply(own.end, res, written) as Internals\n  implicitHead(hold)`,
      replace: `  if (phase === 'passing' || hold.ended || refused) return Reflect.apply(own.end, res, written) as Internals\n  res.socket?.write('HTTP/1.1 102 Processing\\r\\n\\r\\n')\n  implicitHead(hold)`,
      caughtBy: byTest('src/http/node-response.test.ts', 'nothing leaves before the answer is settled'),
    },
  ]),
  ...bugsIn('src/http/scoped-key.ts', 'http', [
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
  ...bugsIn('src/http/context.ts', 'http', [
    {
      id: 'an error of the server is stored as the answer',
      find: `return status >= (policy === 'success-only' ? 400 : 500) ? 'open' : 'store'`,
      replace: `return status >= (policy === 'success-only' ? 400 : 600) ? 'open' : 'store'`,
      caughtBy: byTest(inHoles, 'hole 16: an answer that cannot be made after the effect leaves no key running'),
    },
    {
      id: 'the word of the handler about its answer is ignored',
      find: '  if (wish.fate) return wish.fate\n',
      replace: '',
      caughtBy: byTest(inAdapters, 'a handler overrules the policy: release, store, notBegun'),
    },
  ]),
  ...bugsIn('src/http/exchange.ts', 'http', [
    {
      id: 'a store that is down lets the handler run unprotected',
      find: `const failOpen = ground.settings.onStoreDown === 'execute' && !ground.settings.transaction`,
      replace: `const failOpen = !ground.settings.transaction`,
      caughtBy: byTest(
        inHoles,
        'hole 5: a store that is down or does not answer is a 503, and the handler does not run',
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
    {
      id: 'keys of one route replay the answers of another',
      find: 'fingerprint, onThrow',
      replace: "fingerprint: 'none', onThrow",
      caughtBy: byTest(inHoles, 'hole 7: the mount path is part of the request: a refund does not replay an order'),
    },
  ]),
]

const inOperation = 'src/core/operation.test.ts'
const operations: readonly SeededBug[] = [
  ...bugsIn('src/core/operation-undo.ts', 'operations', [
    {
      id: 'undo in the wrong order',
      find: 'journal.steps().toReversed()',
      replace: '[...journal.steps()]',
      caughtBy: byTest(inOperation, 'a final failure undoes in reverse, each once, and is stored as the answer'),
    },
    {
      id: 'an unknown step is not compensated',
      find: `['began', 'done', 'undoing', 'stuck']`,
      replace: `['done', 'undoing', 'stuck']`,
      caughtBy: byTest(inOperation, 'when its attempts are exhausted it goes back, and a step in doubt is told so'),
    },
    {
      id: 'a failed undo is swallowed',
      find: `{ ...last, forward: forwardOf(last), state: 'stuck', error: message }`,
      replace: `{ ...last, forward: forwardOf(last), state: 'undone' }`,
      caughtBy: byTest(
        inOperation,
        'an undo that keeps failing is parked with its error, the others still run, and resume goes on',
      ),
    },
    {
      id: 'undo twice: that it was done is not written down',
      find: `  await asked.step.undo!(told)\n  await journal.write({ step: { ...kept, forward, state: 'undone' } })`,
      replace: `  await asked.step.undo!(told)`,
      caughtBy: byTest(
        inOperation,
        'a process that dies while it goes back is succeeded by one that goes on with the undos',
      ),
    },
  ]),
  ...bugsIn('src/core/operation-steps.ts', 'operations', [
    {
      id: 'a committed step runs again in the next attempt',
      find: `const isDone = record?.state === 'done' || record?.forward === 'done'`,
      replace: `const isDone = record?.forward === 'done'`,
      caughtBy: byTest(
        inOperation,
        'a later attempt is given the stored result of a step that is done, and its run is not called',
      ),
    },
    {
      id: 'a step begins before that is written down',
      find: `  await journal.write({ step: { ...record, state: 'began' } })\n`,
      replace: '',
      caughtBy: byTest(inOperation, 'with a lookup, what was found is taken, and the step is not run'),
    },
    {
      id: 'a random downstream key for each attempt of a step',
      find: 'key: deriveKey(key, part),',
      replace: 'key: deriveKey(key, `${part}:${attempt}`),',
      caughtBy: byTest(
        inOperation,
        'the derived key of a step is the same on every attempt, and differs from step to step',
      ),
    },
    {
      id: 'a lookup that cannot tell is taken for not found',
      find: `if (looked === 'not-found') return 'run'`,
      replace: `if (looked === 'not-found' || looked === 'unknown') return 'run'`,
      caughtBy: byTest(inOperation, 'with a lookup that cannot tell, nothing is run and it stays in doubt'),
    },
    {
      id: 'a step in doubt is run again although its author said stop',
      find: `if (step.inDoubt !== 'stop') return 'run'`,
      replace: `if (step.inDoubt !== undefined || !step.lookup) return 'run'`,
      caughtBy: byTest(inOperation, "with inDoubt 'stop' the operation parks until a person decides"),
    },
    {
      id: 'a pivot does not hold',
      find: 'return journal.steps().some((step) => step.pivot &&',
      replace: 'return journal.steps().some((step) => step.pivot && !step.pivot &&',
      caughtBy: byTest(
        inOperation,
        'after a pivot there is no way back: it goes on, and parks when its attempts are exhausted',
      ),
    },
    {
      id: 'undos begin while siblings still run',
      find: '      closed = true\n      await Promise.all(running)',
      replace: '      closed = true',
      caughtBy: byTest(inOperation, 'undos wait for parallel siblings to end'),
    },
    {
      id: 'a step with another fingerprint is answered with the stored one',
      find: 'if (!record || tookNoEffect || record.fingerprint === asked) return',
      replace: 'if (!record || tookNoEffect || record.fingerprint !== undefined || asked !== undefined) return',
      caughtBy: byTest(inOperation, 'a step asked with another fingerprint is a MISMATCH, and runs nothing'),
    },
  ]),
  ...bugsIn('src/core/operation-journal.ts', 'operations', [
    {
      id: 'an attempt that was taken over goes on with its steps',
      find: `    if (advanced === 'lost') throw claimLost(claim, settings)\n`,
      replace: '',
      caughtBy: byTest(inOperation, 'an operation that was taken over cannot write a step, and its signal aborts'),
    },
  ]),
  ...bugsIn('src/stores/memory-operations.ts', 'operations', [
    {
      id: 'memory: a takeover resets the steps',
      find: `const before = verdict.how !== 'fresh' || known?.lifeFence === fence ? known : undefined`,
      replace: `const before = verdict.how === 'reopened' || known?.lifeFence === fence ? known : undefined`,
      caughtBy: byTest(inOperation, 'with a lookup, what was found is taken, and the step is not run'),
    },
    {
      id: 'memory: a release forgets the steps',
      find: `const before = verdict.how !== 'fresh' || known`,
      replace: `const before = verdict.how === 'taken-over' || known`,
      caughtBy: byTest(
        inOperation,
        'a later attempt is given the stored result of a step that is done, and its run is not called',
      ),
    },
    {
      id: 'memory: a record that comes late overwrites a later one',
      find: '    if ((before.get(name)?.revision ?? 0) >= revision) continue\n',
      replace: '',
      caughtBy: byTest(inMemory, 'a record that comes late never overwrites a later one'),
    },
    {
      id: 'memory: a record is written without a look at the token',
      find: `if (!operation || moved(decide, claim, change.then) === 'lost') return 'lost'`,
      replace: `if (!operation || moved(decide, claim, change.then) === undefined) return 'lost'`,
      caughtBy: byTest(
        inMemory,
        'after a takeover the old holder can write no record, and can neither settle nor give back',
      ),
    },
  ]),
]

const inFaults = 'test/gateway/faults.test.ts'
const gateway: readonly SeededBug[] = [
  ...bugsIn('src/gateway/upstream.ts', 'gateway', [
    {
      id: 'an answer whose end cannot be told is stored as complete',
      find: `call.unframed = !head.isFramed && status !== 204`,
      replace: `call.unframed = !head.isFramed && status === 204`,
      caughtBy: byTest(
        inFaults,
        'an answer that ends with its connection is passed on and not stored: nobody can tell whether it is complete',
      ),
    },
  ]),
  ...bugsIn('src/gateway/upstream-headers.ts', 'gateway', [
    {
      id: 'what belongs to one connection is passed on to the upstream',
      find: 'if (notToUpstream.has(lower) || forwardedNames.has(lower)',
      replace: 'if (forwardedNames.has(lower)',
      caughtBy: byTest(
        'test/gateway/forwarding.test.ts',
        'the request as it came, without what belongs to the connection',
      ),
    },
    {
      id: 'what the client says about itself is believed',
      find: 'const came = rules.trustForwarded ? req.headers : {}',
      replace: 'const came = req.headers',
      caughtBy: byTest(
        'test/gateway/forwarding.test.ts',
        'with trustForwarded false what came in Forwarded is kept or replaced',
      ),
    },
  ]),
  ...bugsIn('src/gateway/gateway-routes.ts', 'gateway', [
    {
      id: 'another way to write a path leads around its rule',
      find: `    if (segment === '..') segments.pop()\n    else if`,
      replace: `    if`,
      caughtBy: byTest('src/gateway/gateway-routes.test.ts', 'a path pattern'),
    },
  ]),
]

export const seededBugs: readonly SeededBug[] = [
  ...core,
  ...transactions,
  ...memory,
  ...sqlite,
  ...postgres,
  ...redis,
  ...mysql,
  ...dynamodb,
  ...mongodb,
  ...redisPostgres,
  ...http,
  ...operations,
  ...gateway,
]
