// After a sweep nothing of what an expired operation held is left in the store's tables. The rows themselves are looked at: `show`
// hides the contents of a tombstone, swept or not.

import { expect, test } from 'vitest'
import { key } from '../../src/core/key.ts'
import type { StepLedger, Sweepable } from '../../src/core/store.ts'
import type { ContractSubject } from '../../src/testing/store-contract.ts'
import { bytesOf, grantedOf, hourMs, leaseMs, request } from '../../src/testing/store-contract.ts'

export interface DumpedSubject<Tx = unknown> extends ContractSubject<Tx> {
  /** Every row of every table of the store. */
  dump(): Promise<readonly object[]>
}

const retention = { keepMs: hourMs, tombstoneMs: hourMs }
const contents = ['the input', 'a record of a step', 'the result']

/** In which of the rows each of the contents is, as bytes or in any text form that a database has for them. */
function found(rows: readonly object[]): readonly string[] {
  const texts = rows.flatMap((row) => Object.values(row).map(textOf))
  return contents.filter((content) => {
    const forms = [content, Buffer.from(content).toString('hex'), Buffer.from(content).toString('base64')]
    return texts.some((text) => forms.some((form) => text.includes(form)))
  })
}

function textOf(value: unknown): string {
  return value instanceof Uint8Array ? Buffer.from(value).toString('latin1') : String(value)
}

export function sweptTest(create: () => Promise<DumpedSubject>): void {
  test('after a sweep nothing of the input, the steps and the result of an expired operation is left in the tables', async () => {
    const subject = await create()
    const store = subject.store as ContractSubject['store'] & StepLedger & Sweepable
    const sweep = async (): Promise<void> => {
      for (let more = true; more;) ({ more } = await store.sweep({ limit: 100 }))
    }
    try {
      const operation = key('shop/operations/checkout', 'order-42')
      const asked = { ...request({ retention }), input: bytesOf('the input') }
      const claim = grantedOf(await store.enlist(operation, asked))
      const records = [{ name: 'charge', revision: 1, content: bytesOf('a record of a step') }]
      expect(await store.advance(claim, { records, becomes: { to: 'running', leaseMs } })).toBe('done')
      const settled = { to: 'settled', outcome: bytesOf('the result'), retention } as const
      expect(await store.advance(claim, { records: [], becomes: settled })).toBe('done')
      await sweep()
      expect(found(await subject.dump()), 'before it has expired').toEqual(contents)
      // Beyond the lease as well: until then a sweep need not look at it.
      await subject.advance(leaseMs + hourMs)
      await sweep()
      expect(found(await subject.dump()), 'as a tombstone').toEqual([])
      expect(await store.claim(operation, request())).toEqual({ is: 'expired' })
      await subject.advance(hourMs)
      await sweep()
      const rows = await subject.dump()
      expect(rows.filter((row) => Object.values(row).some((value) => textOf(value).includes('order-42')))).toEqual([])
    } finally {
      await subject.destroy()
    }
  })
}

/** On a store that keeps no operations: the outcome of a call, and the input of an attempt that never reported. */
export function sweptOutcomeTest(create: () => Promise<DumpedSubject>): void {
  test('after a sweep nothing of an expired outcome or input is left in the store', async () => {
    const subject = await create()
    const store = subject.store as ContractSubject['store'] & Sweepable
    try {
      const claim = grantedOf(await store.claim(key('shop', 'order-42'), request({ retention })))
      expect(await store.settle(claim, bytesOf('the result'), retention)).toBe('done')
      await store.claim(key('shop', 'order-43'), { ...request({ retention }), input: bytesOf('the input') })
      expect(found(await subject.dump()), 'before they have expired').toEqual(['the input', 'the result'])
      await subject.advance(leaseMs + hourMs + 1_000)
      for (let more = true; more;) ({ more } = await store.sweep({ limit: 100 }))
      expect(found(await subject.dump()), 'as tombstones').toEqual([])
      for (const id of ['order-42', 'order-43']) {
        expect(await store.claim(key('shop', id), request())).toEqual({ is: 'expired' })
      }
    } finally {
      await subject.destroy()
    }
  })
}
