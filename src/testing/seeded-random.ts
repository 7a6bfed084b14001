// Repeatable chance: the same seed gives the same numbers. A fork is a separate stream, so that what one process draws does not
// depend on how much another process drew.

import type { Random } from '../core/clock.ts'

export interface SeededRandom extends Random {
  /** An integer from `low` to `high`, both included. */
  integer(low: number, high: number): number
  /** True with this probability. */
  chance(probability: number): boolean
  pick<T>(choices: readonly T[]): T
  /** A name of these, as often as its weight among them says. */
  weighted<Name extends string>(weights: Readonly<Record<Name, number>>): Name
  fork(stream: number): SeededRandom
}

/** Of every byte: tokens are made all the time. */
const hexOf = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, '0'))

export function seededRandom(seed: number): SeededRandom {
  const next = generator(seed)
  const fraction = (): number => next() / 2 ** 32
  const hex = (): string => {
    const word = next()
    return hexOf[word >>> 24]! + hexOf[(word >>> 16) & 0xff]! + hexOf[(word >>> 8) & 0xff]! + hexOf[word & 0xff]!
  }
  return {
    fraction,
    uuid() {
      const [a, b, c, d] = [hex(), hex(), hex(), hex()]
      return `${a}-${b.slice(0, 4)}-4${b.slice(5)}-a${c.slice(1, 4)}-${c.slice(4)}${d}`
    },
    bytes: (count) => Uint8Array.from({ length: count }, () => next() & 0xff),
    integer: (low, high) => low + Math.floor(fraction() * (high - low + 1)),
    chance: (probability) => fraction() < probability,
    pick: (choices) => choices[Math.floor(fraction() * choices.length)]!,
    weighted(weights) {
      const names = Object.keys(weights) as (keyof typeof weights)[]
      let left = fraction() * names.reduce((sum, name) => sum + weights[name], 0)
      return names.find((name) => (left -= weights[name]) < 0) ?? names.at(-1)!
    },
    fork: (stream) => seededRandom(mixed(seed, stream)),
  }
}

/** Two numbers as one of 32 bits, in which every bit of both counts (the finish of MurmurHash3). */
export function mixed(a: number, b: number): number {
  // A seed may be larger than 32 bits: its upper part counts, too.
  let hash = Math.imul((a | 0) ^ Math.imul(Math.floor(a / 2 ** 32), 0x85ebca6b), 0xcc9e2d51) ^ (b | 0)
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b)
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35)
  return (hash ^ (hash >>> 16)) >>> 0
}

// sfc32: small, fast, and passes the usual batteries of tests.
function generator(seed: number): () => number {
  let [a, b, c, counter] = [mixed(seed, 1), mixed(seed, 2), mixed(seed, 3), 1]
  const next = (): number => {
    const sum = (((a + b) | 0) + counter) | 0
    counter = (counter + 1) | 0
    a = b ^ (b >>> 9)
    b = (c + (c << 3)) | 0
    c = (((c << 21) | (c >>> 11)) + sum) | 0
    return sum >>> 0
  }
  // The first numbers of seeds that are neighbours would be alike.
  for (let round = 0; round < 12; round++) next()
  return next
}
