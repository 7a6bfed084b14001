// Feeds a parser with hostile input until so many bytes are gone through. Anything but an answer or its own typed error is a
// finding, told with the seed that brings it back.

import { OnceError } from '../../src/core/errors.ts'
import { mixed, seededRandom } from '../../src/testing/seeded-random.ts'
import { hostileBytes } from './inputs.ts'
import type { Parser } from './parsers.ts'

export interface Fuzzed {
  readonly inputs: number
  readonly bytes: number
  readonly refused: number
}

export function fuzz(parser: Parser, seed: number, bytesMin: number): Fuzzed {
  const samples = parser.samples.map((sample) => Buffer.from(sample as Uint8Array))
  const counts = { inputs: 0, bytes: 0, refused: 0 }
  for (; counts.bytes < bytesMin; counts.inputs++) {
    // A stream for each input, so that one of them can be had again without those before it.
    const input = hostileBytes(seededRandom(mixed(seed, counts.inputs)), samples)
    // An empty input is one, too, and the loop must end.
    counts.bytes += Math.max(1, input.length)
    const refused = tryOne(parser, input, `seed ${seed}, input ${counts.inputs}`)
    if (refused) counts.refused++
  }
  return counts
}

function tryOne(parser: Parser, input: Buffer, which: string): boolean {
  try {
    parser.parse(input)
    return false
  } catch (error) {
    if (error instanceof OnceError && error.code === parser.throws) return true
    throw new Error(`${parser.name}: ${which}, ${JSON.stringify(input.toString('latin1'))}: ${String(error)}`, {
      cause: error,
    })
  }
}
