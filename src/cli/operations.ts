// `onceonly operations`: looks at operations that have not ended, and asks for them to be cancelled or to go on. The program
// does not have their code. It runs no step and no undo, but leaves that to the next process that has the code.

import { systemClock } from '../core/clock.ts'
import { OnceError } from '../core/errors.ts'
import type { Key } from '../core/key.ts'
import type { OperationState, OperationStatus, OperationStore } from '../core/operations.ts'
import type { Inspectable, Store } from '../core/store.ts'
import { keepsOperations, operationAt, resumeByHand } from '../gateway/operation-by-hand.ts'
import { chosen, choice, count, flag, parseCommand, text, wrong, reason as reasonText } from './arguments.ts'
import { commandWords, moment, oneLine, optionWords, paint, printable, table } from './words.ts'
import type { Tone } from './words.ts'
import { inspectable, storeHelp, storeOptions, storeWords, withStore } from './with-store.ts'

const help = `onceonly operations: look at operations of several steps, and ask for them to be cancelled or to go on

Usage: onceonly operations list SCOPE NAME [--state STATE] [--limit N] [--after ID]
       onceonly operations show SCOPE NAME ID [--reveal]
       onceonly operations cancel SCOPE NAME ID --reason TEXT
       onceonly operations resume SCOPE NAME ID [--reason TEXT]

SCOPE is the one of createOnce, NAME the one of once.operation: its keys are those of SCOPE/operations/NAME.

${storeHelp}
  --state STATE  only running, abandoned (its process is gone), waiting (it failed, and is tried again later) or parked (it waits
                 for a person)
  --limit N      so many at the most; 50 unless given
  --after ID     go on after this one
  --reveal       show its result, too. A result is an answer to a customer, and may be secret
  --reason TEXT  why, for the people who look at it later

list shows unfinished operations. cancel is a request: the process that holds the operation, or resumes it next, undoes what was done, unless it is past its
pivot. resume lets a parked operation go on, with its failures forgotten; it is in the audit trail of the key. Both take effect in a process that has the code of the
operation: a worker (once.recover), or a retry. To decide about a step in doubt, call operation.resume(id, { decide }) there.
Ends with 3 when there is no such operation.

Example: onceonly operations list shop checkout --state parked --store postgres://db.example/app
`

type Part = (args: readonly string[]) => Promise<number>
const parts = { list, show, cancel, resume } as const satisfies Record<string, Part>

export async function operations(args: readonly string[]): Promise<number> {
  const [part, ...rest] = args
  if (part === '--help' || part === '-h') {
    console.log(help.trimEnd())
    return 0
  }
  return parts[chosen('operations', Object.keys(parts) as (keyof typeof parts)[], part)](rest)
}

const states = ['running', 'abandoned', 'waiting', 'parked'] as const
// A screen.
const pageLimit = 50

async function list(args: readonly string[]): Promise<number> {
  const command = 'operations list'
  const options = { ...storeOptions, state: choice(...states), limit: count, after: text }
  const parsed = parseCommand({ command, help, options, operands: ['SCOPE', 'NAME'], args })
  if (!parsed) return 0
  const { store: url, json, state, limit = pageLimit, after } = parsed.values
  const [scope, name] = parsed.operands as [string, string]
  return withStore(command, url, async ({ store, describe: named }) => {
    const found: OperationStatus[] = []
    // One more than requested shows whether there are more.
    for await (const status of unfinished(operationStore(store), scope, name, after)) {
      if (state === undefined || status.state === state) found.push(status)
      if (found.length > limit) break
    }
    const shown = found.slice(0, limit)
    const next = found.length > limit ? shown.at(-1)!.key.id : null
    if (json) console.log(JSON.stringify({ operations: shown.map(asJson), next }, undefined, 2))
    else if (shown.length > 0) printList(shown, next)
    else console.log(noneWords({ scope: keyOf(scope, name).scope, state, after, store: storeWords(url, named) }))
    return 0
  })
}

async function* unfinished(
  store: OperationStore,
  scope: string,
  name: string,
  after: string | undefined,
): AsyncGenerator<OperationStatus> {
  const operation = operationAt(store, keyOf(scope, name))
  for (let last = after; ;) {
    const page = await store.unfinished(operation.scope, {
      limit: pageLimit,
      ...(last !== undefined && { after: last }),
    })
    for (const { id } of page) {
      const status = await operation.status(id)
      if (status) yield status
    }
    if (page.length < pageLimit) return
    last = page.at(-1)!.id
  }
}

async function show(args: readonly string[]): Promise<number> {
  const options = { ...storeOptions, reveal: flag }
  return withOperation('operations show', options, args, async ({ status, values }) => {
    const { json, reveal } = values
    if (json)
      console.log(
        JSON.stringify(reveal ? { ...asJson(status), outcome: status.outcome } : asJson(status), undefined, 2),
      )
    else for (const line of describe(status, systemClock.now(), reveal)) console.log(line)
    return 0
  })
}

async function cancel(args: readonly string[]): Promise<number> {
  const command = 'operations cancel'
  return withOperation(command, { ...storeOptions, reason: reasonText }, args, async ({ store, status, values }) => {
    const { reason, json } = values
    if (reason === undefined) throw wrong(command, 'why? Give --reason TEXT, for the people who look at it later')
    const asked = await store.requestCancel(status.key, reason)
    const words = asked
      ? 'it is undone by the next process that works on it'
      : `it is ${status.state}: nothing was changed`
    tell(json, status, { changed: asked, reason }, words)
    return asked ? 0 : 1
  })
}

async function resume(args: readonly string[]): Promise<number> {
  return withOperation(
    'operations resume',
    { ...storeOptions, reason: reasonText },
    args,
    async ({ store, status, values }) => {
      const { reason = 'from the command line' } = values
      const parked = (await resumeByHand(store, status.key, reason))?.changed === true
      const again = status.inDoubt.map((step) => `"${step}"`).join(', ')
      const doubt =
        again === '' ? '' : `; it parks again at ${again}, in doubt, unless your code decides: resume(id, { decide })`
      const words = parked
        ? `the next worker or retry resumes it${doubt}`
        : `it is ${status.state}, not parked: nothing was changed`
      tell(values.json, status, { changed: parked }, words)
      return parked ? 0 : 1
    },
  )
}

function tell(json: true | undefined, { key }: OperationStatus, what: object, words: string): void {
  if (json) console.log(JSON.stringify({ id: key.id, ...what }, undefined, 2))
  else console.log(`${oneLine(`${key.scope} / ${key.id}`)}: ${words}.`)
}

function operationStore(store: Store & Partial<Inspectable>): OperationStore {
  inspectable(store)
  if (keepsOperations(store)) return store
  throw new OnceError('UNSUPPORTED', { message: `The store ${store.name} keeps no operations.` })
}

const keyOf = (scope: string, name: string, id = ''): Key => ({ scope: `${scope}/operations/${name}`, id })

interface Found<Values> {
  readonly store: OperationStore
  readonly status: OperationStatus
  readonly values: Values
}

type Parsed<Given extends typeof storeOptions> = NonNullable<ReturnType<typeof parseCommand<Given>>>['values']

async function withOperation<const Given extends typeof storeOptions>(
  command: string,
  options: Given,
  args: readonly string[],
  work: (found: Found<Parsed<Given>>) => Promise<number>,
): Promise<number> {
  const parsed = parseCommand({ command, help, options, operands: ['SCOPE', 'NAME', 'ID'], args })
  if (!parsed) return 0
  const [scope, name, id] = parsed.operands as [string, string, string]
  const { store: url } = parsed.values as { store?: string }
  return withStore(command, url, async ({ store: opened }) => {
    const store = operationStore(opened)
    const key = keyOf(scope, name, id)
    const status = await operationAt(store, key).status(id)
    if (status) return work({ store, status, values: parsed.values })
    console.error(`onceonly: there is no operation ${oneLine(`${key.scope} / ${id}`)}.`)
    return 3
  })
}

/** The result of an operation can be a customer's secret. */
function asJson({ outcome, key, ...rest }: OperationStatus): object {
  return { scope: key.scope, id: key.id, ...rest, ...(outcome && { outcomeIs: outcome.kind }) }
}

const tones: Readonly<Record<OperationState, Tone>> = {
  running: 'strong',
  abandoned: 'care',
  waiting: 'care',
  parked: 'bad',
  completed: 'good',
  failed: 'bad',
  expired: 'quiet',
}

/** An operation that has ended cannot be changed any more. */
function stateWords({ state, direction }: OperationStatus): string {
  const isUnfinished = states.some((each) => each === state)
  return isUnfinished && direction === 'backward' ? `${state}, going back` : state
}

interface Looked {
  readonly scope: string
  readonly state: string | undefined
  readonly after: string | undefined
  readonly store: string
}

/** With a filter there may be others that are unfinished. */
function noneWords({ scope, state, after, store }: Looked): string {
  const none = `No ${state ?? 'unfinished'} operation of ${oneLine(scope)}${after === undefined ? '' : ` after ${oneLine(after)}`}.`
  if (state !== undefined || after !== undefined) return none
  const finished = commandWords('keys list', [], [optionWords('--scope', scope), store])
  return `${none} Finished ones are listed by: ${finished}`
}

function printList(found: readonly OperationStatus[], next: string | null): void {
  const rows = found.map((status) => {
    const { key, attempt, steps, inDoubt } = status
    const last = steps.at(-1)
    return [
      key.id,
      stateWords(status),
      String(attempt),
      last ? `${last.name} ${last.state}` : '-',
      inDoubt.join(', ') || '-',
    ]
  })
  const [head, ...lines] = table(['ID', 'STATE', 'ATTEMPT', 'LAST STEP', 'IN DOUBT'], rows)
  console.log(paint('strong', head!))
  for (const [index, line] of lines.entries()) console.log(paint(tones[found[index]!.state], line))
  if (next !== null) console.log(`\nThere are more: ${optionWords('--after', next)}`)
}

function describe(status: OperationStatus, nowMs: number, reveal: true | undefined): string[] {
  const { key, state, attempt, failures, version, outcome } = status
  const due = status.dueAtMs === undefined || state === 'running' ? undefined : moment(status.dueAtMs, nowMs)
  const lines: [label: string, content: string | undefined][] = [
    ['State', stateWords(status)],
    ['Attempt', `${attempt}, ${failures} of them failed since it began or was resumed; version ${version}`],
    ['Parked', status.parked],
    ['Last error', status.lastError],
    ['Cancelled', status.cancelReason],
    ['Due', due],
    ['In doubt', status.inDoubt.join(', ') || undefined],
    ['Outcome', outcome && `${outcome.kind}${reveal ? '' : ' (--reveal shows it)'}`],
  ]
  const steps = status.steps.map(({ name, state: is, attempt: by, sinceAtMs, error }) =>
    oneLine(`  ${name}: ${is}, attempt ${by}, ${moment(sinceAtMs, nowMs)}${error === undefined ? '' : `: ${error}`}`),
  )
  return [
    paint('strong', oneLine(`${key.scope} / ${key.id}`)),
    ...lines.flatMap(([label, content]) =>
      content === undefined ? [] : [`  ${label.padEnd(11)} ${oneLine(content)}`],
    ),
    ...(steps.length > 0 ? ['', paint('strong', 'Steps'), ...steps] : []),
    ...(reveal && outcome ? ['', paint('strong', 'Outcome'), printable(JSON.stringify(outcome, undefined, 2))] : []),
  ]
}
