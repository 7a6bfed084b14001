// Transactions of the client libraries that people use, each for real: what commits has its effect and its outcome, what rolls
// back has neither, and what is undone leaves the transaction usable. The cases are the same on every database.

import { expect, test } from 'vitest'
import { createOnce } from '../../src/core/once.ts'
import { OnceError } from '../../src/core/errors.ts'
import { key, newId } from '../../src/core/key.ts'
import type { Key } from '../../src/core/key.ts'
import type { Claim, ClaimRequest, InTransaction, Inspectable, Store, Transactional } from '../../src/core/store.ts'

export interface TransactionClient<Tx> {
  readonly name: string
  /** Commits when the work resolves, rolls back when it throws. */
  run(work: (tx: Tx, addEffect: (name: string) => Promise<unknown>) => Promise<void>): Promise<void>
  close(): Promise<unknown>
}

export interface ClientTransactions<Tx> {
  /** Another one at each call. */
  store(): Store & Transactional<unknown, Tx> & Inspectable
  clients(): readonly TransactionClient<Tx>[]
  /** The names of the effects that are committed, in order. */
  effects(): Promise<readonly string[]>
  /** What is no open transaction. */
  wrong(): Promise<{ readonly values: readonly unknown[]; close(): Promise<unknown> }>
  /** A client that is in no transaction. */
  outside(): Promise<{ readonly tx: Tx; release(): void }>
}

export interface ClientTransactionCases {
  readonly clientNames: readonly string[]
  /** With every character that has a meaning for one of the layers on the way. */
  readonly odd: Key
  /** An effect named "raise X" makes the server raise X; true where that is a conflict with others. */
  readonly errors: { readonly title: string; readonly conflicts: Readonly<Record<string, boolean>> }
}

export const retention = { keepMs: 3_600_000, tombstoneMs: 3_600_000 }

export const bytesOf = (text: string): Uint8Array => new TextEncoder().encode(text)

export function request(changes: Partial<ClaimRequest> = {}): ClaimRequest {
  const token = crypto.randomUUID()
  const policies = { onTakeover: 'run', onExpired: 'refuse' } as const
  return { token, fingerprint: 'f'.repeat(43), leaseMs: 60_000, retention, version: 1, ...policies, ...changes }
}

class Rollback extends Error {}

export async function claimed(store: Pick<InTransaction, 'claim'>, subject: Key): Promise<Claim> {
  const verdict = await store.claim(subject, request({ input: Buffer.from('input?') }))
  if (verdict.is !== 'granted') throw new Error(`expected granted, got ${verdict.is}`)
  return verdict.claim
}

export function clientTransactionCases<Tx>(cases: ClientTransactionCases, ground: ClientTransactions<Tx>): void {
  commitCases(cases, ground)
  undoCases(cases, ground)
  overlapCases(cases, ground)
  errorCases(cases, ground)
}

function named<Tx>(ground: ClientTransactions<Tx>, name: string): TransactionClient<Tx> {
  return ground.clients().find((each) => each.name === name)!
}

function commitCases<Tx>({ clientNames, odd }: ClientTransactionCases, ground: ClientTransactions<Tx>): void {
  test('every library is tested', () => expect(ground.clients().map(({ name }) => name)).toEqual(clientNames))

  test.each(clientNames)('%s: a commit has the effect and its outcome, and the key of odd characters', async (name) => {
    const store = ground.store()
    await named(ground, name).run(async (tx, addEffect) => {
      // A store of its own, so that its first questions go over the transaction, too.
      const inside = ground.store().within(tx)
      const claim = await claimed(inside, odd)
      await addEffect('effect')
      expect(await store.claim(odd, request())).toMatchObject({ is: 'busy' })
      expect(await inside.settle(claim, Buffer.from([0, 255, 39, 63, 92]), retention)).toBe('done')
      expect(await inside.claim(odd, request())).toMatchObject({ is: 'settled' })
    })
    expect(await ground.effects()).toEqual(['effect'])
    expect(await store.claim(odd, request())).toMatchObject({
      is: 'settled',
      outcome: Uint8Array.of(0, 255, 39, 63, 92),
    })
    expect((await store.list({ limit: 10 })).map((entry) => entry.key)).toEqual([odd])
  })

  test.each(clientNames)('%s: a rollback has neither', async (name) => {
    const store = ground.store()
    const work = named(ground, name).run(async (tx, addEffect) => {
      const inside = store.within(tx)
      const claim = await claimed(inside, odd)
      await addEffect('effect')
      await inside.settle(claim, Buffer.from('never'), retention)
      throw new Rollback()
    })
    await expect(work).rejects.toThrow(Rollback)
    expect(await ground.effects()).toEqual([])
    expect(await store.claim(odd, request())).toMatchObject({ is: 'granted', how: 'fresh' })
  })
}

function undoCases<Tx>({ clientNames, odd }: ClientTransactionCases, ground: ClientTransactions<Tx>): void {
  test.each(clientNames)('%s: effects and claims are undone one by one, nested ones too', async (name) => {
    const store = ground.store()
    const inner = key('nested', newId())
    await named(ground, name).run(async (tx, addEffect) => {
      const inside = store.within(tx)
      const outerClaim = await claimed(inside, odd)
      await addEffect('outer')
      const innerClaim = await claimed(inside, inner)
      await addEffect('inner')
      await inside.undoClaim(innerClaim)
      await addEffect('after the inner')
      expect(await inside.claim(odd, request())).toMatchObject({ is: 'busy' })
      await inside.undoEffect(outerClaim)
      await addEffect('instead')
      expect(await inside.settle(outerClaim, Buffer.from('declined'), retention)).toBe('done')
    })
    expect(await ground.effects()).toEqual(['instead'])
    expect(await store.claim(odd, request())).toMatchObject({ is: 'settled', outcome: bytesOf('declined') })
    expect(await store.claim(inner, request())).toMatchObject({ is: 'granted', how: 'fresh' })
  })
}

function overlapCases<Tx>({ clientNames }: ClientTransactionCases, ground: ClientTransactions<Tx>): void {
  test.each(clientNames)('%s: of two runs that overlap in it the second is refused when it begins', async (name) => {
    const once = createOnce({ store: ground.store(), scope: 'overlapping' })
    await named(ground, name).run(async (tx, addEffect) => {
      const slow = Promise.withResolvers<void>()
      const begun = Promise.withResolvers<void>()
      const first = once.within(tx).run('first', async (): Promise<string> => {
        begun.resolve()
        await addEffect('first')
        await slow.promise
        throw new Error('the first is undone')
      })
      await begun.promise
      const second = once.within(tx).run('second', async () => void (await addEffect('refused')))
      await expect(second).rejects.toMatchObject({ code: 'INVALID_ARGUMENT', executed: 'no' })
      slow.resolve()
      await expect(first).rejects.toThrow('the first is undone')
      await once.within(tx).run('second', async () => void (await addEffect('second')))
    })
    expect(await ground.effects()).toEqual(['second'])
    expect(await once.get('first')).toBeUndefined()
    expect(await once.get('second')).toMatchObject({ state: 'settled' })
    await once.close()
  })
}

function errorCases<Tx>({ clientNames, odd, errors }: ClientTransactionCases, ground: ClientTransactions<Tx>): void {
  test.each(clientNames)(`%s: ${errors.title}`, async (name) => {
    const store = ground.store()
    for (const [raised, conflict] of Object.entries(errors.conflicts)) {
      const work = named(ground, name).run(async (_tx, addEffect) => void (await addEffect(`raise ${raised}`)))
      const error = await work.catch((thrown: unknown) => thrown)
      expect(error).toBeInstanceOf(Error)
      expect(store.isConflict(error)).toBe(conflict)
    }
  })

  test('what is not an open transaction is refused by name, and nothing is claimed', async () => {
    const store = ground.store()
    const wrong = await ground.wrong()
    for (const value of [undefined, null, 'tx', 42, {}, [], ...wrong.values]) {
      expect(() => store.within(value as never)).toThrow(OnceError)
    }
    await wrong.close()
    const { tx, release } = await ground.outside()
    const error = await store
      .within(tx)
      .claim(odd, request())
      .catch((thrown: unknown) => thrown)
    release()
    expect(error).toMatchObject({ code: 'INVALID_ARGUMENT', executed: 'no' })
    expect(await store.list({ limit: 10 })).toEqual([])
  })
}
