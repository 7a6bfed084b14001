// Where everything stands in the texts that travel between this process and the scripts. Each text is a row of fields of fixed
// width with one blank between two of them. The Lua, the writers and readers here, and the simulated Redis of the tests are all
// made from these tables, so that no offset is written twice.
//
// Fixed widths, because a pattern in Lua costs as much as a write, and because numbers of one width compare as text.

import assert from 'node:assert/strict'

/** Counted from 1, as Lua counts. */
export interface Place {
  readonly from: number
  readonly to: number
  readonly width: number
}

export type Places<Name extends string> = Readonly<Record<Name, Place>>

function inARow<Name extends string>(widths: Readonly<Record<Name, number>>): Places<Name> {
  let from = 1
  const places = Object.entries<number>(widths).map(([name, width]) => {
    const place = { from, to: from + width - 1, width }
    from += width + 1
    return [name, place] as const
  })
  return Object.fromEntries(places) as unknown as Places<Name>
}

export function lengthOf(places: Places<string>): number {
  return Math.max(...Object.values(places).map(({ to }) => to))
}

// Sixteen digits hold any exact integer. A time in milliseconds has thirteen, one in microseconds sixteen.
const number = 16
const counter = 10
const uuid = 36
// See fingerprint.ts.
const fingerprint = 43

/** An entry. After it comes a line feed and the input, or in a settled entry the outcome if that is small. */
export const entryPlaces: Places<
  | 'state'
  | 'how'
  | 'lease'
  | 'expires'
  | 'forgotten'
  | 'attempt'
  | 'fence'
  | 'first'
  | 'token'
  | 'fingerprint'
  | 'version'
> = inARow({
  state: 7,
  how: 10,
  lease: number,
  expires: number,
  forgotten: number,
  attempt: counter,
  fence: number,
  first: number,
  token: uuid,
  fingerprint,
  version: counter,
})

/** The length of an entry without what follows the line feed. */
export const entryLength: number = lengthOf(entryPlaces)

/** The words of a claim: the end of the entry that it asks for. */
export const claimWords: Places<'token' | 'fingerprint' | 'version'> = inARow({
  token: uuid,
  fingerprint,
  version: counter,
})
/** The words of a write. The verb is the first letter of settle, extend, open or forget. */
export const writeWords: Places<'verb' | 'fence' | 'token'> = inARow({ verb: 1, fence: number, token: uuid })
/** The words of an inspection: look, release, forget, resolve or keep. */
export const inspectWords: Places<'action'> = inARow({ action: 7 })

/** What follows the words in a record: which of the durations it has, and how many of the bytes. */
export const recordTail: Places<'durations' | 'bytes'> = inARow({ durations: 3, bytes: counter })
/** In the place of a number of bytes, for a call that brings none. */
export const noBytes: string = '-'.repeat(recordTail.bytes.width)

/** The durations of a claim. A settle has the first three, an extend the first. */
export const durationPlaces: Places<'lease' | 'keep' | 'tombstone' | 'onTakeover' | 'onExpired'> = inARow({
  lease: number,
  keep: number,
  tombstone: number,
  onTakeover: 6,
  onExpired: 6,
})
/** The durations of a mending: how long and how many audit records stay, how many bytes are the reason, and the retention. */
export const mendingPlaces: Places<'auditKeep' | 'auditRecords' | 'reason' | 'keep' | 'tombstone'> = inARow({
  auditKeep: number,
  auditRecords: counter,
  reason: counter,
  keep: number,
  tombstone: number,
})
/** A record of the audit. After it comes a blank and the reason. */
export const auditPlaces: Places<'at' | 'action' | 'before'> = inARow({
  at: number,
  action: inspectWords.action.width,
  before: entryLength,
})

/** The register of a dataset: see data-loss.ts. `hold` is `-`, `on`, or until when. */
export const registerPlaces: Places<'lineage' | 'before' | 'hold' | 'since' | 'evidence'> = inARow({
  lineage: uuid + 1 + number,
  before: uuid + 1 + number,
  hold: number,
  since: number,
  evidence: 9,
})

/** What every script returns first. */
export const headingPlaces: Places<'now' | 'lineage' | 'mark' | 'evidence'> = inARow({
  now: number,
  lineage: registerPlaces.lineage.width,
  mark: number,
  evidence: registerPlaces.evidence.width,
})

/** The names of a script that are no entry. Those of the entries follow. */
export const keyAt: Readonly<Record<'register' | 'mark', number>> = numbered('register', 'mark')
/** The values of a script. The durations that occur follow. */
export const valueNames = [
  'notAfterMs',
  'lineage',
  'mark',
  'instance',
  'onLoss',
  'markKeepMs',
  'records',
  'bytes',
] as const
export const valueAt: Readonly<Record<(typeof valueNames)[number], number>> = numbered(...valueNames)

/** Counted from 1, as Lua counts. */
function numbered<Name extends string>(...names: readonly Name[]): Readonly<Record<Name, number>> {
  return Object.fromEntries(names.map((name, index) => [name, index + 1])) as Record<Name, number>
}

export function textAt(text: string, { from, to }: Place): string {
  return text.slice(from - 1, to)
}

/**
 * What the first digit of a number may be, as a pattern of Lua and of JavaScript. Of sixteen digits, those that begin with 9 are
 * hardly ever exact: the fence after such a one could be the same one again.
 */
export function firstDigit({ width }: Place): string {
  return width < number ? '[0-9]' : '[0-8]'
}

export function numberAt(text: string, place: Place): number {
  return Number(textAt(text, place))
}

/** A number with zeros before it, or a word with blanks after it. Anything longer would shift what follows. */
export function fitted(value: string | number, { width }: Place): string {
  let text = typeof value === 'number' ? `${value}` : value
  if (text.length !== width) text = typeof value === 'number' ? text.padStart(width, '0') : text.padEnd(width)
  const isFitting = text.length === width && (typeof value === 'number' || Buffer.byteLength(text) === width)
  // With `assert` the message would be put together every time.
  if (!isFitting) assert.fail(`Bug! Expected ${width} characters of ASCII, got "${text}".`)
  return text
}

/** Returns a writer of texts of this table. Fields at the end may be left out. */
export function writerOf<Name extends string>(
  places: Places<Name>,
): (values: { readonly [Each in Name]?: string | number }) => string {
  const inOrder = Object.entries<Place>(places) as [Name, Place][]
  return (values) => {
    let text = ''
    for (const [name, place] of inOrder) {
      const value = values[name]
      if (value === undefined) break
      text += text === '' ? fitted(value, place) : ` ${fitted(value, place)}`
    }
    return text
  }
}
