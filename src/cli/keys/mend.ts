// `onceonly keys release`, `resolve`, `keep` and `forget`: manual changes. Each needs a reason. The command shows the entry and
// what the change does to it, and a person must agree: at the terminal, or with --yes.

import { createInterface } from 'node:readline/promises'
import { systemClock } from '../../core/clock.ts'
import { canMend } from '../../core/entry.ts'
import { OnceError } from '../../core/errors.ts'
import { key } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { Entry, Inspectable, Mending, MendingName } from '../../core/store.ts'
import { foundIn } from '../../gateway/found-outcome.ts'
import { isGatewayScope } from '../../gateway/gateway-key.ts'
import { duration, flag, parseCommand, text, wrong, reason as reasonText } from '../arguments.ts'
import type { Options, Values } from '../arguments.ts'
import { foundHelp, foundOptions, readFound } from './found.ts'
import { withoutContents } from './list.ts'
import { describeEntry } from './show.ts'
import type { OpenedStore } from '../open-store.ts'
import { keyName, moment, oneLine, span } from '../words.ts'
import { inspectable, storeHelp, storeOptions, withStore } from '../with-store.ts'

/** What differs between the four. `given` is what the command's own options say. */
interface Manual<Given extends Options> {
  readonly name: MendingName
  readonly usage: string
  readonly does: string
  readonly optionsHelp: string
  readonly example: string
  readonly options: Given
  /** Called before the store is opened, so that a missing or unreadable value is reported at once. */
  readonly read: (given: Values<Given>) => Plan
}

interface Plan {
  /** The change for the store, and what it will do to this entry. */
  readonly of: (entry: Entry) => { readonly mending: Mending; readonly will: string }
  readonly done: (before: Entry, nowMs: number) => string
  readonly risks: Partial<Record<Entry['state'], string>>
}

const twice: Plan['risks'] = {
  running: 'Its effect may be running at this moment, and would then run twice.',
  abandoned: 'Its effect may have happened, and would then happen again.',
  settled: 'Its effect has happened, and would happen again.',
  tombstone: 'Its effect may have happened long ago, and a late retry would run it again.',
}

const release: Manual<Record<never, never>> = {
  name: 'release',
  usage: '',
  does: `Opens a running or abandoned key: the next retry runs the effect at once, and the attempt that held the key can write
nothing any more. If the effect did happen, it happens again. Find out first, and use keys resolve if it did.`,
  optionsHelp: '',
  example:
    'onceonly keys release payments order-42 --reason "provider has no such charge, ticket 1234" --store sqlite:app.db',
  options: {},
  read: () => ({
    of: () => ({ mending: 'release', will: 'The next retry runs the effect.' }),
    done: () => 'released. The next retry runs the effect.',
    risks: twice,
  }),
}

const forget: Manual<Record<never, never>> = {
  name: 'forget',
  usage: '',
  does: `Deletes the entry in any state, with its outcome: the key is new again, and its next use runs the effect. If the effect did
happen, it happens again. Never forget a key in doubt whose effect took place: use keys resolve.`,
  optionsHelp: '',
  example: 'onceonly keys forget payments order-42 --reason "test data, ticket 1234" --store sqlite:app.db',
  options: {},
  read: () => ({
    of: () => ({ mending: 'forget', will: 'The entry is deleted, and the next request runs the effect as new.' }),
    done: () => 'forgotten. The key is new again.',
    risks: twice,
  }),
}

const resolve: Manual<typeof foundOptions> = {
  name: 'resolve',
  usage: ' (--value JSON | --value-file FILE | --failure TEXT | --failure-file FILE | --response-file FILE | --done)',
  does: `Gives a running, abandoned or open key its true result, which every retry then gets. No effect runs. Find out first what
took effect: at the provider, in the ledger.`,
  optionsHelp: foundHelp,
  example: `onceonly keys resolve payments order-42 --value '{"receipt":"r1"}' --reason "provider shows ch_81, ticket 1234" --store sqlite:app.db`,
  options: foundOptions,
  read(given) {
    const found = readFound(given)
    return {
      of(entry) {
        if (isGatewayScope(entry.key.scope) && !('response' in found)) {
          const why = `${keyName(entry.key)} is a key of a gateway, and its retries expect an HTTP response`
          throw wrong('keys resolve', `${why}. Give --response-file FILE with the response as curl -i prints it`)
        }
        const { mending, what } = foundIn(entry, found)
        return { mending, will: `Every retry gets ${what}.` }
      },
      done: () => 'resolved. Every retry gets this result.',
      risks: { running: 'Its effect may be running at this moment, and its own result would be discarded.' },
    }
  },
}

const keep: Manual<{ readonly for: typeof duration }> = {
  name: 'keep',
  usage: ' --for DURATION',
  does: `Prolongs the window of a settled, open or abandoned key: it is kept for at least this long from now. It never shortens.`,
  optionsHelp: '  --for 30d      for how long from now\n',
  example:
    'onceonly keys keep payments order-42 --for 30d --reason "the partner retries until March" --store sqlite:app.db',
  options: { for: duration },
  read({ for: forMs }) {
    if (forMs === undefined || forMs === 0)
      throw wrong('keys keep', 'for how long? Give --for DURATION, such as --for 30d')
    return {
      of: () => ({ mending: { keepMs: forMs }, will: `It is kept for at least ${span(forMs)} from now.` }),
      done: ({ expiresAtMs }, nowMs) => `kept until ${moment(Math.max(expiresAtMs, nowMs + forMs), nowMs)}.`,
      risks: {},
    }
  },
}

function helpOf({ name, usage, does, optionsHelp, example }: Omit<Manual<Options>, 'read'>): string {
  return `onceonly keys ${name}: a manual change of one entry

Usage: onceonly keys ${name} SCOPE ID${usage} --reason TEXT --store URL [--yes] [--json]

${does}
The change is written to the audit trail with its reason.

${storeHelp}
${optionsHelp}  --reason TEXT  why, for the people who look at it later
  --cache URL    the Redis in front of PostgreSQL, where there is one. What it remembers of the key is removed, too. Otherwise
                 it may be replayed for another minute
  --yes          do not ask. Needed in scripts

Ends with 3 when there is no such entry, and with 1 when nothing was changed.

Example: ${example}
`
}

export const keysRelease = (args: readonly string[]): Promise<number> => mend(release, args)
export const keysForget = (args: readonly string[]): Promise<number> => mend(forget, args)
export const keysResolve = (args: readonly string[]): Promise<number> => mend(resolve, args)
export const keysKeep = (args: readonly string[]): Promise<number> => mend(keep, args)

async function mend<Given extends Options>(manual: Manual<Given>, args: readonly string[]): Promise<number> {
  const { name } = manual
  const command = `keys ${name}`
  const options = { ...storeOptions, cache: text, reason: reasonText, yes: flag, ...manual.options }
  const parsed = parseCommand({ command, help: helpOf(manual), options, operands: ['SCOPE', 'ID'], args })
  if (!parsed) return 0
  const { store: url, cache, json, reason, yes } = parsed.values as Values<typeof common>
  if (reason === undefined) throw wrong(command, 'why? Give --reason TEXT, for the people who look at it later')
  const asks = !yes && process.stdin.isTTY && process.stderr.isTTY
  if (!yes && !asks) throw wrong(command, 'no terminal to ask at: give --yes to change it without asking')
  const plan = manual.read(parsed.values as Values<Given>)
  const wanted = key(parsed.operands[0]!, parsed.operands[1]!)
  const work = async ({ store }: OpenedStore): Promise<number> => {
    const looked = inspectable(store)
    const seen = await looked.show(wanted).catch((error: unknown) => damagedIf(name, error))
    if (seen === 'damaged') {
      const risk = `The entry of ${keyName(wanted)} is damaged. ${twice.abandoned}`
      if (asks && !(await agreed(name, risk))) return leftAsItIs('Not agreed')
      return forgetDamaged(looked, { wanted, reason, json })
    }
    if (!seen) return absent(wanted)
    if (!json) for (const line of describeEntry(seen, systemClock.now(), {})) console.log(line)
    // The store checks again when it changes the entry. This check saves a question about a change that cannot be made.
    if (!canMend(name, seen.state)) return notMendable(name, seen)
    const { mending, will } = plan.of(seen)
    if (asks && !(await agreed(name, `${plan.risks[seen.state] ?? ''} ${will}`.trim()))) return leftAsItIs('Not agreed')
    return change(looked, { wanted, name, mending, reason, seen, json, done: plan.done })
  }
  return withStore(command, url, work, cache === undefined ? {} : { cache })
}

/** What cannot be read can only be forgotten. */
function damagedIf(name: MendingName, error: unknown): 'damaged' {
  if (name === 'forget' && error instanceof OnceError && error.code === 'OUTCOME_UNREADABLE') return 'damaged'
  throw error
}

async function forgetDamaged(
  looked: Inspectable,
  { wanted, reason, json }: Pick<Change, 'wanted' | 'reason' | 'json'>,
): Promise<number> {
  if (!(await looked.mend(wanted, 'forget', reason))) return absent(wanted)
  if (json) console.log(JSON.stringify({ changed: true, action: 'forget', reason, before: 'damaged' }, undefined, 2))
  else console.log(`${keyName(wanted)}: forgotten. The key is new again. Its entry was damaged.`)
  return 0
}

const common = { ...storeOptions, cache: text, reason: reasonText, yes: flag }

interface Change {
  readonly wanted: Key
  readonly name: MendingName
  readonly mending: Mending
  readonly reason: string
  readonly seen: Entry
  readonly json: true | undefined
  readonly done: Plan['done']
}

async function change(looked: Inspectable, given: Change): Promise<number> {
  const { wanted, name, mending, reason, seen, json, done } = given
  const before = await looked.mend(wanted, mending, reason)
  if (!before) return absent(wanted)
  const changed = canMend(name, before.state)
  if (json)
    console.log(JSON.stringify({ changed, action: name, reason, before: withoutContents(before) }, undefined, 2))
  if (!changed) return notMendable(name, before)
  const was = `${before.state}, attempt ${before.attempt}`
  if (!json) console.log(`\n${keyName(wanted)}: ${done(before, systemClock.now())} It was ${was}.`)
  if (before.state !== seen.state || before.attempt !== seen.attempt) {
    const then = `${seen.state}, attempt ${seen.attempt}`
    console.error(`onceonly: it changed while you looked: it was ${then} then, and ${was} when it was changed.`)
  }
  return 0
}

function absent(wanted: Key): number {
  console.error(`onceonly: there is no entry ${keyName(wanted)}; nothing was changed.`)
  return 3
}

const onlyOn: Readonly<Record<MendingName, string>> = {
  release: 'only a running or abandoned key can be released',
  forget: 'it cannot be forgotten',
  resolve: 'only a running, abandoned or open key can be resolved',
  keep: 'only a settled, open or abandoned key can be kept for longer',
}

function notMendable(name: MendingName, { state }: Entry): number {
  return leftAsItIs(`It is ${state}, and ${onlyOn[name]}`)
}

function leftAsItIs(why: string): number {
  console.error(`onceonly: ${why}; nothing was changed.`)
  return 1
}

async function agreed(name: MendingName, will: string): Promise<boolean> {
  const terminal = createInterface({ input: process.stdin, output: process.stderr })
  try {
    // The end of the input, or Ctrl-C, is no answer. The question itself would then wait forever.
    const ended = new Promise<string>((done) => terminal.once('close', () => done('')))
    const answer = await Promise.race([terminal.question(`\n${oneLine(will)} ${name} it? Type yes: `), ended])
    return answer.trim().toLowerCase() === 'yes'
  } finally {
    terminal.close()
  }
}
