// Bugs that the simulation must notice by itself: what is wrong in the server that it simulates, and mistakes of the other
// tables that a test catches as well. A simulation that finds nothing has to prove that it could.

import { bugsIn, byOperations, byRedis, bySimulation } from '../bug.ts'
import type { CaughtBy, SeededBug } from '../bug.ts'
import { operationBugs } from './operations.ts'

/** The same mistake as in another table, and what the simulation says to it. */
function alsoSeen(bugs: readonly SeededBug[], id: string, caughtBy: CaughtBy): SeededBug {
  const bug = bugs.find((each) => each.id === id)
  if (!bug) throw new Error(`no seeded bug is called "${id}"`)
  return { ...bug, id: `simulation: ${id}`, caughtBy }
}

export const simulationBugs: readonly SeededBug[] = [
  ...bugsIn('src/core/entry.ts', 'claim, lease, fence', [
    {
      id: 'a holder is known by its token alone, in whichever life of the key',
      find: 'return entry?.token === claim.token && entry.fence === claim.fence',
      replace: 'return entry?.token === claim.token',
      caughtBy: bySimulation('holder-writes'),
    },
  ]),
  ...bugsIn('test/simulation/world/store.ts', 'stores', [
    {
      id: 'a server that reads, and then writes',
      find: 'lockedBy.has(name) ? busyInTransaction : store.claim(key, request),',
      replace: `{
        if (lockedBy.has(name)) return busyInTransaction
        if (await store.show(key)) return store.claim(key, request)
        await new Promise<void>((resolve) => server.world.after(20, resolve))
        const blind = new Map() as typeof server.data.entries
        blind.set = (at, entry) => (server.data.entries.set(at, entry), blind)
        return server.open({ ...server.data, entries: blind, fence: server.data.fence + 1_000 }).claim(key, request)
      },`,
      caughtBy: bySimulation('one-holder'),
    },
    {
      id: "a server that counts leases by its caller's clock",
      find: 'const store = server.open()',
      replace: 'const store = server.open({ ...server.data, now: () => server.data.now() + life.process.skewMs })',
      caughtBy: bySimulation('one-holder'),
    },
  ]),
  ...bugsIn('test/simulation/world/operations.ts', 'operations', [
    {
      id: 'a server that commits the step of a zombie',
      find: `if (advanced !== 'lost') for (const line of lines) line()`,
      replace: 'for (const line of lines) line()',
      caughtBy: byOperations('step-once', 20_000),
    },
    {
      id: 'a server that writes what a step writes before its transaction is committed',
      find: 'lines.push(line)',
      replace: 'line()',
      caughtBy: byOperations('step-once'),
    },
  ]),
  ...bugsIn('test/simulation/world/redis/server.ts', 'stores', [
    {
      id: 'a Redis that lost its data is taken for a new one',
      find: `const evidence = evidenceOf(found, lineageKnown, mark, Number(named('mark')))`,
      replace: `const evidence = evidenceOf(found, found?.lineage ?? '-', mark, 0)`,
      caughtBy: byRedis('quarantine-holds'),
    },
    {
      id: 'a Redis that writes whatever the token',
      find: 'if (textAt(entry, entryPlaces.token) !== token || !isFence) return 0',
      replace: 'if (token === fence && !isFence) return 0',
      caughtBy: byRedis('holder-writes'),
    },
    {
      id: 'a Redis that looks at no lease',
      find: 'const isLeased = script.nowMs < numberAt(entry, entryPlaces.lease)',
      replace: 'const isLeased = script.nowMs < 0',
      caughtBy: byRedis('one-holder'),
    },
    {
      id: 'a Redis that settles what is settled',
      find: `  if (state !== 'running') {\n    return (verb`,
      replace: `  if (state !== 'running' && verb !== 's') {\n    return (verb`,
      caughtBy: byRedis('settled-is-final'),
    },
  ]),
  ...bugsIn('src/stores/memory/operations.ts', 'operations', [
    {
      id: 'memory: no operation is ever due',
      find: 'dueAtMs !== undefined && dueAtMs <= now)',
      replace: 'dueAtMs !== undefined && dueAtMs <= -now)',
      caughtBy: byOperations('operation-ends'),
    },
    {
      id: 'memory: a new life begins with the records of the one before',
      find: `const before = verdict.how !== 'fresh' || known?.lifeFence === fence ? known : undefined`,
      replace: 'const before = known',
      caughtBy: byOperations('ends-whole'),
    },
    {
      id: 'memory: a takeover deletes the records',
      find: 'put({ key, lifeFence, records, cancelReason, dueAtMs, settled: false })',
      replace: `const kept = verdict.how === 'taken-over' ? new Map() : records
      put({ key, lifeFence, records: kept, cancelReason, dueAtMs, settled: false })`,
      caughtBy: byOperations('records-in-order'),
    },
    {
      id: 'memory: what is parked becomes due when it is asked for',
      find: 'const dueAtMs = isParked ? undefined : data.now() + request.leaseMs',
      replace: 'const dueAtMs = data.now() + request.leaseMs',
      caughtBy: byOperations('parked-stays'),
    },
    {
      id: 'memory: the ledger does not say that an operation is parked',
      find: 'return { records: [...records.values()].map(copied), dueAtMs, cancelReason }',
      replace: 'return { records: [...records.values()].map(copied), dueAtMs: dueAtMs ?? data.now(), cancelReason }',
      caughtBy: byOperations('parked-stays'),
    },
  ]),
  ...bugsIn('src/stores/memory/entries.ts', 'operations', [
    {
      id: 'memory: a sweep deletes the records of what is not finished',
      find: '    if (state && !strip) {\n',
      replace: `    if (data.operations.get(name)?.settled === false) data.operations.delete(name)\n    if (state && !strip) {\n`,
      caughtBy: byOperations('records-kept'),
    },
    {
      id: 'memory: a sweep leaves the records of what it forgets',
      find: `      swept.forgotten++\n      forget(data, name)\n`,
      replace: `      swept.forgotten++\n      data.entries.delete(name)\n`,
      caughtBy: byOperations('storage-bounded'),
    },
  ]),
  ...bugsIn('src/core/operations/attempt.ts', 'operations', [
    {
      id: 'an operation that is not finished expires',
      find: 'const retention = { keepMs: Math.max(keepMs, unfinishedKeepMs), tombstoneMs }',
      replace: 'const retention = { keepMs: 100, tombstoneMs: 0 }',
      caughtBy: byOperations('operation-ends'),
    },
    {
      id: 'an older version goes on with what a newer one began',
      find: 'if (course.version <= definition.version) return',
      replace: 'if (course.version >= 0) return',
      caughtBy: byOperations('newer-untouched'),
    },
  ]),
  ...bugsIn('src/core/operations/steps.ts', 'operations', [
    {
      id: 'what a step was asked with is not recorded',
      find: '...(asked !== undefined && { fingerprint: asked }),',
      replace: '',
      caughtBy: byOperations('step-as-asked'),
    },
    {
      id: 'a step in doubt is not looked up before it runs again',
      find: `if (before?.state === 'began') {`,
      replace: `if (before?.state === 'began' && !step.lookup) {`,
      caughtBy: byOperations('step-once'),
    },
    {
      id: 'every failure of a step is taken for one without effect',
      find: 'const tookNoEffect = error instanceof FinalError || error instanceof NotBegunError',
      replace: 'const tookNoEffect = error instanceof Error',
      caughtBy: byOperations('step-once'),
    },
  ]),
  ...bugsIn('src/core/operations/undo.ts', 'operations', [
    {
      id: 'what has been undone is undone again',
      find: `['began', 'done', 'undoing', 'stuck']`,
      replace: `['began', 'done', 'undoing', 'undone', 'stuck']`,
      caughtBy: byOperations('step-not-again'),
    },
  ]),
  ...bugsIn('src/core/operations/transaction-steps.ts', 'operations', [
    {
      id: 'what a step in a transaction writes is not committed with its record',
      find: 'await journal.commit({ step: done(bytes) }, (change) => commitWithin(context, begun, change))',
      replace: `await journal.commit({ step: done(bytes) }, (change) => commitWithin(context, begun, { ...change, records: [] }))`,
      caughtBy: byOperations('step-once'),
    },
  ]),
  alsoSeen(operationBugs, 'memory: a record is written without a look at the token', byOperations('record-by-holder')),
  alsoSeen(operationBugs, 'memory: a record that comes late overwrites a later one', byOperations('records-in-order')),
  alsoSeen(operationBugs, 'an attempt that was taken over goes on with its steps', byOperations('began-before-run')),
  alsoSeen(operationBugs, 'a committed step runs again in the next attempt', byOperations('step-not-again')),
  alsoSeen(operationBugs, 'undo in the wrong order', byOperations('undo-in-reverse')),
  alsoSeen(operationBugs, 'a random downstream key for each attempt of a step', byOperations('step-once')),
  alsoSeen(operationBugs, 'a step in doubt is run again although its author said stop', byOperations('step-once')),
  alsoSeen(operationBugs, 'a lookup that cannot tell is taken for not found', byOperations('step-once')),
  alsoSeen(operationBugs, 'a failed undo is swallowed', byOperations('ends-whole')),
  alsoSeen(operationBugs, 'an unknown step is not compensated', byOperations('ends-whole')),
]
