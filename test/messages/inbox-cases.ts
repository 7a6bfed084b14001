// What every inbox on a SQL database promises. Each case is a function of a subject, so that an inbox which is wrong on purpose can be
// given to it (broken-inboxes.test.ts).
import { setTimeout as pause } from 'node:timers/promises'
import { expect } from 'vitest'
import type { Handled, Message } from '../../src/messages/inbox.ts'
import { OnceError } from '../../src/index.ts'
import { type Consumer, type InboxSubject, message } from './inbox-subject.ts'

export type InboxCase = (subject: InboxSubject) => Promise<void>

const kinds = (handled: readonly Handled[]): string[] =>
  handled.map((each) => (each.is === 'refused' ? each.code : each.is))

const numbered = (count: number, given: Partial<Message> = {}): Message[] =>
  Array.from({ length: count }, (_value, index) => message(`m-${index}`, given))

// The database may need a moment to notice that the one who had the message is gone.
async function untilFree<T>(handle: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await handle()
    } catch (error) {
      if (!(error instanceof OnceError) || error.code !== 'IN_FLIGHT') throw error
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
  }
}

// A process that dies in its handler: nothing is committed, and nobody is told.
async function diesInHandler({ inbox, effect, open }: Consumer, delivery: number): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    untilFree(() =>
      inbox.handle(message('m-1'), async (tx) => {
        await effect(tx, `delivery ${delivery}`)
        resolve()
        await new Promise(() => {})
      }),
    ).then(
      (handled) => reject(new Error(`the handler was not called: ${JSON.stringify(handled)}`)),
      () => {},
    )
  })
  await open.die()
}

export const inboxCases: Readonly<Record<string, InboxCase>> = {
  async 'a message that comes again is a duplicate, whichever process gets it'(subject) {
    const [first, second] = [await subject.consumer(), await subject.consumer()]
    const handled = await first.inbox.handle(message('m-1'), (tx) => first.effect(tx, 'm-1'))
    expect(handled).toEqual({ is: 'handled' })
    for (const { inbox, effect } of [first, second]) {
      expect(await inbox.handle(message('m-1'), (tx) => effect(tx, 'again'))).toEqual({ is: 'duplicate' })
    }
    expect(await subject.ground.effects()).toEqual(['m-1'])
  },

  async 'of many deliveries at once, through two processes, one has its effect'(subject) {
    const consumers = [await subject.consumer(), await subject.consumer()]
    const deliver = (count: number): Promise<PromiseSettledResult<Handled>[]> =>
      Promise.allSettled(
        Array.from({ length: count }, (_value, index) => {
          const { inbox, effect } = consumers[index % 2]!
          return inbox.handle(message('m-1'), (tx) => effect(tx, 'm-1'))
        }),
      )
    const ended = await deliver(20)
    expect(ended.filter((each) => each.status === 'fulfilled' && each.value.is === 'handled')).toHaveLength(1)
    for (const each of ended) if (each.status === 'rejected') expect(each.reason).toMatchObject({ code: 'IN_FLIGHT' })
    expect(await subject.ground.effects()).toEqual(['m-1'])
  },

  async 'a handler that fails leaves neither effect nor mark, and the next delivery runs it'(subject) {
    const { inbox, effect } = await subject.consumer()
    const failing = inbox.handle(message('m-1'), async (tx) => {
      await effect(tx, 'failed')
      throw new Error('no mail server')
    })
    await expect(failing).rejects.toThrow('no mail server')
    expect(await subject.ground.effects()).toEqual([])
    expect(await inbox.handle(message('m-1'), (tx) => effect(tx, 'm-1'))).toEqual({ is: 'handled' })
    expect(await subject.ground.effects()).toEqual(['m-1'])
  },

  async 'each consumer has its own marks'(subject) {
    const mailer = await subject.consumer()
    const ledger = await subject.consumer({ consumer: 'ledger' })
    for (const { inbox, effect } of [mailer, ledger]) {
      expect(await inbox.handle(message('m-1'), (tx) => effect(tx, inbox.consumer))).toEqual({ is: 'handled' })
    }
    expect(await subject.ground.effects()).toEqual(['mailer', 'ledger'])
  },

  async 'the same id with another body is not run, and is kept for a person'(subject) {
    const { inbox, effect } = await subject.consumer()
    await inbox.handle(message('m-1'), (tx) => effect(tx, 'm-1'))
    const other = message('m-1', { text: 'another body' })
    expect(await inbox.handle(other, (tx) => effect(tx, 'other'))).toMatchObject({ is: 'refused', code: 'MISMATCH' })
    const both = await inbox.handleBatch([message('m-2'), message('m-2', { text: 'x' })], (tx) => effect(tx, 'm-2'))
    expect(kinds(both)).toEqual(['handled', 'MISMATCH'])
    expect(await subject.ground.effects()).toEqual(['m-1', 'm-2'])
    expect((await inbox.parked()).map(({ id, code }) => [id, code])).toEqual([
      ['m-1', 'MISMATCH'],
      ['m-2', 'MISMATCH'],
    ])
    const { inbox: hasty } = await subject.consumer({ consumer: 'hasty', delivery: 'at-most-once' })
    await hasty.handle(message('m-1'), () => {})
    expect(kinds([await hasty.handle(other, (tx) => effect(tx, 'other'))])).toEqual(['MISMATCH'])
    expect(await hasty.parked()).toHaveLength(1)
  },

  async 'a message that was redriven is not run again, however often it comes, is parked and redriven'(subject) {
    const letters: string[] = []
    const deadLetter = (_message: Message, { code }: { code: string }): void => void letters.push(code)
    const [first, second] = [await subject.consumer({ deadLetter }), await subject.consumer({ deadLetter })]
    await first.inbox.handle(message('m-1'), (tx) => first.effect(tx, 'm-1'))
    const other = message('m-1', { text: 'another body' })
    const third = message('m-1', { text: 'a third body' })
    const old = message('m-2', { sentAtMs: 1 })
    const run = (tx: unknown, { body }: Message): Promise<void> => first.effect(tx, Buffer.from(body).toString())
    for (const each of [other, third, old]) await first.inbox.handle(each, run)
    expect(await first.inbox.redrive()).toBe(3)
    // The second parks it anew while the first has removed it, and has not committed.
    const racing: Promise<unknown>[] = []
    const done = await first.inbox.runRedriven(async (tx, redriven) => {
      racing.push(second.inbox.handle(redriven, run).catch((error: unknown) => error))
      await run(tx, redriven)
    })
    expect(done).toBe(3)
    await Promise.all(racing)
    for (const { inbox } of [first, second]) {
      expect(kinds([await inbox.handle(other, run), await inbox.handle(third, run)])).toEqual([
        'duplicate',
        'duplicate',
      ])
      const both = await inbox.handleBatch([message('m-1'), other], (tx) => first.effect(tx, 'a batch'))
      expect(kinds(both)).toEqual(['duplicate', 'duplicate'])
      // Nobody looks for the mark of a message that is too old.
      expect(kinds([await inbox.handle(old, run)])).toEqual(['TOO_OLD'])
      expect(await inbox.redrive()).toBeGreaterThan(0)
      expect(await inbox.runRedriven(run)).toBe(0)
      expect(await inbox.parked()).toEqual([])
    }
    expect(letters.filter((code) => code === 'MISMATCH').length).toBeLessThanOrEqual(4)
    expect((await subject.ground.effects()).toSorted()).toEqual(['a third body', 'another body', 'body of m-2', 'm-1'])
  },

  async 'of two messages of a batch with one id, the one that is marked is the duplicate, wherever it stands'(subject) {
    const { inbox, effect } = await subject.consumer()
    const other = message('m-1', { text: 'another body' })
    await inbox.handle(message('m-1'), (tx) => effect(tx, 'm-1'))
    const handled = await inbox.handleBatch([other, message('m-1')], (tx) => effect(tx, 'a batch'))
    expect(kinds(handled)).toEqual(['MISMATCH', 'duplicate'])
    expect((await inbox.parked()).map(({ fingerprint }) => fingerprint)).toHaveLength(1)
    // Neither is run by a batch that fails what stands before it under the same key.
    const [first, second, third] = [
      message('m-2', { key: 'k' }),
      message('m-3', { key: 'k' }),
      message('m-3', { key: 'k', text: 'another body' }),
    ]
    const failing = await inbox.handleBatch([first, second, third], () => Promise.reject(new Error('down')))
    expect(kinds(failing)).toEqual(['failed', 'busy', 'busy'])
    expect(await subject.ground.effects()).toEqual(['m-1'])
  },

  async 'a batch is one transaction, with its duplicates told apart, inside of it and before it'(subject) {
    const { inbox, effect } = await subject.consumer()
    await inbox.handle(message('m-3'), (tx) => effect(tx, 'm-3'))
    const batch = [...numbered(6), message('m-1'), message('m-5')]
    const calls: string[][] = []
    const handled = await inbox.handleBatch(batch, async (tx, fresh) => {
      calls.push(fresh.map(({ id }) => id!))
      for (const { id } of fresh) await effect(tx, id!)
    })
    const expected = ['handled', 'handled', 'handled', 'duplicate', 'handled', 'handled', 'duplicate', 'duplicate']
    expect(kinds(handled)).toEqual(expected)
    expect(calls.flat()).toEqual(['m-0', 'm-1', 'm-2', 'm-4', 'm-5'])
    expect((await subject.ground.effects()).toSorted()).toEqual(['m-0', 'm-1', 'm-2', 'm-3', 'm-4', 'm-5'])
  },

  async 'a poison message does not sink its batch'(subject) {
    const { inbox, effect } = await subject.consumer()
    const handled = await inbox.handleBatch(numbered(16), async (tx, fresh) => {
      for (const { id } of fresh) {
        await effect(tx, id!)
        if (id === 'm-11') throw new Error('poison')
      }
    })
    const others = Array.from({ length: 16 }, (_value, index) => `m-${index}`).filter((id) => id !== 'm-11')
    expect(kinds(handled)).toEqual(numbered(16).map(({ id }) => (id === 'm-11' ? 'failed' : 'handled')))
    expect((await subject.ground.effects()).toSorted()).toEqual(others.toSorted())
  },

  async 'what comes after a failed message of its key waits, and other keys do not'(subject) {
    const { inbox, effect } = await subject.consumer()
    const batch = [
      message('a-1', { key: 'a' }),
      message('b-1', { key: 'b' }),
      message('a-2', { key: 'a' }),
      message('b-2', { key: 'b' }),
    ]
    const handler =
      (poison: string | undefined) =>
      async (tx: unknown, fresh: readonly Message[]): Promise<void> => {
        for (const { id } of fresh) {
          if (id === poison) throw new Error('poison')
          await effect(tx, id!)
        }
      }
    expect(kinds(await inbox.handleBatch(batch, handler('a-1')))).toEqual(['failed', 'handled', 'busy', 'handled'])
    expect(await subject.ground.effects()).toEqual(['b-1', 'b-2'])
    const again = kinds(await inbox.handleBatch(batch, handler(undefined)))
    expect(again).toEqual(['handled', 'duplicate', 'handled', 'duplicate'])
    expect(await subject.ground.effects()).toEqual(['b-1', 'b-2', 'a-1', 'a-2'])
  },

  async 'an attempt is counted before the handler runs, so that a message which ends the process is parked'(subject) {
    const attempts = 3
    for (let delivery = 1; delivery <= attempts; delivery++) {
      const dying = await subject.consumer({ attempts })
      await diesInHandler(dying, delivery)
    }
    const { inbox, effect } = await subject.consumer({ attempts })
    const last = await untilFree(() => inbox.handle(message('m-1'), (tx) => effect(tx, 'ran')))
    expect(last).toMatchObject({ is: 'refused', code: 'PARKED' })
    expect(await subject.ground.effects()).toEqual([])
    expect(await inbox.parked()).toMatchObject([{ id: 'm-1', code: 'ATTEMPTS', attempts }])
  },

  async 'a message that keeps failing is parked with its last error, and redriven'(subject) {
    const letters: string[] = []
    const { inbox, effect } = await subject.consumer({
      attempts: 2,
      deadLetter: ({ id }, { code, detail }) => void letters.push(`${id} ${code} ${detail}`),
    })
    const fail = (): never => {
      throw new Error('no such customer')
    }
    await expect(inbox.handle(message('m-1'), fail)).rejects.toThrow('no such customer')
    expect(await inbox.handle(message('m-1'), fail)).toMatchObject({ is: 'refused', code: 'PARKED' })
    expect(await inbox.handle(message('m-1'), fail)).toMatchObject({ is: 'refused', code: 'PARKED' })
    expect(letters).toEqual(['m-1 ATTEMPTS no such customer'])
    expect(await inbox.parked()).toMatchObject([
      { id: 'm-1', code: 'ATTEMPTS', detail: 'no such customer', attempts: 2, isRedriven: false },
    ])
    expect(await inbox.runRedriven((tx) => effect(tx, 'not asked for'))).toBe(0)
    expect(await inbox.redrive()).toBe(1)
    expect(await inbox.runRedriven(fail)).toBe(0)
    expect(await inbox.parked()).toMatchObject([{ attempts: 3, isRedriven: false }])
    expect(await inbox.redrive({ id: 'm-1' })).toBe(1)
    expect(await inbox.runRedriven((tx, { id, body }) => effect(tx, `${id} ${Buffer.from(body).toString()}`))).toBe(1)
    expect(await subject.ground.effects()).toEqual(['m-1 body of m-1'])
    expect(await inbox.parked()).toEqual([])
    expect(await inbox.handle(message('m-1'), fail)).toEqual({ is: 'duplicate' })
  },

  async 'a message whose last attempt is under way elsewhere is not parked, and no dead letter is told of it'(subject) {
    const letters: string[] = []
    const options = { attempts: 1, deadLetter: ({ id }: Message) => void letters.push(id!) }
    const [first, second] = [await subject.consumer(options), await subject.consumer(options)]
    let other: Promise<unknown> = Promise.resolve()
    const handled = await first.inbox.handle(message('m-1'), async (tx) => {
      other = second.inbox.handle(message('m-1'), () => {}).catch((error: unknown) => error)
      // The one writer of SQLite is here, so there the other waits until this has ended.
      await Promise.race([other, pause(300)])
      await first.effect(tx, 'm-1')
    })
    await other
    expect(handled).toEqual({ is: 'handled' })
    expect(await first.inbox.parked()).toEqual([])
    expect(letters).toEqual([])
    expect(await second.inbox.handle(message('m-1'), () => {})).toEqual({ is: 'duplicate' })
    expect(await subject.ground.effects()).toEqual(['m-1'])
  },

  async 'a redriven message whose entity has a newer version by now is not run'(subject) {
    const versionOf = ({ id }: Message): { entity: string; version: number } => ({
      entity: 'order',
      version: Number(id),
    })
    const { inbox, effect } = await subject.consumer({ attempts: 1, versionOf })
    const run = (tx: unknown, { id }: Message): Promise<void> => effect(tx, id!)
    const fail = (): never => {
      throw new Error('not now')
    }
    for (const id of ['1', '3'])
      expect(await inbox.handle(message(id), fail)).toMatchObject({ is: 'refused', code: 'PARKED' })
    expect(await inbox.handle(message('2'), run)).toEqual({ is: 'handled' })
    expect(await inbox.redrive()).toBe(2)
    expect(await inbox.runRedriven(run)).toBe(1)
    expect(await subject.ground.effects()).toEqual(['2', '3'])
    expect(await inbox.parked()).toEqual([])
    expect(await inbox.handle(message('1'), run)).toEqual({ is: 'duplicate' })
  },

  async 'a message older than the window is never run, and one without an id neither'(subject) {
    const letters: string[] = []
    const { inbox, effect } = await subject.consumer({
      windowMs: 60_000,
      deadLetter: (_message, { code }) => void letters.push(code),
    })
    const old = message('m-1', { sentAtMs: Date.now() - 3_600_000 })
    const { id: _id, ...nameless } = message('m-2')
    const batch = [old, nameless, message('m-3', { sentAtMs: Date.now() })]
    const handled = await inbox.handleBatch(batch, async (tx, fresh) => {
      for (const { id } of fresh) await effect(tx, id!)
    })
    expect(kinds(handled)).toEqual(['TOO_OLD', 'NO_ID', 'handled'])
    expect(letters).toEqual(['TOO_OLD', 'NO_ID'])
    expect(await subject.ground.effects()).toEqual(['m-3'])
    expect((await inbox.parked({ code: 'TOO_OLD' })).map(({ id }) => id)).toEqual(['m-1'])
  },

  async 'a version that is not newer than the applied one is stale, in a batch and across processes'(subject) {
    const versionOf = ({ headers }: Message): { entity: string; version: number } | undefined =>
      headers['entity'] === undefined ? undefined : { entity: headers['entity'], version: Number(headers['version']) }
    const changed = (entity: string, version: number): Message =>
      message(`${entity}-${version}`, { headers: { entity, version: String(version) } })
    const [first, second] = [await subject.consumer({ versionOf }), await subject.consumer({ versionOf })]
    const batch = [changed('a', 2), changed('a', 1), changed('b', 7), changed('a', 3)]
    const handled = await first.inbox.handleBatch(batch, async (tx, fresh) => {
      for (const { id } of fresh) await first.effect(tx, id!)
    })
    expect(kinds(handled)).toEqual(['handled', 'STALE', 'handled', 'handled'])
    const late = await second.inbox.handleBatch([changed('b', 6), changed('b', 8)], async (tx, fresh) => {
      for (const { id } of fresh) await second.effect(tx, id!)
    })
    expect(kinds(late)).toEqual(['STALE', 'handled'])
    expect(await second.inbox.handle(changed('b', 6), () => {})).toEqual({ is: 'duplicate' })
    expect(await subject.ground.effects()).toEqual(['a-2', 'b-7', 'a-3', 'b-8'])
    // A failed one raises nothing.
    await expect(
      first.inbox.handle(changed('c', 5), () => {
        throw new Error('not yet')
      }),
    ).rejects.toThrow('not yet')
    expect(await second.inbox.handle(changed('c', 4), () => {})).toEqual({ is: 'handled' })
  },

  async 'ids of any length and any characters are told apart byte for byte'(subject) {
    const { inbox, effect } = await subject.consumer()
    const long = 'x'.repeat(5_000)
    const ids = [
      'A',
      'a',
      '\u00e1',
      'a\u0301',
      ' a',
      'a ',
      long,
      `${long}y`,
      'n\u0000l',
      `'; drop table effects; --`,
      '\ud800',
      '\ud801',
    ]
    const given = { text: 'same' }
    for (const id of ids)
      expect(await inbox.handle(message(id, given), (tx) => effect(tx, 'one'))).toEqual({ is: 'handled' })
    for (const id of ids) expect(await inbox.handle(message(id, given), () => {})).toEqual({ is: 'duplicate' })
    expect(await subject.ground.effects()).toHaveLength(ids.length)
  },

  async 'a handler that outlives its deadline is rolled back, and what it writes later reaches nobody'(subject) {
    const { inbox, effect } = await subject.consumer({ attemptMs: 200 })
    let goOn = (): void => {}
    const late = new Promise<void>((resolve) => (goOn = resolve))
    let written: Promise<void> | undefined
    const hanging = inbox.handle(message('m-1'), async (tx) => {
      await effect(tx, 'before')
      await late
      written = effect(tx, 'after the deadline')
      await written
    })
    await expect(hanging).rejects.toMatchObject({ code: 'DEADLINE_PASSED' })
    goOn()
    await Promise.resolve()
    await written?.catch(() => {})
    expect(await subject.ground.effects()).toEqual([])
    const patient = await subject.consumer()
    expect(await patient.inbox.handle(message('m-1'), (tx) => patient.effect(tx, 'm-1'))).toEqual({ is: 'handled' })
    expect(await subject.ground.effects()).toEqual(['m-1'])
  },

  async 'acknowledged after the commit, and not at all when the handler failed'(subject) {
    const { inbox, effect } = await subject.consumer()
    const order: string[] = []
    const acknowledge = async (): Promise<void> => {
      order.push(`acknowledged with ${(await subject.ground.effects()).length} effects`)
    }
    const delivered = await inbox.deliver(message('m-1'), (tx) => effect(tx, 'm-1'), acknowledge)
    expect(delivered).toEqual({ acknowledged: true })
    expect(order).toEqual(['acknowledged with 1 effects'])
    const failed = await inbox.deliver(
      message('m-2'),
      () => {
        throw new Error('later')
      },
      acknowledge,
    )
    expect(failed).toMatchObject({ acknowledged: false, error: new Error('later') })
    expect(order).toHaveLength(1)
    expect(await inbox.deliver(message('m-1'), () => {}, acknowledge)).toEqual({ acknowledged: true })
    expect(order).toHaveLength(2)
  },

  async 'at-most-once marks and acknowledges before it runs, and at-least-once runs every delivery'(subject) {
    const most = await subject.consumer({ delivery: 'at-most-once', consumer: 'most' })
    const seen: string[] = []
    const fail = async (): Promise<void> => {
      seen.push('run')
      throw new Error('crash')
    }
    const acknowledge = async (): Promise<void> => void seen.push('acknowledged')
    expect(await most.inbox.deliver(message('m-1'), fail, acknowledge)).toEqual({ acknowledged: true })
    expect(seen).toEqual(['acknowledged', 'run'])
    await most.inbox.deliver(message('m-1'), (tx) => most.effect(tx, 'again'), acknowledge)
    expect(await subject.ground.effects()).toEqual([])
    const least = await subject.consumer({ delivery: 'at-least-once', consumer: 'least' })
    for (const time of ['first', 'second'])
      await least.inbox.deliver(message('m-1'), (tx) => least.effect(tx, time), acknowledge)
    expect(await subject.ground.effects()).toEqual(['first', 'second'])
  },

  async 'with a codec nothing of a parked message is stored in the clear'(subject) {
    const codec = {
      encode: (value: unknown) => Buffer.from(JSON.stringify(value)).map((byte) => byte ^ 0x5a),
      decode: (bytes: Uint8Array) => JSON.parse(Buffer.from(bytes.map((byte) => byte ^ 0x5a)).toString()) as unknown,
    }
    const { inbox, effect, open } = await subject.consumer({ attempts: 1, codec })
    const secret = message('m-1', { text: 'card wxyz', headers: { who: 'ada' } })
    await inbox.handle(secret, () => {
      throw new Error('ada has no money')
    })
    const stored = await subject.ground.ask(
      `select concat(message, detail) from ${open.database.tableName('inbox_parked')}`,
    )
    expect(stored.join()).not.toMatch(/ada|wxyz|Y2FyZCB3eHl6/)
    expect(await inbox.parked()).toMatchObject([{ detail: 'ada has no money' }])
    await inbox.redrive()
    expect(await inbox.runRedriven((tx, { body }) => effect(tx, Buffer.from(body).toString()))).toBe(1)
    expect(await subject.ground.effects()).toEqual(['card wxyz'])
  },

  async 'two equal messages in a batch share the fate of the first'(subject) {
    const { inbox, effect } = await subject.consumer()
    const fail = (): never => {
      throw new Error('later')
    }
    expect(kinds(await inbox.handleBatch([message('m-1'), message('m-1')], fail))).toEqual(['failed', 'busy'])
    const handled = await inbox.handleBatch([message('m-1'), message('m-1')], (tx) => effect(tx, 'm-1'))
    expect(kinds(handled)).toEqual(['handled', 'duplicate'])
    expect(await subject.ground.effects()).toEqual(['m-1'])
  },

  async 'a CloudEvent is known by its source and its id together'(subject) {
    const { inbox, effect } = await subject.consumer()
    const event = (source: string): Message => message('same', { headers: { 'ce-source': source, 'ce-id': '1' } })
    for (const source of ['shop', 'warehouse']) {
      expect(await inbox.handle(event(source), (tx) => effect(tx, source))).toEqual({ is: 'handled' })
      expect(await inbox.handle(event(source), () => {})).toEqual({ is: 'duplicate' })
    }
    expect(await subject.ground.effects()).toEqual(['shop', 'warehouse'])
  },

  async 'a redriven message that ends the process is left parked'(subject) {
    const dying = await subject.consumer({ attempts: 1 })
    await dying.inbox.handle(message('m-1'), () => {
      throw new Error('poison')
    })
    await dying.inbox.redrive()
    await new Promise<void>((resolve) => {
      void dying.inbox
        .runRedriven(async () => {
          resolve()
          await new Promise(() => {})
        })
        .catch(() => {})
    })
    await dying.open.die()
    const { inbox } = await subject.consumer({ attempts: 1 })
    let runs = 0
    expect(await inbox.runRedriven(() => void runs++)).toBe(0)
    expect(runs).toBe(0)
    expect(await inbox.parked()).toMatchObject([{ id: 'm-1', attempts: 2, isRedriven: false }])
  },

  async 'a stored offset goes forward only, and commits with its handler'(subject) {
    const { inbox, effect } = await subject.consumer()
    const other = await subject.consumer({ consumer: 'other' })
    const offsets = inbox.offsets!
    expect(await offsets.next('orders 0')).toBeUndefined()
    await inbox.handle(message('m-1'), async (tx) => {
      await effect(tx, 'm-1')
      await offsets.write(tx, 'orders 0', 9_007_199_254_740_993n)
    })
    const failing = inbox.handle(message('m-2'), async (tx) => {
      await offsets.write(tx, 'orders 0', 9_007_199_254_740_999n)
      throw new Error('no')
    })
    await expect(failing).rejects.toThrow('no')
    await offsets.write(undefined, 'orders 0', 5n)
    await offsets.write(undefined, 'orders 1', 7n)
    expect(await offsets.next('orders 0')).toBe(9_007_199_254_740_993n)
    expect(await other.inbox.offsets!.next('orders 0')).toBeUndefined()
    await offsets.forget('orders 0')
    expect([await offsets.next('orders 0'), await offsets.next('orders 1')]).toEqual([undefined, 7n])
  },
}
