// A write that is repeated changes nothing more, and says so.
import { expect } from 'vitest'
import type { Subject } from './subject.ts'

export function repeatedUpserts(subject: Subject): void {
  const { can, run, insert, row } = subject

  can('insertOnce: the first is applied, the others are already there and change nothing', async () => {
    expect(await insert({ name: 'first' })).toBe('applied')
    expect(await insert({ name: 'first' })).toBe('already')
    expect(await insert({ name: 'other' })).toBe('already')
    expect(await row()).toMatchObject({ id: 'a', name: 'first' })
  })

  can('insertOnce without further columns', async () => {
    const mark = (): Promise<string> => run((writes) => writes.insertOnce('marks', { key: { event_id: 'e' } }))
    expect([await mark(), await mark(), await mark()]).toEqual(['applied', 'already', 'already'])
  })

  can('upsert: what it does not name stays, what is for new rows is not written to an old one', async () => {
    const upsert = (name: string, note: string): Promise<string> =>
      run((writes) => writes.upsert('things', { key: { id: 'a' }, set: { name }, setOnInsert: { note, visits: 7 } }))
    expect(await upsert('one', 'born')).toBe('applied')
    expect(await upsert('one', 'born')).toBe('already')
    expect(await upsert('one', 'again')).toBe('already')
    expect(await upsert('two', 'again')).toBe('applied')
    expect(await upsert('two', 'again')).toBe('already')
    expect(await row()).toMatchObject({ name: 'two', note: 'born', visits: '7' })
    await run((writes) => writes.upsert('things', { key: { id: 'a' }, set: { version: 3 } }))
    expect(await row()).toMatchObject({ name: 'two', note: 'born', visits: '7', version: '3' })
  })

  can('upsert to another case of the letters, and to null and back, is a change', async () => {
    const set = (name: string | null): Promise<string> =>
      run((writes) => writes.upsert('things', { key: { id: 'a' }, set: { name } }))
    const answers = []
    for (const name of ['a', 'A', 'A', null, null, 'A']) answers.push(await set(name))
    expect(answers).toEqual(['applied', 'applied', 'already', 'applied', 'already', 'applied'])
    expect(await row()).toMatchObject({ name: 'A' })
  })
}

export function repeatedVersions(subject: Subject): void {
  const { can, run, insert, row } = subject

  can('upsertIfNewer: newer is applied, the same is there, older is stale, and nothing goes back', async () => {
    const put = (version: number | bigint, name: string): Promise<string> =>
      run((writes) => writes.upsertIfNewer('things', { key: { id: 'a' }, set: { name }, newer: { version } }))
    expect(await put(2, 'two')).toBe('applied')
    expect(await put(2, 'two')).toBe('already')
    expect(await put(1, 'one')).toBe('stale')
    expect(await row()).toMatchObject({ name: 'two', version: '2' })
    expect(await put(10, 'ten')).toBe('applied')
    expect(await put(9, 'nine')).toBe('stale')
    expect(await row()).toMatchObject({ name: 'ten', version: '10' })
  })

  can('upsertIfNewer: a row that has no version yet is older than any', async () => {
    await insert({ name: 'none' })
    const put = (): Promise<string> =>
      run((writes) => writes.upsertIfNewer('things', { key: { id: 'a' }, set: { name: 'one' }, newer: { version: 1 } }))
    expect([await put(), await put()]).toEqual(['applied', 'already'])
    expect(await row()).toMatchObject({ name: 'one', version: '1' })
  })

  can('upsertIfNewer: what is for new rows is not written to an old one', async () => {
    const put = (version: number, note: string): Promise<string> =>
      run((writes) => writes.upsertIfNewer('things', { key: { id: 'a' }, setOnInsert: { note }, newer: { version } }))
    const answers = [await put(1, 'born'), await put(2, 'again'), await put(2, 'again'), await put(1, 'again')]
    expect(answers).toEqual(['applied', 'applied', 'already', 'stale'])
    expect(await row()).toMatchObject({ note: 'born', version: '2' })
  })

  can('upsertIfNewer tells versions apart that no double can', async () => {
    const put = (version: bigint): Promise<string> =>
      run((writes) => writes.upsertIfNewer('things', { key: { id: 'a' }, newer: { version } }))
    expect(await put(9_007_199_254_740_993n)).toBe('applied')
    expect(await put(9_007_199_254_740_992n)).toBe('stale')
    expect(await put(9_007_199_254_740_993n)).toBe('already')
    expect(await put(9_007_199_254_740_994n)).toBe('applied')
    expect(await row()).toMatchObject({ version: '9007199254740994' })
  })
}

export function repeatedConditions(subject: Subject): void {
  const { can, run, row } = subject

  can('upsertIf: a new row, the expected one, the same again, and neither', async () => {
    const put = (expect: string | null, name: string, note = 'born'): Promise<string> =>
      run((writes) =>
        writes.upsertIf('things', { key: { id: 'a' }, expect: { name: expect }, set: { name }, setOnInsert: { note } }),
      )
    expect(await put('pending', 'paid')).toBe('applied')
    expect(await put('pending', 'paid', 'again')).toBe('already')
    expect(await put('pending', 'failed', 'again')).toBe('conflict')
    expect(await put(null, 'failed', 'again')).toBe('conflict')
    expect(await row()).toMatchObject({ name: 'paid', note: 'born' })
    expect(await put('paid', 'refunded', 'again')).toBe('applied')
    expect(await put('paid', 'refunded', 'again')).toBe('already')
    expect(await row()).toMatchObject({ name: 'refunded', note: 'born' })
  })

  can(
    'upsertIf: what is set may be what is expected, several columns at once, and without columns for new rows',
    async () => {
      const put = (from: number, to: number): Promise<string> =>
        run((writes) =>
          writes.upsertIf('things', {
            key: { id: 'a' },
            expect: { version: from, name: `v${from}` },
            set: { version: to, name: `v${to}`, visits: 10 * to },
          }),
        )
      expect([await put(1, 1), await put(1, 1), await put(2, 3), await put(1, 2)]).toEqual([
        'applied',
        'already',
        'conflict',
        'applied',
      ])
      expect(await row()).toMatchObject({ version: '2', name: 'v2', visits: '20' })
      // Half of what is expected is not enough.
      await run((writes) => writes.upsert('things', { key: { id: 'a' }, set: { name: 'v9' } }))
      expect(await put(2, 3)).toBe('conflict')
      expect(await row()).toMatchObject({ version: '2', name: 'v9', visits: '20' })
    },
  )

  can('upsertIf: null is expected and set like any value', async () => {
    const put = (from: string | null, to: string | null): Promise<string> =>
      run((writes) => writes.upsertIf('things', { key: { id: 'a' }, expect: { name: from }, set: { name: to } }))
    const answers = []
    for (const [from, to] of [
      [null, 'one'],
      ['one', null],
      ['one', null],
      [null, 'two'],
      [null, 'three'],
    ] as const) {
      answers.push(await put(from, to))
    }
    expect(answers).toEqual(['applied', 'applied', 'already', 'applied', 'conflict'])
    expect(await row()).toMatchObject({ name: 'two' })
  })
}

export function repeatedChanges(subject: Subject): void {
  const { can, run, insert, row, add, append, once, events } = subject

  can('compareAndSet: applied, already, conflict, missing', async () => {
    const swap = (id: string, from: string | null, to: string | null): Promise<string> =>
      run((writes) => writes.compareAndSet('things', { key: { id }, expect: { name: from }, set: { name: to } }))
    expect(await swap('a', 'one', 'two')).toBe('missing')
    await insert({ name: 'one' })
    expect(await swap('a', 'one', 'two')).toBe('applied')
    expect(await swap('a', 'one', 'two')).toBe('already')
    expect(await swap('a', 'three', 'four')).toBe('conflict')
    expect(await swap('a', 'two', 'two')).toBe('already')
    expect(await swap('a', null, 'five')).toBe('conflict')
    expect(await swap('a', 'two', null)).toBe('applied')
    expect(await swap('a', 'two', null)).toBe('already')
    expect(await swap('a', null, 'six')).toBe('applied')
    expect(await row()).toMatchObject({ name: 'six' })
  })

  can('addOnce counts an event once, and several columns at once', async () => {
    expect(await add('e-1')).toBe('missing')
    await insert({ visits: 5, version: 100 })
    expect(await add('e-1', 2)).toBe('applied')
    expect(await add('e-1', 2)).toBe('already')
    expect(await add('e-2', -3)).toBe('applied')
    expect(await row()).toMatchObject({ visits: '4' })
    const both = await run((writes) =>
      writes.addOnce('things', { key: { id: 'a' }, add: { visits: 1, version: -1n }, once: once('e-3') }),
    )
    expect(both).toBe('applied')
    expect(await row()).toMatchObject({ visits: '5', version: '99' })
  })

  can('addOnce begins at 0 where nothing was counted, and is exact beyond the range of a double', async () => {
    await insert({})
    await add('e-1', 9_007_199_254_740_992n)
    await add('e-2', 1)
    expect(await row()).toMatchObject({ visits: '9007199254740993' })
  })

  can('appendOnce: an event once, at the version that was expected', async () => {
    expect(await append('e-1', 0)).toBe('appended')
    expect(await append('e-1', 0)).toBe('already')
    expect(await append('e-2', 0)).toBe('conflict')
    expect(await append('e-3', 2)).toBe('conflict')
    expect(await append('e-2', 1)).toBe('appended')
    // Whoever repeats it after reading the stream anew.
    expect(await append('e-2', 2)).toBe('already')
    expect(await append('e-2', 0, 'another stream')).toBe('conflict')
    expect(await append('e-4', 0, 'another stream')).toBe('appended')
    expect(await events({ event_id: 'e-2' })).toMatchObject({ stream: 's', version: '2', body: 'b' })
  })
}
