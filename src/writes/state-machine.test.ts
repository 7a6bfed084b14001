// A state machine refuses what was not declared before anything is sent, and the compiler refuses it before that.

import { DatabaseSync } from 'node:sqlite'
import { describe, expect, expectTypeOf, test } from 'vitest'
import type { OnceError } from '../core/errors.ts'
import { postgresWrites, sqliteWrites, stateMachine } from './index.ts'
import type { PostgresWritesClient, Transition } from './index.ts'

const edges = {
  created: ['payment_pending'],
  payment_pending: ['paid', 'failed'],
  paid: ['refunded'],
  failed: [],
  refunded: [],
} as const

const orders = stateMachine(edges, { on: sqliteWrites, table: 'orders' })

function database(): DatabaseSync {
  const opened = new DatabaseSync(':memory:')
  opened.exec(`create table orders (id text primary key, state text not null, cents integer);
    insert into orders values ('o-1', 'created', 500)`)
  return opened
}

/** Anything sent is an error. */
const untouchable = {
  exec: () => expect.unreachable('something was sent'),
  prepare: () => expect.unreachable('something was sent'),
} as never

const messageOf = (work: () => unknown): string => {
  try {
    work()
  } catch (error) {
    expect((error as OnceError).code).toBe('INVALID_ARGUMENT')
    return (error as OnceError).message
  }
  return expect.unreachable('it was not refused')
}

describe('transition', () => {
  test('applied, already, conflict, missing; nothing else of the row changes', () => {
    const db = database()
    expect(orders.transition(db, 'o-1', 'created', 'payment_pending')).toBe('applied')
    expect(orders.transition(db, 'o-1', 'created', 'payment_pending')).toBe('already')
    expect(orders.transition(db, 'o-1', 'payment_pending', 'failed')).toBe('applied')
    expect(orders.transition(db, 'o-1', 'payment_pending', 'paid')).toBe('conflict')
    expect(orders.transition(db, 'o-1', 'created', 'payment_pending')).toBe('conflict')
    expect(orders.transition(db, 'o-2', 'created', 'payment_pending')).toBe('missing')
    expect(db.prepare('select * from orders').all()).toEqual([{ id: 'o-1', state: 'failed', cents: 500 }])
  })

  test('an undeclared edge is refused before anything is sent', () => {
    const sent = (from: string, to: string) => () => orders.transition(untouchable, 'o-1', from as never, to as never)
    expect(messageOf(sent('created', 'paid'))).toBe(
      'transition: expected one of the states that follow "created" (payment_pending), got "paid"',
    )
    expect(messageOf(sent('failed', 'paid'))).toContain('(none: it is final)')
    expect(messageOf(sent('creatd', 'paid'))).toContain(
      'expected one of the states created, payment_pending, paid, failed, refunded, got "creatd"',
    )
    for (const name of ['__proto__', 'constructor', 'toString', '', "'; drop table orders"]) {
      messageOf(sent(name, 'paid'))
      messageOf(sent('created', name))
    }
    messageOf(sent(undefined as never, 'paid'))
    messageOf(sent('created', { $ne: 1 } as never))
  })

  test('the compiler knows the states, and what a database answers', () => {
    const on = stateMachine(edges, { on: postgresWrites, table: 'orders', id: 'order_id', state: 'status' })
    expectTypeOf(orders.transition<'payment_pending'>)
      .parameter(3)
      .toEqualTypeOf<'paid' | 'failed'>()
    expectTypeOf(orders.transition<'failed'>)
      .parameter(3)
      .toEqualTypeOf<never>()
    expectTypeOf(orders.transition).parameter(2).toEqualTypeOf<keyof typeof edges>()
    expectTypeOf(orders.transition).returns.toEqualTypeOf<Transition>()
    expectTypeOf(on.transition).returns.toEqualTypeOf<Promise<Transition>>()
    expectTypeOf(on.transition).parameter(0).toEqualTypeOf<PostgresWritesClient>()
    expect(orders.states).toEqual(Object.keys(edges))
  })
})

describe('what is declared', () => {
  const declare = (given: unknown, options: object = { on: sqliteWrites, table: 'orders' }) => {
    return () => stateMachine(given as never, options as never)
  }

  test('every state that is led to is declared, and none leads to itself', () => {
    expect(messageOf(declare({ created: ['paid'] }))).toContain('"created" leads to "paid", which is not declared')
    expect(messageOf(declare({ created: ['created'] }))).toContain('leads to itself')
    expect(messageOf(declare({ created: 'paid' }))).toContain('to be an array')
    expect(messageOf(declare({}))).toContain('expected an object of states')
    expect(messageOf(declare(null))).toContain('expected an object of states')
    expect(messageOf(declare({ created: ['toString'] }))).toContain('not declared')
  })

  test('options are checked at once', () => {
    expect(messageOf(declare(edges, { on: sqliteWrites, table: 'orders', stat: 'x' }))).toContain(
      'did you mean "state"',
    )
    expect(messageOf(declare(edges, { table: 'orders' }))).toContain('a function such as postgresWrites')
    expect(messageOf(declare(edges, { on: sqliteWrites }))).toContain('expected table to be a non-empty string')
  })

  test('edges that are changed afterwards change nothing', () => {
    const given: Record<'a' | 'b', ('a' | 'b')[]> = { a: [], b: [] }
    const machine = stateMachine(given, { on: sqliteWrites, table: 'orders' })
    given.a.push('b')
    messageOf(() => machine.transition(untouchable, 'o-1', 'a', 'b'))
  })
})
