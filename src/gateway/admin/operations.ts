// Operations that are not finished, as the dashboard and the doctor show them: those that wait for a person first. Steps and
// their states are shown. Messages of errors are not, since a service may have put anything into them. Bounded in entries and
// in queries.

import { systemClock } from '../../core/clock.ts'
import { OnceError } from '../../core/errors.ts'
import type { Key } from '../../core/key.ts'
import type { Once } from '../../core/once.ts'
import { statusOf } from '../../core/operations.ts'
import type { OperationStatus } from '../../core/operations.ts'
import { callStore } from '../../core/timed-call.ts'
import type { Entry, EntryState, Inspectable, StepLedger, Store } from '../../core/store.ts'
import type { AdminSection, SectionRow } from './overview.ts'

/**
 * `status` is undefined where the records cannot be read. No process can resume such an operation, and it must not hide the
 * others.
 */
export interface FoundOperation {
  readonly key: Key
  /** Of its entry. */
  readonly entryState: EntryState
  readonly status: OperationStatus | undefined
}

export interface FoundOperations {
  readonly operations: readonly FoundOperation[]
  /** Every given entry was looked at. */
  readonly complete: boolean
}

// One query each, which takes a second or two on a distant store.
const ledgersMax = 200

/** The operations among these entries. A tenant may have the same name as our scopes, but no ledger. */
export async function operationsAmong(
  store: Pick<StepLedger, 'ledger'>,
  entries: readonly Entry[],
): Promise<FoundOperations> {
  const likely = entries.filter(({ key }) => key.scope.includes('/operations/'))
  const operations: FoundOperation[] = []
  for (const entry of likely.slice(0, ledgersMax)) {
    const ledger = await store.ledger(entry.key)
    if (!ledger) continue
    const status = readable(() => statusOf(entry, ledger, undefined))
    operations.push({ key: entry.key, entryState: entry.state, status })
  }
  return { operations, complete: likely.length <= ledgersMax }
}

function readable(read: () => OperationStatus): OperationStatus | undefined {
  try {
    return read()
  } catch (error) {
    if (error instanceof OnceError) return undefined
    throw error
  }
}

export function hasLedger(store: object): store is StepLedger {
  return 'ledger' in store && typeof store.ledger === 'function'
}

const unfinished = ['open', 'abandoned', 'running'] as const satisfies readonly EntryState[]
// Operations keep their input, of up to a mebibyte, so few are read at a time, and not all.
const pageRows = 100
const entriesMax = 1_000

export function operationsSection(once: Once, store: Store & Partial<Inspectable>): AdminSection {
  const calls = { clock: systemClock, storeName: store.name, timeoutMs: once.settings.storeTimeoutMs }
  const ask = <T>(question: () => Promise<T>): Promise<T> => callStore(calls, 'inspect', undefined, question)
  return {
    name: 'operations',
    title: 'Unfinished operations',
    columns: ['Operation', 'State', 'Steps', 'In doubt', 'Attempt'],
    async rows() {
      if (!hasLedger(store) || store.list === undefined) return undefined
      const list: Inspectable['list'] = (filter) => ask(() => store.list!(filter))
      const asked: Pick<StepLedger, 'ledger'> = { ledger: (key) => ask(() => store.ledger(key)) }
      const found: FoundOperation[] = []
      for (const state of unfinished) {
        found.push(...(await operationsAmong(asked, await entriesIn(list, state))).operations)
      }
      return found.length === 0 ? undefined : found.toSorted((one, other) => urgency(one) - urgency(other)).map(rowOf)
    },
  }
}

async function entriesIn(list: Inspectable['list'], state: EntryState): Promise<readonly Entry[]> {
  const found: Entry[] = []
  for (;;) {
    const after = found.at(-1)?.key
    const page = await list({ state, limit: pageRows, ...(after && { after }) })
    // Their contents are not shown, and all of them together may be large.
    found.push(...page.map(({ input: _input, outcome: _outcome, ...rest }) => rest))
    if (page.length < pageRows || found.length >= entriesMax) return found
  }
}

function urgency({ status }: FoundOperation): number {
  if (!status || status.state === 'parked') return 0
  return status.inDoubt.length > 0 ? 1 : 2
}

// As many as a person reads in one cell.
const stepsMax = 12

function rowOf(found: FoundOperation): SectionRow {
  return { cells: cellsOf(found), key: found.key, counts: countsOf(found) }
}

/** An abandoned entry is in doubt by itself, and is counted as such. */
function countsOf({ status, entryState }: FoundOperation): NonNullable<SectionRow['counts']> {
  if (!status) return ['parked']
  const isInDoubt = status.inDoubt.length > 0 && entryState !== 'abandoned'
  return [...(isInDoubt ? (['inDoubt'] as const) : []), ...(status.state === 'parked' ? (['parked'] as const) : [])]
}

function cellsOf({ key, status }: FoundOperation): readonly string[] {
  const name = `${key.id} (${key.scope})`
  if (!status) return [name, 'unreadable', '', '', '']
  const { state, direction, steps, inDoubt, attempt } = status
  // The last steps show where the operation stands.
  const told = steps.slice(-stepsMax).map((step) => `${step.name} ${step.state}`)
  const words = `${steps.length > stepsMax ? '… ' : ''}${told.join(', ')}`
  return [
    name,
    direction === 'backward' ? `${state}, going back` : state,
    words,
    inDoubt.slice(0, stepsMax).join(', '),
    `${attempt}`,
  ]
}
