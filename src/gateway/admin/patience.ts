// How wrong tokens are slowed down. After a few, the next tokens of an address are checked one per second, right or wrong. A
// guesser is slow, and a person with the right token waits for seconds and not for an unlocking. Other addresses notice
// nothing.

import { isIPv6 } from 'node:net'
import type { Clock } from '../../core/clock.ts'

export interface Patience {
  /** How long the next token of this address waits before it is checked. Undefined: too many wait already. */
  waitMs(address: string): number | undefined
  wrong(address: string): void
  right(address: string): void
}

// A person who mistypes, or has the token of yesterday, needs fewer.
const freeMax = 10
const paceMs = 1_000
// A browser and a person wait this long. A longer wait would hold a connection for nothing.
const waitMaxMs = 10_000
// After this an address is like all others.
const forgottenAfterMs = 60_000
// Memory is bounded. A guesser with more addresses than this still has 64 bits to guess.
const addressesMax = 1_000

interface Guesser {
  wrong: number
  lastMs: number
  nextMs: number
}

export function createPatience(clock: Clock): Patience {
  const guessers = new Map<string, Guesser>()
  return {
    waitMs(address) {
      const now = clock.elapsed()
      const guesser = guessers.get(networkOf(address))
      if (!guesser || guesser.wrong < freeMax || now - guesser.lastMs > forgottenAfterMs) return 0
      const turnMs = Math.max(now, guesser.nextMs)
      if (turnMs - now > waitMaxMs) return undefined
      guesser.nextMs = turnMs + paceMs
      return turnMs - now
    },
    wrong(address) {
      const network = networkOf(address)
      const now = clock.elapsed()
      const before = guessers.get(network)
      const known = before && now - before.lastMs <= forgottenAfterMs ? before : { wrong: 0, nextMs: 0 }
      // Inserted anew, so that the oldest comes first.
      guessers.delete(network)
      guessers.set(network, { wrong: known.wrong + 1, lastMs: now, nextMs: Math.max(known.nextMs, now + paceMs) })
      if (guessers.size > addressesMax) guessers.delete(guessers.keys().next().value!)
    },
    right: (address) => void guessers.delete(networkOf(address)),
  }
}

/** The owner of one IPv6 address has the 2^64 of its network. */
function networkOf(address: string): string {
  if (!isIPv6(address) || address.includes('.')) return address
  const [head = '', tail] = address.split('::')
  const [first, last] = [head, tail ?? ''].map((part) => (part === '' ? [] : part.split(':')))
  const zeros = Array.from({ length: 8 - first!.length - last!.length }, () => '0')
  return [...first!, ...zeros, ...last!].slice(0, 4).join(':')
}
