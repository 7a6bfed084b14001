// Many callers at once: one is applied, and no update is lost.
import { expect } from 'vitest'
import { seededRandom } from '../../../src/testing/seeded-random.ts'
import { stateMachine, type Writes } from '../../../src/writes/index.ts'
import { insist, type Subject } from './subject.ts'

const counted = (answers: readonly string[]): Record<string, number> => {
  const counts: Record<string, number> = {}
  for (const answer of answers) counts[answer] = (counts[answer] ?? 0) + 1
  return counts
}

const together = <T>(count: number, work: (index: number) => Promise<T>): Promise<T[]> =>
  Promise.all(Array.from({ length: count }, (_, index) => work(index)))

export function racingUpserts(subject: Subject): void {
  const { can, run, insert, row } = subject

  can('insertOnce: of a hundred one is applied', async () => {
    const answers = await together(100, (index) => insist(() => insert({ name: `caller ${index}` })))
    expect(counted(answers)).toEqual({ applied: 1, already: 99 })
    expect((await row())!['name']).toBe(`caller ${answers.indexOf('applied')}`)
  })

  can('upsert: of a hundred that want the same one is applied', async () => {
    const answers = await together(100, () =>
      insist(() => run((writes) => writes.upsert('things', { key: { id: 'a' }, set: { name: 'same' } }))),
    )
    expect(counted(answers)).toEqual({ applied: 1, already: 99 })
  })

  can('upsertIf: of a hundred that want the same one is applied, whether the row is new or there', async () => {
    const put = (from: string, name: string, note: string): Promise<string> =>
      insist(() =>
        run((writes) =>
          writes.upsertIf('things', { key: { id: 'a' }, expect: { name: from }, set: { name }, setOnInsert: { note } }),
        ),
      )
    const born = await together(100, (index) => put('none', 'pending', `caller ${index}`))
    expect(counted(born)).toEqual({ applied: 1, already: 99 })
    expect((await row())!['note']).toBe(`caller ${born.indexOf('applied')}`)
    expect(counted(await together(100, () => put('pending', 'paid', 'late')))).toEqual({ applied: 1, already: 99 })
  })

  can('upsertIf: of changes that exclude each other one is applied', async () => {
    await insert({ name: 'pending' })
    const answers = await together(20, (index) =>
      insist(() =>
        run((writes) =>
          writes.upsertIf('things', {
            key: { id: 'a' },
            expect: { name: 'pending' },
            set: { name: index % 2 ? 'paid' : 'failed' },
          }),
        ),
      ),
    )
    expect(counted(answers)).toEqual({ applied: 1, already: 9, conflict: 10 })
  })

  can('upsertIfNewer: versions that arrive in any order and twice leave the newest', async () => {
    const seed = Date.now()
    const random = seededRandom(seed)
    const versions = Array.from({ length: 40 }, (_, index) => ({ version: 1 + (index % 20), at: random.fraction() }))
      .toSorted((a, b) => a.at - b.at)
      .map(({ version }) => version)
    const put = (version: number): Promise<string> =>
      run((writes) =>
        writes.upsertIfNewer('things', { key: { id: 'a' }, set: { name: `v${version}` }, newer: { version } }),
      )
    const answers = await Promise.all(versions.map((version) => insist(() => put(version))))
    expect(await row(), `seed ${seed}`).toMatchObject({ version: '20', name: 'v20' })
    const applied = versions.filter((_, index) => answers[index] === 'applied')
    expect(new Set(applied).size, `seed ${seed}: a version was applied twice`).toBe(applied.length)
    expect(applied, `seed ${seed}`).toContain(20)
  })
}

export function racingChanges(subject: Subject): void {
  const { can, run, insert, row, add, append } = subject

  can('compareAndSet: no update is lost', async () => {
    await insert({ visits: 0 })
    const increment = async (): Promise<void> => {
      for (;;) {
        const visits = Number((await row())!['visits'])
        const request = { key: { id: 'a' }, expect: { visits }, set: { visits: visits + 1 } }
        if ((await insist(() => run((writes) => writes.compareAndSet('things', request)))) === 'applied') return
      }
    }
    await together(8, async () => {
      for (let count = 0; count < 5; count++) await increment()
    })
    expect(await row()).toMatchObject({ visits: '40' })
  })

  can('addOnce: fifty events, each delivered twice, are fifty', async () => {
    await insert({ visits: 0 })
    const answers = await together(100, (index) => add(`e-${index % 50}`))
    expect(counted(answers)).toEqual({ applied: 50, already: 50 })
    expect(await row()).toMatchObject({ visits: '50' })
  })

  can('appendOnce: of twenty events for one place one is appended', async () => {
    const answers = await together(20, (index) => append(`e-${index}`, 0))
    expect(counted(answers)).toEqual({ appended: 1, conflict: 19 })
  })

  can('appendOnce: of a hundred deliveries of one event one is appended', async () => {
    const answers = await together(100, () => append('e', 0))
    expect(counted(answers)).toEqual({ appended: 1, already: 99 })
  })

  can('a transition of a state machine is applied once', async () => {
    await insert({ name: 'created' })
    const answers = await together(100, () =>
      insist(() => run((writes) => paymentStates(writes).transition(undefined, 'a', 'created', 'paid'))),
    )
    expect(counted(answers)).toEqual({ applied: 1, already: 99 })
  })

  can('of two transitions that exclude each other one is applied', async () => {
    await insert({ name: 'created' })
    const answers = await together(20, (index) =>
      insist(() =>
        run((writes) => paymentStates(writes).transition(undefined, 'a', 'created', index % 2 ? 'paid' : 'failed')),
      ),
    )
    expect(counted(answers)).toEqual({ applied: 1, already: 9, conflict: 10 })
  })
}

function paymentStates(writes: Writes) {
  return stateMachine(
    { created: ['paid', 'failed'], paid: [], failed: [] },
    { on: (_tx: undefined) => writes, table: 'things', state: 'name' },
  )
}
