// Broken stores, part 2: the wrong answer. Repeated calls, other requests, releases, outcomes and keys.

import type { Key } from '../../core/key.ts'
import { key as keyWith, keyString } from '../../core/key.ts'
import type { Claim, Verdict } from '../../core/store.ts'
import type { MemoryStore } from '../../stores/memory.ts'
import { asHolder, broken, edit, entryOf, remove, stateOf } from './broken-store.ts'
import type { BrokenStore, Mistake } from './broken-store.ts'

const repeats: readonly BrokenStore[] = [
  broken(
    'does not recognise its own claim',
    'a claim repeated with its token is granted again: same attempt, same fence, the lease anew',
    (store, data) => ({
      async claim(key, request) {
        const known = entryOf(data, key)
        const mine = known?.wrote === 'claim' && known.token === request.token
        return mine ? { is: 'busy', retryAfterMs: 1 } : store.claim(key, request)
      },
    }),
  ),
  broken('counts a repeated claim as another attempt', 'a claim sent twice at once is one attempt', (store, data) => ({
    claim(key, request) {
      if (entryOf(data, key)?.token === request.token) edit(data, key, { attempt: 1 + entryOf(data, key)!.attempt })
      return store.claim(key, request)
    },
  })),
  broken(
    'brings a ghost back to life',
    'a delayed claim whose token already gave the key back is busy for 0 ms and does not hold the key',
    (store, data) => ({
      claim(key, request) {
        if (entryOf(data, key)?.wrote === 'release') edit(data, key, { token: 'nobody' })
        return store.claim(key, request)
      },
    }),
  ),
  broken(
    'grants its own token whatever became of the key',
    'a delayed claim whose token already settled is told the outcome',
    (store, data) => ({
      claim(key, request) {
        if (entryOf(data, key)?.token === request.token) edit(data, key, { wrote: 'claim' })
        return store.claim(key, request)
      },
    }),
  ),
  broken(
    'calls its own abandoned claim in doubt',
    'a claim repeated after its lease is granted again, not in doubt, while nobody has followed',
    (store) => ({
      async claim(key, request) {
        const doubt = (await stateOf(store, key)) === 'abandoned' && request.onTakeover === 'refuse'
        return doubt ? { is: 'doubt', attempt: 1 } : store.claim(key, request)
      },
    }),
  ),
  broken('calls a repeated settle lost', 'extend and settle repeated with their token answer done again', (store) => ({
    settle: async (claim, outcome, retention) =>
      (await stateOf(store, claim.key)) === 'settled' ? 'lost' : store.settle(claim, outcome, retention),
  })),
  broken(
    'calls a repeated release lost',
    'release repeated with its token answers done again, open or forgotten',
    (store) => ({
      release: async (claim, how) =>
        (await stateOf(store, claim.key)) === 'running' ? store.release(claim, how) : 'lost',
    }),
  ),
  broken(
    'overwrites an outcome',
    'a second settle with another outcome does not overwrite the first',
    (store, data) => ({
      async settle(claim, outcome, retention) {
        const fenced = await store.settle(claim, outcome, retention)
        if (fenced === 'done') edit(data, claim.key, { outcome: outcome.slice() })
        return fenced
      },
    }),
  ),
  broken(
    'counts the retention anew with every repeated settle',
    'a settle repeated later does not prolong the retention',
    (store, data) => ({
      async settle(claim, outcome, retention) {
        const fenced = await store.settle(claim, outcome, retention)
        if (fenced === 'done') edit(data, claim.key, { leaseUntilMs: data.now() })
        return fenced
      },
    }),
  ),
  broken(
    'lets a late heartbeat prolong a settled entry',
    'a heartbeat that arrives after its settle neither reopens the entry nor moves its expiry',
    (_store, data) => ({
      async extend(claim, leaseMs) {
        if (entryOf(data, claim.key)?.token !== claim.token) return 'lost'
        edit(data, claim.key, { leaseUntilMs: data.now() + leaseMs })
        return 'done'
      },
    }),
  ),
  broken(
    'settles what was released',
    'extend and settle after a release are lost and do not take the key back',
    (store, data) => ({
      settle(claim, outcome, retention) {
        const known = entryOf(data, claim.key)
        if (known?.wrote === 'release' && known.token === claim.token) edit(data, claim.key, { wrote: 'claim' })
        return store.settle(claim, outcome, retention)
      },
    }),
  ),
  broken('releases what was settled', 'a release after a settle is lost and the outcome stays', (store, data) => ({
    release(claim, how) {
      if (entryOf(data, claim.key)?.token === claim.token) edit(data, claim.key, { wrote: 'claim' })
      return store.release(claim, how)
    },
  })),
]

function mismatchIn(state: string): string {
  return `another fingerprint on a key that is ${state} is a mismatch and harms nothing, whatever the policies`
}

/** A store that looks at the fingerprint only in some states. */
function blindWhen(...blind: readonly string[]): Mistake {
  return (store) => ({
    async claim(key, request) {
      const entry = await store.show(key)
      const fingerprint = entry && blind.includes(entry.state) ? entry.fingerprint : request.fingerprint
      return store.claim(key, { ...request, fingerprint })
    },
  })
}

const mismatches: readonly BrokenStore[] = [
  broken(
    'looks for a mismatch only in settled entries',
    mismatchIn('running'),
    blindWhen('running', 'abandoned', 'open'),
  ),
  broken('takes an abandoned key over for any request', mismatchIn('abandoned'), blindWhen('abandoned')),
  broken('reopens a key for any request', mismatchIn('open'), blindWhen('open')),
  broken('replays an outcome to any request', mismatchIn('settled'), blindWhen('settled')),
  broken('keeps the fingerprint of the last one who asked', mismatchIn('settled'), (store, data) => ({
    async claim(key, request) {
      const verdict = await store.claim(key, request)
      if (verdict.is === 'mismatch') edit(data, key, { fingerprint: request.fingerprint })
      return verdict
    },
  })),
  broken('gives the key up at a mismatch', mismatchIn('running'), (store, data) => ({
    async claim(key, request) {
      const verdict = await store.claim(key, request)
      if (verdict.is === 'mismatch') edit(data, key, { wrote: 'release' })
      return verdict
    },
  })),
  broken('forgets the key at a mismatch', mismatchIn('open'), (store, data) => ({
    async claim(key, request) {
      const verdict = await store.claim(key, request)
      if (verdict.is === 'mismatch') remove(data, key)
      return verdict
    },
  })),
  broken(
    'trusts its own token more than the fingerprint',
    'another fingerprint is a mismatch even with the token that holds the key',
    (store, data) => ({
      claim(key, request) {
        const known = entryOf(data, key)
        const mine = known?.token === request.token
        return store.claim(key, mine ? { ...request, fingerprint: known.fingerprint } : request)
      },
    }),
  ),
]

const releases: readonly BrokenStore[] = [
  broken(
    'keeps a released key until its lease ends',
    'a key released open is claimed again at once: next attempt, new token, greater fence',
    () => ({ release: async () => 'done' }),
  ),
  broken(
    'forgets attempts with a release',
    'every reopening is one more attempt with a greater fence',
    (store, data) => ({
      release(claim, how) {
        edit(data, claim.key, { attempt: 1 })
        return store.release(claim, how)
      },
    }),
  ),
  broken(
    'leaves a trace of what was to be forgotten',
    'a first attempt released with forget leaves nothing: another fingerprint may claim the key',
    (store) => ({ release: (claim) => store.release(claim, 'open') }),
  ),
  broken(
    'forgets the attempts before a takeover',
    'a takeover released with forget leaves the key open: the attempt before it did begin',
    (store, data) => ({
      release(claim, how) {
        if (how === 'forget') edit(data, claim.key, { attempt: 1 })
        return store.release(claim, how)
      },
    }),
  ),
]

/** A store that changes what it is given to remember. */
function remembering(change: (outcome: Uint8Array) => Uint8Array): Mistake {
  return (store) => ({
    settle: (claim, outcome, retention) => store.settle(claim, change(outcome), retention),
  })
}

function throughText(outcome: Uint8Array): Uint8Array {
  return new TextEncoder().encode(new TextDecoder().decode(outcome))
}

function throughJson(outcome: Uint8Array): Uint8Array {
  try {
    return new TextEncoder().encode(JSON.stringify(JSON.parse(new TextDecoder().decode(outcome))))
  } catch {
    return outcome
  }
}

const outcomes: readonly BrokenStore[] = [
  broken(
    'cuts outcomes off at 65,535 bytes',
    'an outcome of 1 MiB comes back byte for byte',
    remembering((outcome) => outcome.subarray(0, 65_535)),
  ),
  broken(
    'keeps outcomes as text',
    'an outcome of all 256 byte values comes back byte for byte',
    remembering(throughText),
  ),
  broken(
    'keeps outcomes as JSON',
    'an outcome that looks like JSON with odd spacing comes back byte for byte',
    remembering(throughJson),
  ),
  broken(
    'keeps the whole buffer that an outcome is part of',
    'an outcome that is part of a larger buffer comes back byte for byte',
    remembering((outcome) => new Uint8Array(outcome.buffer)),
  ),
  broken('takes an empty outcome for none', 'an outcome of no bytes comes back byte for byte', (store, data) => ({
    async claim(key, request) {
      if (entryOf(data, key)?.outcome?.length === 0) remove(data, key)
      return store.claim(key, request)
    },
  })),
  broken(
    "keeps the caller's own bytes",
    'bytes that callers change afterwards do not change the outcome',
    (store, data) => ({
      async settle(claim, outcome, retention) {
        const fenced = await store.settle(claim, outcome, retention)
        if (fenced === 'done') edit(data, claim.key, { outcome })
        return fenced
      },
    }),
  ),
  broken(
    'names the version of whoever asks',
    'a settled answer names the attempt and the version of the code that wrote it',
    (store) => ({
      async claim(key, request) {
        const verdict = await store.claim(key, request)
        return verdict.is === 'settled' ? { ...verdict, version: request.version } : verdict
      },
    }),
  ),
  broken(
    'forgets what it cannot read',
    'an outcome replaced by half of something is given back as it is or is an error, and never runs again',
    (store, data) => {
      const written = new Map<string, Uint8Array>()
      return {
        claim(key, request) {
          const known = entryOf(data, key)?.outcome
          if (known && Buffer.compare(known, written.get(keyString(key))!) !== 0) remove(data, key)
          return store.claim(key, request)
        },
        settle(claim, outcome, retention) {
          written.set(keyString(claim.key), outcome.slice())
          return store.settle(claim, outcome, retention)
        },
      }
    },
  ),
]

/** A store that does not keep keys as they are. */
function keyedBy(change: (key: Key) => Key): Mistake {
  return (store): Partial<MemoryStore> => {
    const held = (claim: Claim): Claim => ({ ...claim, key: change(claim.key) })
    const named = (verdict: Verdict, key: Key): Verdict =>
      verdict.is === 'granted' ? { ...verdict, claim: { ...verdict.claim, key } } : verdict
    return {
      claim: async (key, request) => named(await store.claim(change(key), request), key),
      extend: (claim, leaseMs) => store.extend(held(claim), leaseMs),
      settle: (claim, outcome, retention) => store.settle(held(claim), outcome, retention),
      release: (claim, how) => store.release(held(claim), how),
    }
  }
}

function eachPart(change: (part: string) => string): Mistake {
  return keyedBy((key) => keyWith(change(key.scope), change(key.id)))
}

const differ = 'keys that differ in case, blanks, accents, form or width are different keys'

const keys: readonly BrokenStore[] = [
  broken(
    'folds the case of keys',
    differ,
    eachPart((part) => part.toLowerCase()),
  ),
  broken(
    'trims keys',
    differ,
    eachPart((part) => part.trim() || ' '),
  ),
  broken(
    'normalises keys',
    differ,
    eachPart((part) => part.normalize('NFC')),
  ),
  broken(
    'takes keys for numbers where it can',
    'keys that look like numbers, patterns, paths, code or names of a language are only keys',
    eachPart((part) => (Number.isFinite(Number(part)) ? `${Number(part)}` : part)),
  ),
  broken(
    'keeps one byte of a character',
    'every legal character of ASCII and every edge of Unicode is a key of its own',
    eachPart((part) => part.replaceAll(/[^\u0020-\u00ff]/g, '?')),
  ),
  broken(
    'drops what is outside the first plane of Unicode',
    'strings of any legal characters are keys of their own, also when they differ in their last character only',
    eachPart((part) => part.replaceAll(/[\u{10000}-\u{10ffff}]/gu, '') || '?'),
  ),
  broken(
    'cuts keys off at 191 characters',
    'keys of 255 bytes that differ in their last byte are different keys',
    eachPart((part) => part.slice(0, 191)),
  ),
  broken(
    'joins scope and id',
    'scope and id do not run into each other',
    keyedBy((key) => keyWith('all', `${key.scope}:${key.id}`.slice(0, 255))),
  ),
  broken(
    'ignores the scope',
    'the same id in two scopes is two keys in everything',
    keyedBy((key) => keyWith('all', key.id)),
  ),
  broken(
    'settles a key with the token of another',
    'the same id in two scopes is two keys in everything',
    (store, data) => ({
      settle(claim, outcome, retention) {
        const held = [...data.entries.values()].some(
          ({ token, key }) => token === claim.token && key.id === claim.key.id,
        )
        return store.settle(held ? asHolder(data, claim) : claim, outcome, retention)
      },
    }),
  ),
]

export const brokenAnswers: readonly BrokenStore[] = [...repeats, ...mismatches, ...releases, ...outcomes, ...keys]
