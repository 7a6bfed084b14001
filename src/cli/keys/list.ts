// `onceonly keys list`: entries in the order of scope and id, a page at a time. What they hold is not shown.

import { systemClock } from '../../core/clock.ts'
import { tenantOf } from '../../core/doubt.ts'
import { key } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Entry, EntryFilter, EntryState, Inspectable } from '../../core/store.ts'
import { gatewayTenant } from '../../gateway/gateway-key.ts'
import { choice, count, cursorOf, keyOfCursor, parseCommand, text, wrong } from '../arguments.ts'
import { paint, span, table } from '../words.ts'
import type { Tone } from '../words.ts'
import { inspectable, storeHelp, storeOptions, withStore } from '../with-store.ts'

const states = ['running', 'abandoned', 'open', 'settled', 'tombstone'] as const

const help = `onceonly keys list: entries in the order of scope and id

Usage: onceonly keys list [--scope SCOPE | --service SCOPE] [--state STATE] [--limit N] [--after CURSOR] --store URL [--json]

${storeHelp}
  --scope SCOPE  only of this scope, exactly
  --service SCOPE of this scope of createOnce and of all its HTTP tenants, whose keys lie in SCOPE/TENANT (a gateway's SCOPE is
                 gateway:NAME)
  --state STATE  only running (an attempt holds it), abandoned (began and never reported), open (failed, may be tried again),
                 settled (done, its outcome is replayed) or tombstone (expired)
  --limit N      so many at the most; 50 unless given
  --after CURSOR continue after the last page, which ends with its cursor

Example: onceonly keys list --state abandoned --store postgres://db.example/app
`

// A screen.
const pageLimit = 50

const options = { ...storeOptions, scope: text, service: text, state: choice(...states), limit: count, after: text }

export async function keysList(args: readonly string[]): Promise<number> {
  const parsed = parseCommand({ command: 'keys list', help, options, args })
  if (!parsed) return 0
  const { store: url, json, scope, service, state, limit = pageLimit, after } = parsed.values
  if (scope !== undefined && service !== undefined) throw wrong('keys list', 'give --scope or --service, not both')
  // One more than requested shows whether there are more.
  const filter: EntryFilter = {
    limit: limit + 1,
    ...(scope === undefined ? {} : { scope: key(scope, '-').scope }),
    ...(state === undefined ? {} : { state }),
    ...(after === undefined ? {} : { after: keyOfCursor('keys list', after) }),
  }
  return withStore('keys list', url, async ({ store }) => {
    const looked = inspectable(store)
    const found =
      service === undefined ? await looked.list(filter) : await ofService(looked, key(service, '-').scope, filter)
    const entries = found.slice(0, limit)
    const next = found.length > limit ? cursorOf(entries.at(-1)!.key) : null
    if (json) {
      const rows = entries.map((entry) => ({ ...withoutContents(entry), tenant: tenantIn(entry.key, service) }))
      console.log(JSON.stringify({ entries: rows, next }, undefined, 2))
    } else print(entries, next, service)
    return 0
  })
}

/** The scope itself first, then those of its tenants: all of them lie between SCOPE and SCOPE0, with others among them. */
async function ofService(looked: Inspectable, service: string, filter: EntryFilter): Promise<readonly Entry[]> {
  const { limit, after } = filter
  const own = after && after.scope !== service ? [] : await looked.list({ ...filter, scope: service })
  const found: Entry[] = own.slice(0, limit)
  let from: Key = after && after.scope !== service ? after : { scope: `${service}.`, id: '~' }
  while (found.length < limit) {
    const page = await looked.list({ ...filter, after: from })
    found.push(...page.filter((entry) => tenantOf(service, entry.key.scope) !== undefined))
    const last = page.at(-1)?.key
    if (!last || page.length < limit || !(last.scope < `${service}0`)) break
    from = last
  }
  return found.slice(0, limit)
}

/** The tenant of a gateway's key, or of a key below the service that was asked for. */
function tenantIn({ scope }: Key, service: string | undefined): string | undefined {
  return service === undefined ? gatewayTenant(scope) : tenantOf(service, scope)
}

/** What an entry holds can be a customer's secret, and be large. */
export function withoutContents({ outcome, input, ...rest }: Entry): object {
  const { scope, id } = rest.key
  const held = {
    ...(outcome && { outcomeBytes: outcome.length }),
    ...(input && { inputBytes: input.length }),
  }
  return { scope, id, ...rest, key: undefined, ...held }
}

const tones: Readonly<Record<EntryState, Tone>> = {
  running: 'strong',
  abandoned: 'care',
  open: 'care',
  settled: 'good',
  tombstone: 'quiet',
}

function print(entries: readonly Entry[], next: string | null, service: string | undefined): void {
  if (entries.length === 0) return console.log('No such entries.')
  const nowMs = systemClock.now()
  const tenants = entries.map((entry) => tenantIn(entry.key, service))
  const hasTenants = tenants.some((tenant) => tenant !== undefined)
  const rows = entries.map((entry, at) => [
    entry.key.scope,
    ...(hasTenants ? [tenants[at] === '' ? '(shared)' : (tenants[at] ?? '-')] : []),
    entry.key.id,
    entry.state,
    String(entry.attempt),
    `${span(nowMs - entry.firstClaimedAtMs)} ago`,
    entry.outcome ? `${entry.outcome.length} bytes` : '-',
  ])
  const [head, ...lines] = table(
    ['SCOPE', ...(hasTenants ? ['TENANT'] : []), 'ID', 'STATE', 'ATTEMPT', 'FIRST ASKED', 'OUTCOME'],
    rows,
  )
  console.log(paint('strong', head!))
  for (const [index, line] of lines.entries()) console.log(paint(tones[entries[index]!.state], line))
  if (next !== null) console.log(`\nThere are more: --after ${next}`)
}
