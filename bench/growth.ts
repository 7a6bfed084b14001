// Growth: what a call costs does not depend on how much is remembered, for whom, or what goes on beside it. Entries, tenants, sessions and
// waiting outbox rows by the million, and latencies during a sweep, a period switch and a storm of takeovers.

import { benchBusyTimes } from './growth/busy-times.ts'
import { benchEntries } from './growth/entries.ts'
import { benchWaitingRows } from './growth/outbox.ts'
import { benchManySessions } from './growth/sessions.ts'

export async function benchGrowth(): Promise<void> {
  await benchEntries()
  await benchManySessions()
  await benchWaitingRows()
  await benchBusyTimes()
}
