// What a transaction and a second constraint have to say.
import { expect } from 'vitest'
import type { Writes } from '../../../src/writes/index.ts'
import type { Subject } from './subject.ts'

export function insideTransactions(subject: Subject): void {
  const { can, run, insert, row, add, append, once } = subject

  can('what is rolled back was not written, and can be written again', async () => {
    await insert({ visits: 1 })
    const failing = run(async (writes) => {
      await writes.insertOnce('things', { key: { id: 'b' } })
      await writes.upsertIf('things', { key: { id: 'c' }, expect: { name: 'x' }, set: { name: 'y' } })
      await writes.addOnce('things', { key: { id: 'a' }, add: { visits: 1 }, once: once('e') })
      await writes.appendOnce('events', { key: { event_id: 'e' }, stream: { stream: 's' }, after: 0 })
      throw new Error('taken back')
    })
    await expect(failing).rejects.toThrow('taken back')
    expect(await row('b')).toBeUndefined()
    expect(await row('c')).toBeUndefined()
    expect(await row()).toMatchObject({ visits: '1' })
    expect(await add('e')).toBe('applied')
    expect(await append('e', 0)).toBe('appended')
  })

  can('a transaction goes on after an answer of every kind', async () => {
    await run(async (writes) => {
      const key = { id: 'a' }
      expect(await writes.insertOnce('things', { key, set: { visits: 0 } })).toBe('applied')
      expect(await writes.insertOnce('things', { key })).toBe('already')
      expect(await writes.upsertIfNewer('things', { key, newer: { version: 1 } })).toBe('applied')
      expect(await writes.upsertIfNewer('things', { key, newer: { version: 0 } })).toBe('stale')
      const paid = { key, expect: { name: null }, set: { name: 'paid' } }
      expect(await writes.upsertIf('things', paid)).toBe('applied')
      expect(await writes.upsertIf('things', paid)).toBe('already')
      expect(await writes.upsertIf('things', { ...paid, set: { name: 'failed' } })).toBe('conflict')
      const count = { key, add: { visits: 1 }, once: once('e') }
      expect(await writes.addOnce('things', count)).toBe('applied')
      expect(await writes.addOnce('things', count)).toBe('already')
      const event = { stream: { stream: 's' }, after: 0 }
      expect(await writes.appendOnce('events', { key: { event_id: 'e' }, ...event })).toBe('appended')
      expect(await writes.appendOnce('events', { key: { event_id: 'e' }, ...event })).toBe('already')
      expect(await writes.appendOnce('events', { key: { event_id: 'f' }, ...event })).toBe('conflict')
    })
    expect(await row()).toMatchObject({ visits: '1', version: '1' })
  })

  can('a write that fails in the middle leaves neither mark nor count', async () => {
    await insert({ visits: 1 })
    // No such column, found out after the mark was set where that comes first.
    const count = (add: Record<string, number>): Promise<string> =>
      run(async (writes) => {
        const broken = writes.addOnce('things', { key: { id: 'a' }, add, once: once('e') })
        return broken.catch(() => 'failed')
      })
    await count({ no_such_column: 1 }).catch(() => {})
    expect(await add('e')).toBe('applied')
    expect(await row()).toMatchObject({ visits: '2' })
  })
}

export function otherConstraints(subject: Subject): void {
  const { can, run, row } = subject

  can('is an error, and neither "already" nor a write to the other row', async () => {
    await run((writes) => writes.insertOnce('things', { key: { id: 'other' }, set: { email: 'a@b', name: 'kept' } }))
    const set = { email: 'a@b', name: 'lost' }
    for (const work of [
      (writes: Writes) => writes.insertOnce('things', { key: { id: 'a' }, set }),
      (writes: Writes) => writes.upsert('things', { key: { id: 'a' }, set }),
      (writes: Writes) => writes.upsertIfNewer('things', { key: { id: 'a' }, set, newer: { version: 1 } }),
      (writes: Writes) => writes.upsertIf('things', { key: { id: 'a' }, expect: { name: 'kept' }, set }),
    ]) {
      await expect(run<string>(work)).rejects.toThrow()
    }
    expect(await row()).toBeUndefined()
    expect(await row('other')).toMatchObject({ name: 'kept', version: null })
  })
}
