// What the cases of the contract work with: one ground, and the calls that most of them make.
import { test } from 'vitest'
import { OnceError } from '../../../src/core/errors.ts'
import type { AddOnce, Answers, Row, Writes } from '../../../src/writes/index.ts'
import type { WritesGround } from '../ground.ts'

export interface WritesContract {
  ground(): WritesGround
  // Of a case, and why.
  readonly cannot: Readonly<Record<string, string>>
  // Where the events of addOnce are marked.
  once(event: string): AddOnce['once']
}

type Texts = Record<string, string | null> | undefined

export interface Subject {
  // A case on empty tables, or the reason why this database cannot.
  can(name: string, body: () => Promise<void>): void
  run<T>(work: (writes: Writes) => Promise<T>): Promise<T>
  once(event: string): AddOnce['once']
  // All of them on the row `a`, or the stream `s`.
  insert(set: Row): Promise<Answers['insertOnce']>
  add(event: string, by?: number | bigint): Promise<Answers['addOnce']>
  append(event: string, after: number, stream?: string): Promise<Answers['appendOnce']>
  row(id?: string): Promise<Texts>
  events(key: { event_id: string }): Promise<Texts>
}

type Register = (name: string, body: () => Promise<void>) => void

export function subjectOf({ ground, cannot, once }: WritesContract, register: Register = test): Subject {
  const run: Subject['run'] = (work) => ground().run(work)
  const key = { id: 'a' }
  return {
    run,
    once,
    can(name, body) {
      const reason = cannot[name]
      if (reason) return void test.skip(`${name} [cannot: ${reason}]`, () => {})
      register(name, async () => {
        await ground().reset()
        await body()
      })
    },
    insert: (set) => run((writes) => writes.insertOnce('things', { key, set })),
    add: (event, by = 1) =>
      insist(() => run((writes) => writes.addOnce('things', { key, add: { visits: by }, once: once(event) }))),
    append(event, after, stream = 's') {
      const request = { key: { event_id: event }, stream: { stream }, after, set: { body: 'b' } }
      return insist(() => run((writes) => writes.appendOnce('events', request)))
    },
    row: (id = 'a') => ground().row('things', { id }),
    events: (place) => ground().row('events', place),
  }
}

// Others were faster, and the database said so: what a caller does then is to run the whole transaction again.
function isConflict(error: unknown): boolean {
  if (error instanceof OnceError) return error.code === 'TRANSACTION_CONFLICT'
  const { code, errno } = error as { code?: unknown; errno?: unknown }
  return code === '40001' || code === '40P01' || errno === 1213 || errno === 1020
}

export async function insist<T>(work: () => Promise<T>): Promise<T> {
  for (let tries = 0; ; tries++) {
    try {
      return await work()
    } catch (error) {
      if (!isConflict(error) || tries === 500) throw error
    }
  }
}
