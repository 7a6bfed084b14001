// A shop whose checkout is an operation on a memory store, with a clock that stands still until it is advanced: what the tests of
// operations share.

import { expect } from 'vitest'
import { OnceError } from '../../src/core/errors.ts'
import { createOnce } from '../../src/core/once.ts'
import type { Once } from '../../src/core/once.ts'
import type { OnceOptions } from '../../src/core/settings.ts'
import { memoryData, memoryStore } from '../../src/stores/memory.ts'
import type { MemoryData, MemoryStore } from '../../src/stores/memory.ts'
import { manualClock } from '../../src/testing/manual-clock.ts'
import type { ManualClock } from '../../src/testing/manual-clock.ts'
import type { Operation, OperationOp, OperationOptions } from '../../src/core/operations.ts'

export interface Shop {
  readonly clock: ManualClock
  readonly data: MemoryData
  /** As another process on the same store would have it. */
  process(options?: Partial<OnceOptions>): Once<MemoryStore, 'codec'>
}

export function openShop(): Shop {
  const clock = manualClock()
  const data = memoryData(clock)
  return {
    clock,
    data,
    process: (options = {}) =>
      createOnce({ store: memoryStore({ data }), scope: 'shop', clock, ...options }) as unknown as Once<
        MemoryStore,
        'codec'
      >,
  }
}

export type Body = (op: OperationOp<never, 'codec'>, input: unknown) => unknown
export function define(
  once: Once<MemoryStore, 'codec'>,
  body: Body,
  options: OperationOptions = {},
): Operation<unknown, unknown> {
  return once.operation('checkout', options, body)
}

export async function thrown(work: Promise<unknown>): Promise<Error> {
  return work.then(
    () => expect.fail('expected an error'),
    (error: unknown) => error as Error,
  )
}

export async function codeOf(work: Promise<unknown>): Promise<string> {
  const error = await thrown(work)
  expect(error).toBeInstanceOf(OnceError)
  return (error as OnceError).code
}

export const never: Promise<never> = new Promise<never>(() => {})

/** A process that dies inside the step with this name: nothing of it is heard again. */
export async function dieIn(
  step: string,
  { process, clock }: Shop,
  body: Body,
  options?: OperationOptions,
): Promise<void> {
  const reached = Promise.withResolvers<void>()
  const dying: Body = (op, input) =>
    body(
      Object.create(op, {
        step: {
          value: (name: string, given: unknown) =>
            name === step
              ? op.step(name, {
                  ...(typeof given === 'object' ? given : {}),
                  run: () => {
                    reached.resolve()
                    return never
                  },
                })
              : op.step(name, given as never),
        },
      }) as OperationOp<never, 'codec'>,
      input,
    )
  void define(process(), dying, options)
    .run('1', { total: 5 })
    .catch(() => {})
  await reached.promise
  // Its heartbeat dies with it: a lease and more pass while the process is not there to extend it.
  await clock.advance(0)
}

/** A function that stops at its step `charge` when that is in doubt. */
export const parkAtCharge: Body = (op) => op.step('charge', { run: () => 'ran', inDoubt: 'park' })

/** An operation whose step `charge` is in doubt, and that parks there. */
export async function leaveChargeInDoubt(here: Shop, body: Body, options?: OperationOptions): Promise<void> {
  await dieIn('charge', here, body, options)
  await here.clock.advance(700_000)
}
