// Claims a key. For a fresh key this is one update that inserts, which MongoDB refuses when anything is there. Then the store
// reads what is there, together with the server's time. If it may overwrite the entry, it does so on the condition that no other
// writer has written since.

import { pausesMs, rounds } from '../../core/backoff.ts'
import { decide, forgottenAtMs, grantOf } from '../../core/entry.ts'
import type { ClaimDecision } from '../../core/entry.ts'
import { OnceError } from '../../core/errors.ts'
import { describeKey } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { ClaimRequest, Verdict } from '../../core/store.ts'
import { read, update } from './requests.ts'
import type { MongodbContext, MongodbView } from './requests.ts'
import { entryOf, idOf, timeOf, unchanged, unreadable } from './entries.ts'
import type { MongodbEntry, SeenEntry } from './entries.ts'
import { isDuplicateKey } from '../../clients/mongodb.ts'
import { removalSlackMs } from './removal.ts'

// A document of MongoDB has 16 MB. This leaves 11 for an outcome and the entry (see mongodb/writes.ts).
const inputBytesMax = 4 * 1_024 * 1_024

/** What a claim found, and what is to be done about it. */
interface JudgedClaim {
  readonly seen: SeenEntry | undefined
  readonly decision: ClaimDecision<MongodbEntry>
}

export async function claim(context: MongodbContext, key: Key, request: ClaimRequest): Promise<Verdict> {
  checkInput(key, request)
  const seen = context.expects === 'replays' ? await look(context, key, 'majority') : undefined
  let judged = judge(seen, request)
  for (let round = 0; round < rounds.claim; round++) {
    const { decision } = judged
    if (decision.is === 'refused') return decision.verdict
    if (decision.is === 'replayed') return replayOf(decision.entry)
    const granted = await grant(context, key, { over: judged.seen?.entry, decision }, request)
    if (granted) return grantOf(granted)
    judged = await judgeAgain(context, key, request)
  }
  throw new OnceError('STORE_UNAVAILABLE', {
    message:
      `Other writers changed the entry of ${describeKey(key)} ${rounds.claim} times while it was being claimed. ` +
      'The effect was not run. Try again.',
  })
}

function judge(seen: SeenEntry | undefined, request: ClaimRequest): JudgedClaim {
  return { seen, decision: decide(seen?.entry, request, seen?.now ?? 0) }
}

// Another writer was first. The caller must be able to rely on a verdict, so the store takes it from what a majority has.
// Everything else it takes from the latest view, because the primary has just refused the write by that view.
async function judgeAgain(context: MongodbContext, key: Key, request: ClaimRequest): Promise<JudgedClaim> {
  const durable = judge(await look(context, key, 'majority'), request)
  if (durable.decision.is === 'refused' || durable.decision.is === 'replayed') return durable
  const latest = judge(await look(context, key, 'latest'), request)
  if (latest.decision.is !== 'replayed') return latest
  return { ...latest, decision: { is: 'refused', verdict: { is: 'busy', retryAfterMs: pausesMs.majority } } }
}

function replayOf({ key, outcome, version, attempt }: MongodbEntry): Verdict {
  return { is: 'settled', outcome: outcome ?? unreadable(key, 'outcome'), version, attempt }
}

/** What is there now, by the server's own time. */
export async function look(context: MongodbContext, key: Key, view: MongodbView): Promise<SeenEntry | undefined> {
  const [found] = await read(context, [{ $match: { _id: idOf(key) } }, { $addFields: { now: '$$NOW' } }], view)
  if (!found) return undefined
  const now = timeOf(found['now'])
  if (now === undefined) throw new Error('the server did not tell its time ($$NOW)')
  context.removal.note(now)
  return { entry: entryOf(found), now }
}

interface MongodbGrant {
  /** What is there now, and is overwritten. */
  readonly over: MongodbEntry | undefined
  readonly decision: Exclude<ClaimDecision<MongodbEntry>, { readonly is: 'refused' | 'replayed' }>
}

/** Undefined when another writer has written since. */
async function grant(
  context: MongodbContext,
  key: Key,
  { over, decision }: MongodbGrant,
  request: ClaimRequest,
): Promise<MongodbEntry | undefined> {
  if (!over) return insertFirst(context, key, request)
  if (decision.is === 'repeated') {
    return change(context, unchanged(over), {
      $set: { leaseMs: request.leaseMs, ...context.removal.hints(request.leaseMs, over) },
      $currentDate: { leaseFrom: true },
    })
  }
  const { how, before } = decision
  // An attempt that was given no input leaves the one that is there: a worker needs it to resume the operation.
  const gone = request.input || before ? ['outcome'] : ['outcome', 'input']
  return change(context, unchanged(over), {
    $set: {
      ...entryFor(context, request),
      how,
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
async function insertFirst(
  context: MongodbContext,
  key: Key,
  request: ClaimRequest,
): Promise<MongodbEntry | undefined> {
  const filter = { _id: idOf(key), revision: { $lt: 0 } }
  const update = { $set: entryFor(context, request), $currentDate: { leaseFrom: true, claimedAt: true } }
  try {
    return await change(context, filter, update, 'insert')
  } catch (error) {
    if (isDuplicateKey(error)) return undefined
    throw error
  }
}

function entryFor(context: MongodbContext, request: ClaimRequest): object {
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
    ...context.removal.hints(leaseMs, retention),
  }
}

/** Updates an entry, and makes sure that MongoDB does not remove it before its time. */
export async function change(
  context: MongodbContext,
  filter: Readonly<Record<string, unknown>>,
  operators: object,
  otherwise?: 'insert',
): Promise<MongodbEntry | undefined> {
  const found = await update(context, filter, { ...operators, $inc: { revision: 1 } }, otherwise)
  if (!found) return undefined
  const entry = entryOf(found)
  context.removal.note(entry.leaseFromMs)
  // The server's clock was set forward by hours since its last reply, or the lease was extended for that long.
  if (entry.removeAtMs < forgottenAtMs(entry)) {
    await update(context, unchanged(entry), { $set: { removeAt: new Date(forgottenAtMs(entry) + removalSlackMs) } })
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
