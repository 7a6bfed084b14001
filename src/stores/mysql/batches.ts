// Calls of one moment by one statement, one round trip and one commit. Invariant: a batch decides only what it can decide for all
// alike; what it leaves open is asked for by a statement of its own.

import { lane } from '../../core/lane.ts'
import type { Row } from '../../clients/mysql.ts'
import type { ServerLimits } from './fitness.ts'
import { byKey } from './statements.ts'
import type { Call } from './statements.ts'
import { retried } from './transactions.ts'
import type { MysqlGround } from './transactions.ts'

// Beyond some dozens a larger batch saves little, and its callers wait for each other. Four at once, as the server syncs the
// log for all that commit meanwhile: with two, 64 callers got through a third less; with more, the batches become small.
const batching = { batchMax: 128, dispatchesMax: 4 }

/** A statement is one message that client and server hold in memory whole: a few outcomes of a mebibyte, not hundreds. */
const statementLengthMax = 4 * 1024 * 1024

interface Statements<Asked extends Call> {
  together(calls: readonly Asked[]): string
  /** The answer to each of so many calls; undefined for those that must be asked alone. */
  answers(found: readonly Row[], count: number): readonly (string | undefined)[]
  alone(call: Asked): string
}

/** Calls of one moment by one statement; a lone one, and what that statement cannot decide, by one of its own. */
export function together<Client, Asked extends Call>(
  { clock, connections, ready }: MysqlGround<Client>,
  statements: Statements<Asked>,
): (call: Asked) => Promise<string> {
  const askAlone = async (call: Asked): Promise<string> =>
    (await retried(clock, () => connections.run(statements.alone(call))))[0]![0]!
  const dispatch = async (batch: readonly Asked[]): Promise<readonly (string | undefined)[]> => {
    // A batch of one would cost it half as much again.
    if (batch.length === 1) return [await askAlone(batch[0]!)]
    const answers = new Map<Asked, string | undefined>()
    for (const part of partsOf(batch.toSorted(byKey), await ready(connections))) {
      const found = await retried(clock, () => connections.run(statements.together(part)))
      statements.answers(found, part.length).forEach((answer, index) => answers.set(part[index]!, answer))
    }
    return batch.map((call) => answers.get(call))
  }
  const ask = lane({ ...batching, dispatch })
  return async (call) => (await ask(call)) ?? askAlone(call)
}

/** As many calls as fit into one message, in their order. */
function partsOf<Asked extends Call>(batch: readonly Asked[], { packetBytesMax }: ServerLimits): Asked[][] {
  // Half of it, as there is more to a statement than the values.
  const lengthMax = Math.min(statementLengthMax, packetBytesMax / 2)
  const parts: Asked[][] = [[]]
  let length = 0
  for (const call of batch) {
    if (length > 0 && length + call.length > lengthMax) {
      parts.push([])
      length = 0
    }
    parts.at(-1)!.push(call)
    length += call.length
  }
  return parts
}
