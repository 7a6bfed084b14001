import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { describe, expect, test, vi } from 'vitest'
import { codeOf, define, openShop, thrown } from '../../../test/operations/shop.ts'
import type { Body } from '../../../test/operations/shop.ts'
import { FinalError } from '../errors.ts'

describe('versions', () => {
  test('code between the steps may change: steps are found by name', async () => {
    const { process } = openShop()
    const a = vi.fn(() => 1)
    await thrown(
      define(process(), async (op) => {
        await op.step('a', a)
        throw new Error('deploy')
      }).run('1', {}),
    )
    const result = await define(process(), async (op) => {
      const before = await op.step('new', () => 'new')
      return [before, await op.step('a', a)]
    }).run('1', {})
    expect(result.value).toEqual(['new', 1])
    expect(a).toHaveBeenCalledTimes(1)
  })

  test('a stored step that the code no longer asks for is told', async () => {
    const { process } = openShop()
    await thrown(
      define(process(), async (op) => {
        await op.step('old', () => 1)
        throw new Error('deploy')
      }).run('1', {}),
    )
    const drifted: unknown[] = []
    const listen = (event: unknown): void => void drifted.push(event)
    subscribe('onceonly:drifted', listen)
    await define(process(), () => 'done').run('1', {})
    unsubscribe('onceonly:drifted', listen)
    expect(drifted).toMatchObject([{ what: 'step-not-asked-for', step: 'old' }])
  })

  test('what a newer version began, an older one does not touch', async () => {
    const { process } = openShop()
    const run = vi.fn(() => 1)
    await thrown(
      define(
        process(),
        async (op) => {
          await op.step('a', run)
          throw new Error('later')
        },
        { version: 2 },
      ).run('1', {}),
    )
    expect(await codeOf(define(process(), (op) => op.step('a', run), { version: 1 }).run('1', {}))).toBe(
      'NEWER_VERSION',
    )
    expect(run).toHaveBeenCalledTimes(1)
    expect((await define(process(), (op) => op.step('a', run), { version: 3 }).run('1', {})).value).toBe(1)
  })

  test('an undo that the code no longer has parks the operation instead of being guessed', async () => {
    const { process } = openShop()
    await thrown(
      define(process(), async (op) => {
        await op.step('a', { run: () => 1, undo: () => {} })
        throw new Error('deploy')
      }).run('1', {}),
    )
    const changed = define(process(), () => {
      throw new FinalError('no')
    })
    expect(await codeOf(changed.run('1', {}))).toBe('PARKED')
  })

  test('a worker leaves what a newer version began as it is, and counts no attempt', async () => {
    const { process, clock } = openShop()
    const run = vi.fn(() => Promise.reject(new Error('later')))
    const body: Body = (op) => op.step('a', run)
    await thrown(define(process(), body, { version: 2 }).run('1', {}))
    const once = process()
    const old = define(once, body, { version: 1 })
    const recovery = once.recover([old], { everyMs: 1_000 })
    await clock.advance(120_000)
    await recovery.stop()
    expect(await old.status('1')).toMatchObject({ state: 'waiting', version: 2, attempt: 1 })
    expect(run).toHaveBeenCalledTimes(1)
  })

  test('what a newer version went on with, an older one does not touch', async () => {
    const { process } = openShop()
    const failing: Body = async (op) => {
      await op.step('a', () => 1)
      throw new Error('later')
    }
    await thrown(define(process(), failing, { version: 1 }).run('1', {}))
    await thrown(define(process(), failing, { version: 2 }).run('1', {}))
    const old = define(process(), failing, { version: 1 })
    expect(await codeOf(old.run('1', {}))).toBe('NEWER_VERSION')
    expect(await old.status('1')).toMatchObject({ version: 2 })
  })

  test('what an operation came to is replayed as it was: upgrade is for the versions of createOnce', async () => {
    const upgrade = vi.fn(() => 'upgraded')
    const checkout = define(openShop().process({ version: 3, upgrade }), () => 'as it was')
    await checkout.run('1', {})
    expect((await checkout.run('1', {})).value).toBe('as it was')
    expect(upgrade).not.toHaveBeenCalled()
  })
})
