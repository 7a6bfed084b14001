// Text for people: times, sizes, tables and colours. Text from a store is foreign: it is shown, and never obeyed by the
// terminal.

import { styleText } from 'node:util'
import { span } from '../core/clock.ts'

export { span }

/** "2026-11-15T12:00:00.000Z (3 min ago)". */
export function moment(atMs: number, nowMs: number): string {
  const away = nowMs >= atMs ? `${span(nowMs - atMs)} ago` : `in ${span(atMs - nowMs)}`
  return `${timeText(atMs)} (${away})`
}

/** Even far times (100 years and a tombstone) fit a Date. A time beyond that is a mistake, and is still shown. */
export function timeText(atMs: number): string {
  const date = new Date(atMs)
  return Number.isNaN(date.getTime()) ? `${atMs} ms` : date.toISOString()
}

export function size(byteCount: number): string {
  if (byteCount < 1_024) return `${byteCount} bytes`
  return byteCount < 1_024 ** 2 ? `${(byteCount / 1_024).toFixed(1)} KiB` : `${(byteCount / 1_024 ** 2).toFixed(1)} MiB`
}

// Control characters move the cursor and set titles. Marks of direction make a line read as another one. Newline and tab stay.
// oxlint-disable-next-line no-control-regex
const unprintable = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g

export function printable(given: string): string {
  return given.replace(unprintable, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`)
}

/** One line: what is in a table or behind a label. */
export function oneLine(given: string): string {
  return printable(given).replaceAll('\n', '\\n').replaceAll('\t', '\\t')
}

/** One word of a command line, as a shell takes it. What a terminal must not obey is escaped in the way of bash and zsh. */
export function quoted(word: string): string {
  if (/^[\w./:@%+=-]+$/.test(word)) return word
  if (oneLine(word) !== word) return `$'${oneLine(word.replace(/[\\']/g, '\\$&'))}'`
  return `'${word.replaceAll("'", `'\\''`)}'`
}

/** An option of a command to be pasted. A value that begins with a dash would be read as the next option. */
export function optionWords(name: string, value: string): string {
  return `${name}${value.startsWith('-') ? '=' : ' '}${quoted(value)}`
}

/** A key as every command tells it. A scope may end in a slash, so no slash without blanks divides scope and id. */
export function keyName({ scope, id }: { readonly scope: string; readonly id: string }): string {
  return oneLine(`${scope} / ${id}`)
}

/** What to type for this program. Only npx finds a program that is installed in a project, and npx says that it started it. */
export function programWords(): string {
  return process.env['npm_command'] === 'exec' ? 'npx onceonly' : 'onceonly'
}

/** A command of this program, to be pasted. Where an operand begins with a dash, the operands follow the options, after `--`. */
export function commandWords(command: string, operands: readonly string[], options: readonly string[] = []): string {
  const words = operands.map(quoted)
  const given = options.filter((each) => each !== '')
  const isPlain = operands.every((each) => !each.startsWith('-'))
  return [programWords(), command, ...(isPlain ? [...words, ...given] : [...given, '--', ...words])].join(' ')
}

/** Lines of at most `width` characters, broken at blanks. A longer word stays whole. */
export function wrapped(given: string, width: number): string[] {
  const lines: string[] = []
  for (const word of given.split(' ')) {
    const last = lines.at(-1)
    if (last !== undefined && last.length + 1 + word.length <= width) lines[lines.length - 1] = `${last} ${word}`
    else lines.push(word)
  }
  return lines
}

/** As wide as the terminal, and no wider than a person reads. Piped text is not broken. */
export function textWidth(): number {
  // A terminal without a screen (CI, a serial line) says that it has 0 columns.
  return process.stdout.isTTY ? Math.min(process.stdout.columns || 80, 120) : Infinity
}

export type Tone = 'good' | 'care' | 'bad' | 'quiet' | 'strong'

const styles = { good: 'green', care: 'yellow', bad: 'red', quiet: 'dim', strong: 'bold' } as const

/** Coloured on a terminal only, and there as Node decides (NO_COLOR, FORCE_COLOR, TERM=dumb, most CI: not). */
export function paint(tone: Tone, given: string): string {
  return styleText(styles[tone], given, { stream: process.stdout, validateStream: true })
}

/** Columns as wide as their widest cell. Colours do not count, as they are given for whole rows after the layout. */
export function table(head: readonly string[], rows: readonly (readonly string[])[]): string[] {
  const cells = [head, ...rows].map((row) => row.map(oneLine))
  const widths = head.map((_, column) => Math.max(...cells.map((row) => row[column]!.length)))
  return cells.map((row) =>
    row
      .map((cell, column) => cell.padEnd(widths[column]!))
      .join('  ')
      .trimEnd(),
  )
}
