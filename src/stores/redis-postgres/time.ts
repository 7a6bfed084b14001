// The database's time, as a process knows it without asking each time: two bounds between which it is. The bounds come from one
// reply of the database and from what has passed here since. Neither the zone nor the setting of this machine's clock is in them.
// Code that asks whether something has expired takes the later bound. Code that promises that it has not expired yet takes the
// earlier.

import { pausesMs } from '../../core/backoff.ts'
import { systemRandom } from '../../core/clock.ts'
import type { Clock } from '../../core/clock.ts'
import { fingerprintOfNothing, ownKey } from './names.ts'
import type { ClaimRequest, Store, Transactional } from '../../core/store.ts'

export interface TimeBounds {
  readonly earliestMs: number
  readonly latestMs: number
}

/**
 * A sample is replaced when it is this old. Between two of them a quartz that is off by 500 ppm, the most that NTP corrects,
 * moves by 10 ms.
 */
const refreshAfterMs = 20_000
/** Beyond this age the bounds are not known: the database may have failed over to a machine with another time. */
const sampleMsMax = 60_000

interface Sample {
  readonly databaseMs: number
  readonly sent: LocalMoment
  readonly received: LocalMoment
}

interface LocalMoment {
  readonly elapsedMs: number
  readonly wallMs: number
}

/** Returns the bounds, or undefined while they are not known. Asks the database in the background when it is time to. */
export function databaseTime(
  clock: Clock,
  database: Store & Pick<Transactional<unknown>, 'begin'>,
): () => TimeBounds | undefined {
  const here = (): LocalMoment => ({ elapsedMs: clock.elapsed(), wallMs: clock.now() })
  let sample: Sample | undefined
  let asking = false
  let notBeforeMs = -Infinity
  const refresh = async (): Promise<void> => {
    asking = true
    try {
      const sent = here()
      const databaseMs = await askTime(database)
      sample = { databaseMs, sent, received: here() }
    } catch {
      notBeforeMs = clock.elapsed() + pausesMs.databaseDown
    } finally {
      asking = false
    }
  }
  return () => {
    const now = here()
    const passedMs = sample && latestPassed(sample.sent, now)
    if ((passedMs === undefined || passedMs > refreshAfterMs) && !asking && now.elapsedMs >= notBeforeMs) void refresh()
    if (!sample || passedMs! > sampleMsMax) return undefined
    return {
      earliestMs: Math.floor(sample.databaseMs + earliestPassed(sample.received, now)),
      latestMs: Math.ceil(sample.databaseMs + passedMs!),
    }
  }
}

// Two clocks, as each is wrong in its own way: the monotonic one stands still while a machine is suspended, the wall clock can
// be set. If they disagree, the bounds are as far apart, and a new sample brings them together.
function latestPassed(since: LocalMoment, now: LocalMoment): number {
  return Math.max(now.elapsedMs - since.elapsedMs, now.wallMs - since.wallMs, 0)
}

function earliestPassed(since: LocalMoment, now: LocalMoment): number {
  return Math.min(now.elapsedMs - since.elapsedMs, now.wallMs - since.wallMs)
}

// The fence of a first claim is the store's clock. In a transaction that is rolled back it leaves nothing, not even WAL.
async function askTime(database: Pick<Transactional<unknown>, 'begin'>): Promise<number> {
  const token = systemRandom.uuid()
  const { verdict, granted } = await database.begin(ownKey(`time ${token}`), { ...timeRequest, token })
  await granted?.rollback()
  if (verdict.is !== 'granted') throw new Error(`Bug! A key that nobody else can know is ${verdict.is}.`)
  return verdict.claim.fence / 1_000
}

const timeRequest: Omit<ClaimRequest, 'token'> = {
  fingerprint: fingerprintOfNothing,
  leaseMs: 1_000,
  retention: { keepMs: 1_000, tombstoneMs: 0 },
  version: 0,
  onTakeover: 'run',
  onExpired: 'run',
}
