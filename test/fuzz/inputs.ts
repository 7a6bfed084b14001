// Hostile input: samples that are right, bent a little or a lot. The same seed gives the same input.

import type { SeededRandom } from '../../src/testing/seeded-random.ts'

/** What parsers stumble over: ends of strings and of lines, brackets, escapes, numbers beyond a double, the edges of UTF-8. */
const spice = [
  '"',
  '\\',
  '\\u0000',
  '\\ud800',
  ',',
  ';',
  ':',
  '{',
  '}',
  '[',
  ']',
  '\r\n',
  '\u0000',
  '\u007f',
  '\u0085',
  '\ufeff',
  '\ufffd',
  'é',
  '𝄞',
  '__proto__',
  'constructor',
  '-0',
  '1e400',
  '9007199254740993',
  '--',
  '=',
  '%',
  '%2F',
  '../',
  '//',
  '@',
  'true',
  'null',
]

/** As Latin-1 text is written, every byte can come up. */
export function hostileBytes(random: SeededRandom, samples: readonly Buffer[]): Buffer {
  let bytes: Buffer = Buffer.from(random.pick(samples))
  const rounds = random.integer(0, 4)
  for (let round = 0; round < rounds; round++) bytes = bend(random, bytes, samples)
  // Beyond this a single input would eat the budget of thousands.
  return bytes.subarray(0, 4_096)
}

function bend(random: SeededRandom, bytes: Buffer, samples: readonly Buffer[]): Buffer {
  const at = random.integer(0, bytes.length)
  const [head, tail] = [bytes.subarray(0, at), bytes.subarray(at)]
  switch (random.weighted({ flip: 3, spice: 4, cut: 2, drop: 2, repeat: 1, splice: 2, noise: 1 })) {
    case 'flip': {
      const bent = Buffer.from(bytes)
      if (bent.length > 0) bent[random.integer(0, bent.length - 1)]! ^= 1 << random.integer(0, 7)
      return bent
    }
    case 'spice':
      return Buffer.concat([head, Buffer.from(random.pick(spice)), tail])
    case 'cut':
      return head
    case 'drop':
      return Buffer.concat([head, tail.subarray(random.integer(0, tail.length))])
    case 'repeat':
      return Buffer.concat([head, ...Array.from({ length: random.integer(2, 40) }, () => tail)])
    case 'splice': {
      const other = random.pick(samples)
      return Buffer.concat([head, other.subarray(random.integer(0, other.length))])
    }
    case 'noise':
      return Buffer.concat([head, random.bytes(random.integer(1, 64)), tail])
  }
}
