// Hostile input: names are refused, values are stored as they are.
import { expect } from 'vitest'
import type { Writes } from '../../../src/writes/index.ts'
import type { Subject } from './subject.ts'

// Every character that means something to one of the layers on the way.
const hostileValues = [
  `it's "quoted" \`ticked\``,
  String.raw`\ \' \0 $1 ? :name #n0 {a,b} %s`,
  `'); drop table things; --`,
  '🙂 é é',
  '',
  '{"$gt": ""}',
  '[object Object]',
]

const hostileNames = [
  'id"; drop table things; --',
  'id`',
  'a b',
  '1a',
  '',
  'a.b.c.d',
  '$where',
  'näme',
  'x'.repeat(64),
  'id = id or 1=1',
]

export function valuesAreOnlyValues(subject: Subject): void {
  const { can, run, insert, row } = subject

  can('values are stored and found as they are', async () => {
    for (const [index, value] of hostileValues.entries()) {
      const id = `${index} ${value}`
      const key = { id }
      expect(await run((writes) => writes.insertOnce('things', { key, set: { name: value } }))).toBe('applied')
      const swap = { key, expect: { name: value }, set: { name: `${value}!` } }
      expect(await run((writes) => writes.compareAndSet('things', swap)), value).toBe('applied')
      expect(await run((writes) => writes.compareAndSet('things', swap)), value).toBe('already')
      expect(await run((writes) => writes.upsert('things', { key, set: { name: value } }))).toBe('applied')
      const put = { key, expect: { name: value }, set: { name: `${value}?` }, setOnInsert: { note: value } }
      expect(await run((writes) => writes.upsertIf('things', put)), value).toBe('applied')
      expect(await run((writes) => writes.upsertIf('things', put)), value).toBe('already')
      expect(await run((writes) => writes.upsert('things', { key, set: { name: value } }))).toBe('applied')
      expect(await row(id)).toMatchObject({ id, name: value })
    }
  })

  can('values that a client might take for more than a value are refused', async () => {
    await insert({ name: 'kept' })
    for (const value of [
      { $gt: '' },
      { id: 1 },
      ['a'],
      undefined,
      NaN,
      Infinity,
      () => 1,
      Symbol('s'),
      { _bsontype: 'ObjectId' },
    ]) {
      const given = value as never
      const change = run((writes) => writes.upsert('things', { key: { id: given }, set: { name: 'lost' } }))
      await expect(change).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' })
      const swap = run((writes) =>
        writes.compareAndSet('things', { key: { id: 'a' }, expect: { name: given }, set: { name: 'lost' } }),
      )
      await expect(swap).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' })
      for (const more of [{ expect: { name: given } }, { setOnInsert: { note: given } }]) {
        const put = run((writes) =>
          writes.upsertIf('things', { key: { id: 'a' }, expect: { name: 'kept' }, set: { name: 'lost' }, ...more }),
        )
        await expect(put).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' })
      }
    }
    expect(await row()).toMatchObject({ name: 'kept' })
  })

  can('a number where the key is a text finds no other row', async () => {
    await insert({ name: 'kept' })
    const swap = (id: number): Promise<unknown> =>
      run((writes) => writes.compareAndSet('things', { key: { id }, expect: { name: 'kept' }, set: { name: 'lost' } }))
    // Some databases have no such comparison and say so.
    const answer = await swap(0).catch(() => 'refused')
    expect(['missing', 'refused']).toContain(answer)
    expect(await row()).toMatchObject({ name: 'kept' })
  })
}

export function namesAreOnlyNames(subject: Subject): void {
  const { can, run, insert, row, once } = subject

  can('names that are not names are refused before anything is sent', async () => {
    await insert({ name: 'kept' })
    for (const name of hostileNames) {
      for (const work of [
        (writes: Writes) => writes.insertOnce('things', { key: { [name]: 'a' } }),
        (writes: Writes) => writes.upsert('things', { key: { id: 'a' }, set: { [name]: 'b' } }),
        (writes: Writes) => writes.upsertIfNewer('things', { key: { id: 'a' }, newer: { [name]: 1 } }),
        (writes: Writes) => writes.compareAndSet('things', { key: { id: 'a' }, expect: { [name]: 1 }, set: { name } }),
        (writes: Writes) => writes.upsertIf('things', { key: { id: 'a' }, expect: { [name]: 1 }, set: { name } }),
        (writes: Writes) => writes.addOnce('things', { key: { id: 'a' }, add: { [name]: 1 }, once: once('e') }),
        (writes: Writes) =>
          writes.appendOnce('events', { key: { event_id: 'e' }, stream: { s: 's' }, after: 0, version: name }),
      ]) {
        await expect(run<string>(work), name).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' })
      }
    }
    for (const table of ['things"; drop table things', 'things`', '', 'a.b.c d', 'thi ngs']) {
      const work = run((writes) => writes.insertOnce(table, { key: { id: 'a' } }))
      await expect(work, table).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' })
    }
    expect(await row()).toMatchObject({ name: 'kept' })
  })
}
