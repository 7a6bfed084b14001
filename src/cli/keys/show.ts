// `onceonly keys show`: one entry in plain words, the commands to type next, and its audit trail.

import { systemClock } from '../../core/clock.ts'
import { key, keyPartBytesMax } from '../../core/key.ts'
import type { Key } from '../../core/key.ts'
import type { AuditRecord, Entry, Inspectable } from '../../core/store.ts'
import { flag, parseCommand } from '../arguments.ts'
import { withoutContents } from './list.ts'
import { contentOf, shownOutcome } from './outcome.ts'
import { nextCommands, storyOf } from './story.ts'
import type { NextCommand } from './story.ts'
import { commandWords, keyName, moment, oneLine, paint, printable, size, textWidth, wrapped } from '../words.ts'
import { inspectable, storeHelp, storeOptions, storeWords, withStore } from '../with-store.ts'

const help = `onceonly keys show: one entry, what it is, what a retry would get now, and what to type next

Usage: onceonly keys show SCOPE ID --store URL [--reveal] [--json]

${storeHelp}
  --reveal       show what it holds, too: outcomes are answers to customers, and may be secret

Times are the store's clock, "ago" and "in" are by the clock of this machine; onceonly doctor compares the two.
Ends with 3 when there is no such entry.

Example: onceonly keys show payments order-42 --store sqlite:app.db
`

export async function keysShow(args: readonly string[]): Promise<number> {
  const options = { ...storeOptions, reveal: flag }
  const parsed = parseCommand({ command: 'keys show', help, options, operands: ['SCOPE', 'ID'], args })
  if (!parsed) return 0
  const { store: url, json, reveal } = parsed.values
  const wanted = key(parsed.operands[0]!, parsed.operands[1]!)
  return withStore('keys show', url, async ({ store, describe }) => {
    const looked = inspectable(store)
    const entry = await looked.show(wanted)
    const audit = await looked.audit(wanted)
    const storeOption = storeWords(url, describe)
    const next = entry ? nextCommands(entry, storeOption) : []
    if (json) console.log(JSON.stringify(asJson(entry, audit, { reveal, next }), undefined, 2))
    else {
      if (entry) for (const line of describeEntry(entry, systemClock.now(), { reveal, next })) console.log(line)
      else for (const line of await describeAbsence(looked, wanted, { describe, storeOption })) console.log(line)
      for (const line of describeAudit(audit, systemClock.now())) console.log(line)
    }
    return entry ? 0 : 3
  })
}

/** A mistyped scope must not pass for a key that is free: a gateway's scopes go on after a slash, also where no tenant follows. */
async function describeAbsence(
  store: Inspectable,
  { scope, id }: Key,
  { describe, storeOption }: { readonly describe: string; readonly storeOption: string },
): Promise<string[]> {
  const none = `There is no entry ${keyName({ scope, id })} in ${oneLine(describe)}.`
  const slashed = `${scope}/`
  const canBe = Buffer.byteLength(slashed) <= keyPartBytesMax
  if (canBe && (await store.show(key(slashed, id)))) {
    const command = commandWords('keys show', [slashed, id], [storeOption])
    return [`${none} The scope ${oneLine(slashed)} has that id. See it:`, `  ${command}`]
  }
  return [
    none,
    'If scope and id are typed as the service has them, a retry now would run the effect as new. See which keys are there:',
    `  ${commandWords('keys list', [], [storeOption])}`,
  ]
}

export interface ShowOptions {
  readonly reveal?: true | undefined
  readonly next?: readonly NextCommand[]
}

function asJson(entry: Entry | undefined, audit: readonly AuditRecord[], { reveal, next }: ShowOptions): object {
  const trail = audit.map(({ atMs, action, reason, before }) => ({ atMs, action, reason, before }))
  if (!entry) return { entry: null, audit: trail }
  const shown = entry.outcome && shownOutcome(entry.key, entry.outcome)
  const contents = {
    ...(shown && { outcome: shown.content }),
    ...(entry.input && { input: contentOf(entry.input) }),
  }
  return {
    entry: {
      ...withoutContents(entry),
      // The same in words, for people. Scripts read the fields beside it.
      told: storyOf(entry, systemClock.now()),
      next,
      ...(shown && { outcomeIs: shown.what }),
      ...(reveal && contents),
    },
    audit: trail,
  }
}

export function describeEntry(entry: Entry, nowMs: number, { reveal, next = [] }: ShowOptions): string[] {
  const story = storyOf(entry, nowMs)
  const lines: [label: string, content: string][] = [
    ['State', story.state],
    ['Attempt', story.attempt],
    ['A retry now would', story.retry],
    ['Then', story.next],
    ...(story.advice === undefined ? [] : [['To do', story.advice] as [string, string]]),
    ['Outcome', outcomeWords(entry, reveal)],
    ...(entry.input ? [['Input', `${size(entry.input.length)}`] as [string, string]] : []),
    ['Fence', String(entry.fence)],
    ['Fingerprint', `${entry.fingerprint} (another request under this key is refused: MISMATCH)`],
    ['Version', String(entry.version)],
  ]
  const title = paint('strong', keyName(entry.key))
  return [
    title,
    ...lines.map(([label, content]) => labelled(label, content)),
    ...(next.length === 0 ? [] : ['', paint('strong', 'Next')]),
    // Never broken into lines: the operator pastes them.
    ...next.flatMap(({ when, command }) => [`  ${paint('quiet', when)}`, `    ${command}`]),
    ...revealed(entry, reveal),
  ]
}

function outcomeWords(entry: Entry, reveal: true | undefined): string {
  if (!entry.outcome) return 'none'
  const { what, content } = shownOutcome(entry.key, entry.outcome)
  return content === undefined || reveal ? what : `${what} (--reveal shows it)`
}

function revealed(entry: Entry, reveal: true | undefined): string[] {
  if (!reveal) return []
  const content = entry.outcome && shownOutcome(entry.key, entry.outcome).content
  return [
    ...(content === undefined ? [] : ['', paint('strong', 'Outcome'), pretty(content)]),
    ...(entry.input ? ['', paint('strong', 'Input'), pretty(contentOf(entry.input))] : []),
  ]
}

function pretty(content: unknown): string {
  return printable(typeof content === 'string' ? content : JSON.stringify(content, undefined, 2))
}

// "A retry now would" is the longest.
const labelWidth = 18

function labelled(label: string, content: string): string {
  const margin = labelWidth + 3
  const lines = wrapped(oneLine(content), textWidth() - margin)
  return `  ${paint('quiet', label.padEnd(labelWidth))} ${lines.join(`\n${' '.repeat(margin)}`)}`
}

export function describeAudit(audit: readonly AuditRecord[], nowMs: number): string[] {
  if (audit.length === 0) return []
  const lines = audit.map(
    ({ atMs, action, before, reason }) => `  ${moment(atMs, nowMs)}: ${action} when ${before}: ${oneLine(reason)}`,
  )
  return ['', paint('strong', 'Manual changes'), ...lines]
}
