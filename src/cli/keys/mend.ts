// `onceonly keys release` and `onceonly keys forget`: a change by hand that can let an effect happen twice. It is made only with
// a reason, after saying what it will do to this entry, and after somebody agreed: at the terminal, or with --yes.

import { createInterface } from 'node:readline/promises'
import { systemClock } from '../../core/clock.ts'
import { describeKey, key } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Entry, Inspectable } from '../../core/store.ts'
import { flag, parseCommand, text, wrong } from '../arguments.ts'
import { inspectable, withoutContents } from './list.ts'
import { describeEntry } from './show.ts'
import type { OpenedStore } from '../open-store.ts'
import { oneLine } from '../words.ts'
import { storeHelp, storeOptions, withStore } from '../with-store.ts'

type Action = 'release' | 'forget'

const does: Readonly<Record<Action, string>> = {
  release:
    'It gives a running or abandoned key back: the next retry runs the effect at once, whoever held the key can write nothing ' +
    'any more.',
  forget:
    'It deletes the entry in any state, with its outcome: the key is new again, and its next use runs the effect.',
}

function helpOf(action: Action): string {
  return `onceonly keys ${action}: change an entry by hand

Usage: onceonly keys ${action} SCOPE ID --reason TEXT --store URL [--yes] [--json]

${does[action]}
If the effect did happen, it happens again: find out first. The change is written to the audit trail with its reason.

${storeHelp}
  --reason TEXT  why, for whoever looks at it later
  --cache URL    the Redis in front of PostgreSQL, where there is one: what it remembers of the key goes, too, and is not
                 replayed for another minute
  --yes          do not ask; needed where nobody can answer (scripts)

Ends with 3 when there is no such entry, and with 1 when it was left as it is.

Example: onceonly keys ${action} payments order-42 --reason "provider has no such charge, ticket 1234" --store sqlite:app.db
`
}

export function keysRelease(args: readonly string[]): Promise<number> {
  return mend('release', args)
}

export function keysForget(args: readonly string[]): Promise<number> {
  return mend('forget', args)
}

async function mend(action: Action, args: readonly string[]): Promise<number> {
  const command = `keys ${action}`
  const options = { ...storeOptions, cache: text, reason: text, yes: flag }
  const parsed = parseCommand({ command, help: helpOf(action), options, operands: ['SCOPE', 'ID'], args })
  if (!parsed) return 0
  const { store: url, cache, json, reason, yes } = parsed.values
  if (reason === undefined) throw wrong(command, 'why? Give --reason TEXT, for whoever looks at it later')
  const asks = !yes && process.stdin.isTTY && process.stderr.isTTY
  if (!yes && !asks) throw wrong(command, 'nobody is there to be asked: give --yes to change it without asking')
  const wanted = key(parsed.operands[0]!, parsed.operands[1]!)
  const work = async ({ store }: OpenedStore): Promise<number> => {
    const looked = inspectable(store)
    const seen = await looked.show(wanted)
    if (!seen) return absent(wanted)
    if (!json) for (const line of describeEntry(seen, systemClock.now(), undefined)) console.log(line)
    // Looked at once more when it is changed; here so that nobody is asked about what cannot be done.
    if (action === 'release' && !canRelease(seen)) return notHeld(seen)
    if (asks && !(await agreed(action, seen))) return leftAsItIs('Nobody agreed')
    return change(looked, { wanted, action, reason, seen, json })
  }
  return withStore(command, url, work, cache === undefined ? {} : { cache })
}

interface Change {
  readonly wanted: Key
  readonly action: Action
  readonly reason: string
  readonly seen: Entry
  readonly json: true | undefined
}

async function change(looked: Inspectable, { wanted, action, reason, seen, json }: Change): Promise<number> {
  const before = await looked.mend(wanted, action, reason)
  if (!before) return absent(wanted)
  const changed = action === 'forget' || canRelease(before)
  if (json) console.log(JSON.stringify({ changed, action, reason, before: withoutContents(before) }, undefined, 2))
  if (!changed) return notHeld(before)
  if (!json)
    console.log(`\n${oneLine(describeKey(wanted))}: ${done[action]} It was ${before.state}, attempt ${before.attempt}.`)
  if (before.state !== seen.state || before.attempt !== seen.attempt) {
    const was = `${seen.state}, attempt ${seen.attempt}`
    console.error(
      `onceonly: it changed while you looked: it was ${was} then, and ${before.state}, attempt ${before.attempt} when it was changed.`,
    )
  }
  return 0
}

const done: Readonly<Record<Action, string>> = {
  release: 'given back; the next retry runs it.',
  forget: 'forgotten; the key is new again.',
}

function absent(wanted: Key): number {
  console.error(`onceonly: there is no entry ${oneLine(`${wanted.scope} / ${wanted.id}`)}; nothing was changed.`)
  return 3
}

function canRelease({ state }: Entry): boolean {
  return state === 'running' || state === 'abandoned'
}

function notHeld({ state }: Entry): number {
  return leftAsItIs(`It is ${state}, and only a running or abandoned key can be given back`)
}

function leftAsItIs(why: string): number {
  console.error(`onceonly: ${why}; nothing was changed.`)
  return 1
}

async function agreed(action: Action, { state }: Entry): Promise<boolean> {
  const risks: Partial<Record<Entry['state'], string>> = {
    running: 'Its effect may be running at this moment, and would then run twice.',
    abandoned: 'Its effect may have happened, and would then happen again.',
    settled: 'Its effect has happened, and would happen again.',
    tombstone: 'Its effect may have happened long ago, and a late retry would run it again.',
  }
  const terminal = createInterface({ input: process.stdin, output: process.stderr })
  try {
    // The end of the input, or Ctrl-C, is no answer; the question itself would then wait for ever.
    const ended = new Promise<string>((resolve) => terminal.once('close', () => resolve('')))
    const answer = await Promise.race([terminal.question(`\n${risks[state] ?? ''} ${action} it? Type yes: `), ended])
    return answer.trim().toLowerCase() === 'yes'
  } finally {
    terminal.close()
  }
}
