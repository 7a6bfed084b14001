// A store of your own, whole. Any place will do that can read one record and replace it in one atomic step. This one is a table
// of SQLite with a JSON record per key. The functions of onceonly/store decide, the same by which our own stores decide.
// `node --test examples/own-store.ts` runs the contract against it.

import { DatabaseSync } from 'node:sqlite'
import { test } from 'node:test'
import { attemptOf, decide, fenceAfter, grantOf, isHeldBy, released, settled } from 'onceonly/store'
import type { Clock, EntryRecord, Key, Store } from 'onceonly/store'
import { manualClock, storeContract } from 'onceonly/testing'

export function ownStore(database: DatabaseSync, clock: Clock): Store {
  database.exec('create table if not exists own (scope text, id text, record text, primary key (scope, id))')

  /** The one atomic step: nobody reads the record between what `change` saw and what it made of it. */
  function atomically<T>(
    key: Key,
    change: (record: EntryRecord | undefined, nowMs: number) => { readonly write?: EntryRecord; readonly answer: T },
  ): T {
    database.exec('begin immediate')
    try {
      const { write, answer } = change(readRecord(database, key), clock.now())
      if (write) writeRecord(database, write)
      database.exec('commit')
      return answer
    } catch (error) {
      database.exec('rollback')
      throw error
    }
  }

  return {
    name: 'own',
    async claim(key, request) {
      return atomically(key, (record, nowMs) => {
        const decision = decide(record, request, nowMs)
        if (decision.is === 'refused') return { answer: decision.verdict }
        if (decision.is === 'replayed') {
          const { outcome, version, attempt } = decision.entry
          return { answer: { is: 'settled', outcome: outcome!, version, attempt } }
        }
        const write =
          decision.is === 'repeated'
            ? { ...decision.entry, leaseUntilMs: nowMs + request.leaseMs }
            : attemptOf(key, decision, request, { nowMs, fence: fenceAfter(record?.fence ?? 0, nowMs) })
        return { write, answer: grantOf(write) }
      })
    },
    async extend(claim, leaseMs) {
      return atomically(claim.key, (record, nowMs) =>
        isHeldBy(record, claim, nowMs)
          ? { write: { ...record, leaseUntilMs: nowMs + leaseMs }, answer: 'done' }
          : { answer: 'lost' },
      )
    },
    async settle(claim, outcome, retention) {
      return atomically(claim.key, (record, nowMs) => {
        const write = settled(record, claim, { outcome, retention }, nowMs)
        return typeof write === 'string' ? { answer: write } : { write, answer: 'done' }
      })
    },
    async release(claim, how) {
      return atomically(claim.key, (record, nowMs) => {
        const write = released(record, claim, how, nowMs)
        if (write === 'done' || write === 'lost') return { answer: write }
        // What is left of a forgotten entry keeps its fence: the fence must grow from one life of the key to the next.
        return { write: write === 'forget' ? { ...record!, wrote: 'forget' } : write, answer: 'done' }
      })
    },
  }
}

function readRecord(database: DatabaseSync, { scope, id }: Key): EntryRecord | undefined {
  const row = database.prepare('select record from own where scope = ? and id = ?').get(scope, id)
  if (!row) return undefined
  const { outcome, ...record } = JSON.parse(String(row['record'])) as EntryRecord & { readonly outcome?: string }
  return outcome === undefined ? record : { ...record, outcome: Buffer.from(outcome, 'base64') }
}

function writeRecord(database: DatabaseSync, { outcome, ...record }: EntryRecord): void {
  const text = JSON.stringify(outcome ? { ...record, outcome: Buffer.from(outcome).toString('base64') } : record)
  database.prepare('insert or replace into own values (?, ?, ?)').run(record.key.scope, record.key.id, text)
}

// The proof. A clock that stands still until it is moved makes the exact edges testable.
storeContract({
  test,
  create: async () => {
    const clock = manualClock()
    const database = new DatabaseSync(':memory:')
    return {
      store: ownStore(database, clock),
      another: async () => ownStore(database, clock),
      advance: (ms) => clock.advance(ms),
      corrupt: async (key, outcome) => writeRecord(database, { ...readRecord(database, key)!, outcome }),
      destroy: async () => database.close(),
    }
  },
  cannot: {
    sweep: 'nothing is swept: a record stays until its key is used again',
    'counted-sweep': 'nothing is swept',
    inspection: 'not written',
    transactions: 'not written',
    collecting: 'not written',
    'no-waiting': 'not written',
    'abandoned-effects': 'not written',
    operations: 'not written',
    'transactional-steps': 'not written',
    'commit-faults': 'there is no commit of others',
    'connection-faults': 'there is no connection',
    'crash-recovery': 'the database of this test is in memory',
  },
})
