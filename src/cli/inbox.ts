// `onceonly inbox`: looks at messages that an inbox has parked, asks for them to be run again, and removes them. The program does not have the code
// of a consumer: a redriven message is run by the next process that has it (inbox.runRedriven).

import { systemClock } from '../core/clock.ts'
import { inboxByHand } from '../messages/inbox.ts'
import type { ParkedCode, ParkedFilter, ParkedMessage } from '../messages/inbox.ts'
import { chosen, choice, count, flag, parseCommand, text, wrong, reason as reasonText } from './arguments.ts'
import { shownText } from '../messages/stored-text.ts'
import { commandWords, moment, oneLine, optionWords, paint, printable, table } from './words.ts'
import { storeHelp, storeOptions, storeWords, withStore } from './with-store.ts'

const help = `onceonly inbox: look at messages that wait for a person, let them run again, or discard them

Usage: onceonly inbox list [--scope SCOPE] [--code CODE] [--limit N]
       onceonly inbox show SCOPE ID [--reveal]
       onceonly inbox redrive [--scope SCOPE] [--id ID] [--code CODE] [--all] --reason TEXT
       onceonly inbox discard [--scope SCOPE] [--id ID] [--code CODE] [--all] --reason TEXT

SCOPE is the one of a consumer: SCOPE OF createOnce/inbox/CONSUMER, such as shop/inbox/mailer.

${storeHelp}
  --scope SCOPE  only the messages of this consumer
  --id ID        only the message with this id
  --code CODE    only ATTEMPTS (it was tried too often), TOO_OLD (sent before the window), MISMATCH (its id came with another body) or
                 NO_ID (it has none)
  --limit N      so many at the most; 50 unless given
  --all          all that are parked, of every consumer
  --reason TEXT  why, for the people who look at it later. It goes into the audit trail: onceonly keys show SCOPE ID
  --reveal       show the message, too. It may hold a customer's secrets

redrive is a request: the next inbox.runRedriven of that consumer runs the message once, and marks it. Until then it stays parked.
discard removes the message: it is never run. One that comes again within the window of its inbox is refused as before.
Both take up to 1000 messages at a time, and end with 3 when there is no such message.

Example: onceonly inbox redrive --scope shop/inbox/mailer --code ATTEMPTS --reason "address mended" --store postgres://db.example/app
`

type Part = (args: readonly string[]) => Promise<number>
const parts = { list, show, redrive: change('redrive'), discard: change('discard') } as const satisfies Record<
  string,
  Part
>

export async function inbox(args: readonly string[]): Promise<number> {
  const [part, ...rest] = args
  if (part === '--help' || part === '-h') {
    console.log(help.trimEnd())
    return 0
  }
  return parts[chosen('inbox', Object.keys(parts) as (keyof typeof parts)[], part)](rest)
}

const codes = ['ATTEMPTS', 'TOO_OLD', 'MISMATCH', 'NO_ID'] as const satisfies readonly ParkedCode[]
// A screen.
const pageLimit = 50

async function list(args: readonly string[]): Promise<number> {
  const command = 'inbox list'
  const options = { ...storeOptions, scope: text, code: choice(...codes), limit: count }
  const parsed = parseCommand({ command, help, options, args })
  if (!parsed) return 0
  const { store: url, json, scope, code, limit = pageLimit } = parsed.values
  return withStore(command, url, async ({ store }) => {
    const filter = { ...(scope !== undefined && { scope }), ...(code !== undefined && { code }) }
    // One more than requested shows whether there are more.
    const found = await inboxByHand(store).parked({ ...filter, limit: limit + 1 })
    const shown = found.slice(0, limit)
    if (json) console.log(JSON.stringify({ parked: shown.map(asJson), more: found.length > limit }, undefined, 2))
    else printList(shown, found.length > limit)
    return 0
  })
}

async function show(args: readonly string[]): Promise<number> {
  const command = 'inbox show'
  const options = { ...storeOptions, reveal: flag }
  const parsed = parseCommand({ command, help, options, operands: ['SCOPE', 'ID'], args })
  if (!parsed) return 0
  const { store: url, json, reveal } = parsed.values
  const [scope, id] = parsed.operands as [string, string]
  return withStore(command, url, async ({ store, describe }) => {
    const found = await inboxByHand(store).parked({ scope, id })
    if (found.length === 0) return notFound(`${scope} / ${id}`)
    const named = [optionWords('--scope', scope), optionWords('--id', id)]
    const next = commandWords('inbox redrive', [], [...named, '--reason TEXT', storeWords(url, describe)])
    if (json) {
      console.log(
        JSON.stringify({ parked: found.map((each) => (reveal ? asRevealed(each) : asJson(each))), next }, undefined, 2),
      )
    } else {
      const nowMs = systemClock.now()
      for (const parked of found) for (const line of describeParked(parked, nowMs, reveal)) console.log(line)
      console.log(`\nWhen its cause is mended: ${next}`)
    }
    return 0
  })
}

const doneWords = {
  redrive: 'redriven: the next inbox.runRedriven of their consumers runs them',
  discard: 'discarded: they are never run',
} as const

function change(name: keyof typeof doneWords): Part {
  const command = `inbox ${name}`
  return async (args) => {
    const options = { ...storeOptions, scope: text, id: text, code: choice(...codes), all: flag, reason: reasonText }
    const parsed = parseCommand({ command, help, options, args })
    if (!parsed) return 0
    const { store: url, json, scope, id, code, all, reason } = parsed.values
    if (scope === undefined && id === undefined && code === undefined && !all) {
      throw wrong(command, 'which? Give --scope, --id or --code, or --all for every parked message of every consumer')
    }
    if (reason === undefined) throw wrong(command, 'why? Give --reason TEXT, for the people who look at it later')
    const filter: ParkedFilter = {
      ...(scope !== undefined && { scope }),
      ...(id !== undefined && { id }),
      ...(code !== undefined && { code }),
    }
    return withStore(command, url, async ({ store }) => {
      const changed = await inboxByHand(store)[name](filter, reason)
      if (json) console.log(JSON.stringify({ [name === 'redrive' ? 'redriven' : 'discarded']: changed }))
      else if (changed > 0) console.log(`${changed} ${doneWords[name]}.`)
      return changed > 0 ? 0 : notFound(name === 'redrive' ? 'that is not redriven already' : 'like that')
    })
  }
}

function notFound(which: string): number {
  console.error(`onceonly: there is no parked message ${oneLine(which)}.`)
  return 3
}

/** What a message holds can be a customer's secret, and so can what its handler said. */
function asJson({ message: _message, detail: _detail, ...rest }: ParkedMessage): object {
  return rest
}

/** A message that a codec wrote is told as that. Any other is its JSON. */
function asRevealed({ message, detail, ...rest }: ParkedMessage): object {
  return { ...rest, detail: shownText(detail), message: shownText(message) }
}

function printList(found: readonly ParkedMessage[], isMore: boolean): void {
  if (found.length === 0) return console.log('No parked message.')
  const nowMs = systemClock.now()
  const rows = found.map(({ scope, id, code, attempts, parkedAtMs, isRedriven }) => [
    scope,
    id,
    code,
    String(attempts),
    moment(parkedAtMs, nowMs),
    isRedriven ? 'yes' : '-',
  ])
  const [head, ...lines] = table(['SCOPE', 'ID', 'CODE', 'ATTEMPTS', 'PARKED', 'REDRIVEN'], rows)
  console.log(paint('strong', head!))
  for (const line of lines) console.log(line)
  if (isMore) console.log('\nThere are more: --limit, --scope and --code choose.')
}

function describeParked(parked: ParkedMessage, nowMs: number, reveal: true | undefined): string[] {
  const lines: [label: string, content: string][] = [
    ['Code', parked.code],
    ['Why', reveal ? shownText(parked.detail) : '(--reveal shows it)'],
    ['Attempts', String(parked.attempts)],
    ['Parked', moment(parked.parkedAtMs, nowMs)],
    ['Redriven', parked.isRedriven ? 'yes: it runs at the next inbox.runRedriven of its consumer' : 'no'],
  ]
  return [
    paint('strong', oneLine(`${parked.scope} / ${parked.id}`)),
    ...lines.map(([label, content]) => `  ${label.padEnd(9)} ${oneLine(content)}`),
    ...(reveal ? ['', paint('strong', 'Message'), printable(shownText(parked.message))] : []),
  ]
}
