import { beforeEach, expect, test, vi } from 'vitest'
import {
  commandWords,
  keyName,
  moment,
  oneLine,
  optionWords,
  printable,
  quoted,
  size,
  span,
  table,
  timeText,
  wrapped,
} from './words.ts'

// vitest may have been started by npx itself.
beforeEach(() => {
  vi.stubEnv('npm_command', 'test')
})

test.each<[ms: number, words: string]>([
  [0, '0 ms'],
  [999, '999 ms'],
  [1_500, '1 s'],
  [-61_000, '1 min 1 s'],
  [3_600_000, '1 h'],
  [90_061_000, '1 d 1 h'],
  [86_400_000 + 5_000, '1 d 5 s'],
])('%s ms is %s', (ms, words) => {
  expect(span(ms)).toBe(words)
})

test('a moment is told by the clock and from here', () => {
  expect(moment(0, 3_000)).toBe('1970-01-01T00:00:00.000Z (3 s ago)')
  expect(moment(3_000, 0)).toBe('1970-01-01T00:00:03.000Z (in 3 s)')
  expect(timeText(Number.MAX_SAFE_INTEGER)).toBe('9007199254740991 ms')
})

test('what comes from a store is shown and never obeyed by the terminal', () => {
  expect(printable('\u001b[31mred\u0007\u009b2J\nnext')).toBe('\\u001b[31mred\\u0007\\u009b2J\nnext')
  expect(oneLine('a\nb\tc\u202egpj.exe')).toBe('a\\nb\\tc\\u202egpj.exe')
  expect(oneLine('größe 😀 日本')).toBe('größe 😀 日本')
})

test('a command can be pasted, whatever is in its words', () => {
  expect(["it's", 'a b', 'a-b', '', 'a\u202eb', "\u200b'\\"].map(quoted)).toEqual([
    `'it'\\''s'`,
    `'a b'`,
    'a-b',
    `''`,
    `$'a\\u202eb'`,
    `$'\\u200b\\'\\\\'`,
  ])
  expect(commandWords('keys show', ['a b', 'c'], ['--json', ''])).toBe(`onceonly keys show 'a b' c --json`)
  // An operand that begins with a dash is no option.
  expect(commandWords('keys show', ['a', '--yes'], ['--json'])).toBe('onceonly keys show --json -- a --yes')
  expect([optionWords('--id', 'a'), optionWords('--id', '-a b')]).toEqual(['--id a', `--id='-a b'`])
})

test('a command to be pasted begins with npx where npx started the program', () => {
  vi.stubEnv('npm_command', 'exec')
  expect(commandWords('keys show', ['a', 'b'])).toBe('npx onceonly keys show a b')
})

test('a key is told with its scope and its id apart', () => {
  expect(keyName({ scope: 'gateway:default/', id: 'a\nb' })).toBe('gateway:default/ / a\\nb')
})

test('a table is as wide as its widest cells', () => {
  expect(
    table(
      ['A', 'B'],
      [
        ['long', 'x'],
        ['s\u001b', 'y'],
      ],
    ),
  ).toEqual(['A        B', 'long     x', 's\\u001b  y'])
})

test('text is broken at blanks and loses no word', () => {
  expect(wrapped('one two three', 7)).toEqual(['one two', 'three'])
  expect(wrapped('incomprehensibilities a', 5)).toEqual(['incomprehensibilities', 'a'])
  expect(wrapped('a b c', Infinity)).toEqual(['a b c'])
})

test('sizes', () => {
  expect([size(10), size(1_536), size(3 * 1_024 ** 2)]).toEqual(['10 bytes', '1.5 KiB', '3.0 MiB'])
})
