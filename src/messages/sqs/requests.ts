// Calls to SQS: bounded in time, and with an answer per entry where SQS returns success for a batch of which entries failed.

import type { SqsBatchResult, SqsCallOptions, SqsFailedEntry } from '../../clients/sqs.ts'
import type { Clock } from '../../core/clock.ts'

/** The SDK itself waits for an answer for ever. */
export async function answerWithin<T>(
  limit: { readonly clock: Clock; readonly limitMs: number; readonly controller?: AbortController },
  call: (options: SqsCallOptions) => Promise<T>,
): Promise<T> {
  const { clock, limitMs, controller = new AbortController() } = limit
  const cancel = clock.schedule(() => controller.abort(), limitMs)
  try {
    return await call({ abortSignal: controller.signal })
  } catch (error) {
    throw controller.signal.aborted ? new Error(`SQS gave no answer within ${limitMs} ms`, { cause: error }) : error
  } finally {
    cancel()
  }
}

/** Each entry's error, undefined where it was done. What the reply does not name was not done. */
export function failuresIn(result: SqsBatchResult, entries: readonly { readonly Id: string }[]): (Error | undefined)[] {
  const done = new Set(result.Successful?.map(({ Id }) => Id))
  const failed = new Map(result.Failed?.map((entry) => [entry.Id, entry]))
  return entries.map(({ Id }) => (done.has(Id) ? undefined : errorOf(failed.get(Id))))
}

function errorOf(failed: SqsFailedEntry | undefined): Error {
  if (!failed) return new Error('SQS did not say what became of it')
  return Object.assign(
    new Error(`SQS refused it: ${failed.Code ?? 'no code'}${failed.Message ? `, ${failed.Message}` : ''}`),
    {
      code: failed.Code,
    },
  )
}

export function chunksOf<Item>(items: readonly Item[], size: number): Item[][] {
  return Array.from({ length: Math.ceil(items.length / size) }, (_, index) =>
    items.slice(index * size, (index + 1) * size),
  )
}
