// `onceonly sessions`: looks at the sessions of clients, whichever service they belong to, and closes one. The program knows neither the
// settings nor the code of the service: it runs no request.

import { systemClock } from '../core/clock.ts'
import { key } from '../core/key.ts'
import type { Key } from '../core/key.ts'
import { sessionsByHand } from '../sessions/sessions.ts'
import type { ScopedSession, ScopedSessionInFull, SessionName, ShownSession } from '../sessions/sessions.ts'
import { chosen, count, cursorOf, keyOfCursor, parseCommand, text, wrong } from './arguments.ts'
import { commandWords, moment, oneLine, paint, table } from './words.ts'
import type { Tone } from './words.ts'
import { storeHelp, storeOptions, storeWords, withStore } from './with-store.ts'

const help = `onceonly sessions: look at the sessions of clients, and close one

Usage: onceonly sessions list [--scope SCOPE] [--client BEGINNING] [--after CURSOR] [--limit N]
       onceonly sessions show SCOPE CLIENT
       onceonly sessions close SCOPE CLIENT --reason TEXT [--epoch N]

SCOPE is the one of createSessions, and "/sessions": tills/sessions. CLIENT is the id that the client registered with.

${storeHelp}
  --scope SCOPE  only the sessions of this service
  --client BEGINNING
                 only clients whose ids begin like this
  --after CURSOR continue after the last page, which ends with its cursor
  --limit N      so many at the most, in the order of scope and client; 50 unless given
  --reason TEXT  why, for the people who look at it later. It goes into the audit trail: onceonly keys show SCOPE CLIENT
  --epoch N      close it only if this is still its epoch: a client that registered again since keeps its session

close ends the session for good. Its client gets SESSION_EXPIRED, has to find out what became of its unanswered requests, and registers
again. Answers that it has not acknowledged are let go, and an effect that runs now is rolled back where the database can.
close ends with 1 when the session is not open any more. show and close end with 3 when there is none.
Times are the store's clock, "ago" and "in" are by the clock of this machine.

Example: onceonly sessions close tills/sessions till-7 --reason "the till was stolen" --store postgres://db.example/app
`

type Part = (args: readonly string[]) => Promise<number>
const parts = { list, show, close } as const satisfies Record<string, Part>

export async function sessions(args: readonly string[]): Promise<number> {
  const [part, ...rest] = args
  if (part === '--help' || part === '-h') {
    console.log(help.trimEnd())
    return 0
  }
  return parts[chosen('sessions', Object.keys(parts) as (keyof typeof parts)[], part)](rest)
}

// A screen.
const pageLimit = 50

async function list(args: readonly string[]): Promise<number> {
  const command = 'sessions list'
  const options = { ...storeOptions, scope: text, client: text, after: text, limit: count }
  const parsed = parseCommand({ command, help, options, args })
  if (!parsed) return 0
  const { store: url, json, scope, client, after, limit = pageLimit } = parsed.values
  const filter = {
    ...(scope !== undefined && { scope }),
    ...(client !== undefined && { begins: client }),
    ...(after !== undefined && { after: nameOf(keyOfCursor(command, after)) }),
  }
  return withStore(command, url, async ({ store }) => {
    // One more than requested shows whether there are more.
    const found = await sessionsByHand(store).list({ ...filter, limit: limit + 1 })
    const shown = found.slice(0, limit)
    const next = found.length > limit ? cursorOf({ scope: shown.at(-1)!.scope, id: shown.at(-1)!.session }) : null
    if (json) console.log(JSON.stringify({ sessions: shown, next }, undefined, 2))
    else printList(shown, next)
    return 0
  })
}

async function show(args: readonly string[]): Promise<number> {
  const command = 'sessions show'
  const parsed = parseCommand({ command, help, options: storeOptions, operands: ['SCOPE', 'CLIENT'], args })
  if (!parsed) return 0
  const { store: url, json } = parsed.values
  const name = nameIn(parsed.operands)
  return withStore(command, url, async ({ store, describe }) => {
    const found = await sessionsByHand(store).show(name)
    if (!found) return notFound(name)
    const next = found.state === 'open' ? closeCommand(found, storeWords(url, describe)) : undefined
    if (json) console.log(JSON.stringify({ ...found, ...(next !== undefined && { next }) }, undefined, 2))
    else for (const line of describeSession(found, next)) console.log(line)
    return 0
  })
}

async function close(args: readonly string[]): Promise<number> {
  const command = 'sessions close'
  const options = { ...storeOptions, reason: text, epoch: count }
  const parsed = parseCommand({ command, help, options, operands: ['SCOPE', 'CLIENT'], args })
  if (!parsed) return 0
  const { store: url, json, reason, epoch } = parsed.values
  const name = nameIn(parsed.operands)
  if (reason === undefined) throw wrong(command, 'why? Give --reason TEXT, for the people who look at it later')
  return withStore(command, url, async ({ store, describe }) => {
    const closed = await sessionsByHand(store).close({ ...name, ...(epoch !== undefined && { epoch }) }, reason)
    if (!closed) return notFound(name)
    const { changed, session } = closed
    if (json) console.log(JSON.stringify({ changed, session }, undefined, 2))
    else if (changed)
      console.log(`${nameWords(session)} is closed. Its client gets SESSION_EXPIRED until it registers again.`)
    if (!changed) console.error(`onceonly: ${nameWords(session)} ${whyUnchanged(session, storeWords(url, describe))}`)
    return changed ? 0 : 1
  })
}

const nameOf = ({ scope, id }: Key): SessionName => ({ scope, session: id })

const nameIn = ([scope, client]: readonly string[]): SessionName => nameOf(key(scope!, client!))

const nameWords = ({ scope, session }: SessionName): string => oneLine(`${scope} / ${session}`)

function notFound(name: SessionName): number {
  console.error(
    `onceonly: there is no session ${nameWords(name)}. ${commandWords('sessions list', [])} shows those that are there.`,
  )
  return 3
}

function closeCommand({ scope, session, epoch }: ScopedSession, store: string): string {
  return commandWords('sessions close', [scope, session], [`--epoch ${epoch}`, '--reason TEXT', store])
}

function whyUnchanged(found: ScopedSession, store: string): string {
  if (found.state !== 'open') return `is ${found.state} already: nothing was changed.`
  return `has registered again and has epoch ${found.epoch}: nothing was changed. To close that one: ${closeCommand(found, store)}`
}

const tones: Readonly<Record<ShownSession['state'], Tone>> = { open: 'strong', closed: 'quiet', expired: 'care' }

function printList(found: readonly ScopedSession[], next: string | null): void {
  if (found.length === 0) return console.log('No such session.')
  const nowMs = systemClock.now()
  const rows = found.map(({ scope, session, state, epoch, floor, last, requests, window, leaseUntilMs }) => [
    scope,
    session,
    state,
    String(epoch),
    String(floor),
    String(last),
    state === 'open' ? `${requests} of ${window}` : '-',
    moment(leaseUntilMs, nowMs),
  ])
  const head = ['SCOPE', 'CLIENT', 'STATE', 'EPOCH', 'FLOOR', 'LAST', 'WINDOW', 'LEASE ENDS']
  const [first, ...lines] = table(head, rows)
  console.log(paint('strong', first!))
  for (const [index, line] of lines.entries()) console.log(paint(tones[found[index]!.state], line))
  if (next !== null) console.log(`\nThere are more: --after ${next}`)
}

function describeSession(found: ScopedSessionInFull, next: string | undefined): string[] {
  const { state, epoch, floor, last, leaseUntilMs, answered, unanswered } = found
  const ends = { open: 'Lease', expired: 'Expired', closed: 'Closed' } as const
  const lines: [label: string, content: string][] = [
    ['State', stateWords(found)],
    ['Epoch', String(epoch)],
    [
      'Floor',
      floor === 0
        ? '0: the client has acknowledged nothing'
        : `${floor}: the client has acknowledged it and all below it`,
    ],
    ['Last', last === 0 ? '0: no request was let in' : `${last}: the greatest number that was let in`],
    ...(state === 'open' ? [['Window', windowWords(found)] as [string, string]] : []),
    [ends[state], moment(leaseUntilMs, systemClock.now())],
    ['Answered', `${ranges(answered)}${answered.length > 0 ? ': kept until the client acknowledges them' : ''}`],
    ['Unanswered', `${ranges(unanswered)}${unanswered.length > 0 ? ': they run now, or failed and come again' : ''}`],
  ]
  return [
    paint('strong', nameWords(found)),
    ...lines.map(([label, content]) => `  ${label.padEnd(10)} ${oneLine(content)}`),
    '',
    next === undefined
      ? 'Its client finds out what became of its unanswered requests, and registers again. Nothing is left to do here.'
      : `If this client must not go on: ${next}`,
  ]
}

function stateWords({ state }: ShownSession): string {
  return {
    open: 'open',
    expired: 'expired: the client was silent for its lease. Its requests get SESSION_EXPIRED, and run nothing',
    closed: 'closed. Its requests get SESSION_EXPIRED, and run nothing',
  }[state]
}

function windowWords({ floor, last, window, requests }: ShownSession): string {
  const used = `${requests} of ${window}`
  return last - floor >= window
    ? `${used}: full. Requests above ${floor + window} get WINDOW_EXCEEDED until the client acknowledges answers`
    : used
}

/** 2-4, 7, 9: a window can be 10,000 wide. */
function ranges(numbers: readonly number[]): string {
  const found: [from: number, to: number][] = []
  for (const number of numbers) {
    const last = found.at(-1)
    if (last && last[1] === number - 1) last[1] = number
    else found.push([number, number])
  }
  return found.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(', ') || 'none'
}
