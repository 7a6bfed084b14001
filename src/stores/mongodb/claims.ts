// Taking a key. A fresh one is one update that inserts, and is refused when anything is there; then what is there is read,
// together with the server's time, and overwritten, if it may be, on the condition that nobody has written since.

import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { ClaimRequest, Verdict } from '../../core/store.ts'
import { read, update } from './client.ts'
import type { MongodbGround, View } from './client.ts'
import { decide, entryOf, forgottenAtMs, grantOf, idOf, timeOf, unchanged } from './entries.ts'
import type { Granting, Seen, StoredEntry } from './entries.ts'
import { isDuplicateKey } from './errors.ts'
import { removalSlackMs } from './removal.ts'

// Whoever is refused finds an entry that somebody else has just taken, which is nearly always the end of it.
const roundsMax = 10

// A document of MongoDB has 16 MB; this leaves 11 for an outcome and the entry (see mongodb/writes.ts).
const inputBytesMax = 4 * 1_024 * 1_024

export async function claim(ground: MongodbGround, key: Key, request: ClaimRequest): Promise<Verdict> {
  checkInput(key, request)
  let decision = decide(ground.expects === 'replays' ? await look(ground, key, 'majority') : undefined, request)
  for (let round = 0; round < roundsMax; round++) {
    if ('is' in decision) return decision
    const granted = await grant(ground, key, decision, request)
    if (granted) return grantOf(granted)
    decision = await judge(ground, key, request)
  }
  throw new OnceError('STORE_UNAVAILABLE', {
    message: `The entry of ${describeKey(key)} was changed by others ${roundsMax} times while it was claimed. The effect was not run. Ask again.`,
  })
}

// A majority has a write some milliseconds after the primary.
const durableSoonMs = 10

// Somebody was there before us. Whoever is given an answer must be able to rely on it, so it is what a majority has; whatever
// else can be said is said by the latest, as the primary has just refused us by that.
async function judge(ground: MongodbGround, key: Key, request: ClaimRequest): Promise<Verdict | Granting> {
  const durable = decide(await look(ground, key, 'majority'), request)
  if ('is' in durable) return durable
  const latest = decide(await look(ground, key, 'latest'), request)
  return 'is' in latest && latest.is === 'settled' ? { is: 'busy', retryAfterMs: durableSoonMs } : latest
}

/** What is there now, by the server's own time. */
export async function look(ground: MongodbGround, key: Key, view: View): Promise<Seen | undefined> {
  const [found] = await read(ground, [{ $match: { _id: idOf(key) } }, { $addFields: { now: '$$NOW' } }], view)
  if (!found) return undefined
  const now = timeOf(found['now'])
  if (now === undefined) throw new Error('the server did not tell its time ($$NOW)')
  ground.removal.note(now)
  return { entry: entryOf(found), now }
}

async function grant(
  ground: MongodbGround,
  key: Key,
  granting: Granting,
  request: ClaimRequest,
): Promise<StoredEntry | undefined> {
  if (granting.grant === 'first') return insertFirst(ground, key, request)
  const { over } = granting
  if (granting.grant === 'again') {
    return change(ground, unchanged(over), {
      $set: { leaseMs: request.leaseMs, ...ground.removal.hints(request.leaseMs, over) },
      $currentDate: { leaseFrom: true },
    })
  }
  const before = granting.how === 'fresh' ? undefined : over
  // Another attempt of the same request: one that was given no input leaves the one that is there.
  const gone = request.input || before ? ['outcome'] : ['outcome', 'input']
  return change(ground, unchanged(over), {
    $set: {
      ...entryFor(ground, request),
      how: granting.how,
      attempt: 1 + (before?.attempt ?? 0),
      fenceMin: 1 + over.fence,
      holds: (request.input ?? before?.input) !== undefined,
      ...(before && { firstClaimedAt: new Date(before.firstClaimedAtMs) }),
    },
    $unset: Object.fromEntries([...gone, ...(before ? [] : ['firstClaimedAt'])].map((name) => [name, ''])),
    $currentDate: { leaseFrom: true, claimedAt: true },
  })
}

// The filter names the document and wants what no entry is, so MongoDB either inserts or finds the name taken (E11000).
async function insertFirst(ground: MongodbGround, key: Key, request: ClaimRequest): Promise<StoredEntry | undefined> {
  const filter = { _id: idOf(key), revision: { $lt: 0 } }
  const update = { $set: entryFor(ground, request), $currentDate: { leaseFrom: true, claimedAt: true } }
  try {
    return await change(ground, filter, update, 'insert')
  } catch (error) {
    if (isDuplicateKey(error)) return undefined
    throw error
  }
}

function entryFor(ground: MongodbGround, request: ClaimRequest): object {
  const { token, fingerprint, version, leaseMs, retention, input } = request
  return {
    wrote: 'claim',
    how: 'fresh',
    token,
    attempt: 1,
    fenceMin: 0,
    fingerprint,
    version,
    leaseMs,
    keepMs: retention.keepMs,
    tombstoneMs: retention.tombstoneMs,
    holds: input !== undefined,
    ...(input && { input }),
    ...ground.removal.hints(leaseMs, retention),
  }
}

/** Update an entry, and see to it that MongoDB does not remove it before its time. */
export async function change(
  ground: MongodbGround,
  filter: Readonly<Record<string, unknown>>,
  operators: object,
  otherwise?: 'insert',
): Promise<StoredEntry | undefined> {
  const found = await update(ground, filter, { ...operators, $inc: { revision: 1 } }, otherwise)
  if (!found) return undefined
  const entry = entryOf(found)
  ground.removal.note(entry.leaseFromMs)
  // When the server's clock was put on by hours since its last reply, or the lease was extended for so long.
  if (entry.removeAtMs < forgottenAtMs(entry)) {
    await update(ground, unchanged(entry), { $set: { removeAt: new Date(forgottenAtMs(entry) + removalSlackMs) } })
  }
  return entry
}

function checkInput(key: Key, { input }: ClaimRequest): void {
  if (!input || input.length <= inputBytesMax) return
  throw new OnceError('INVALID_ARGUMENT', {
    message:
      `expected the input of ${describeKey(key)} to be at most ${inputBytesMax} bytes, got ${input.length}: a document of ` +
      'MongoDB has 16 MB. Keep it elsewhere and pass its name.',
  })
}
