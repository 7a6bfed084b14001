import { describe, expect, test } from 'vitest'
import { address, bytes, choice, chosen, count, duration, flag, list, parseCommand, text } from './arguments.ts'
import type { ParsedCommand } from './arguments.ts'

const options = { store: text, lease: duration, limit: count, json: flag, state: choice('open', 'settled') }

function parse(...args: string[]): ParsedCommand<typeof options> | undefined {
  return parseCommand({ command: 'keys show', help: 'the help', options, operands: ['SCOPE', 'ID'], args })
}

describe('a command line', () => {
  test('has its options and what follows, in any order', () => {
    expect(parse('--lease=30s', 'payments', '--json', '42', '--store', 'sqlite:a.db')).toEqual({
      values: { lease: 30_000, json: true, store: 'sqlite:a.db' },
      operands: ['payments', '42'],
    })
    expect(parse('--', '--scope', '--id')!.operands).toEqual(['--scope', '--id'])
    expect(parse('a', 'b', '--store=-x')!.values.store).toBe('-x')
  })

  test.each<[args: string[], said: RegExp]>([
    [['a', 'b', '--stroe', 'x'], /^onceonly keys show: unknown option "--stroe", did you mean "--store"\?/],
    [['a', 'b', '-x'], /unknown option "-x"/],
    [['a', 'b', '--constructor'], /unknown option "--constructor"/],
    [['a', 'b', '--__proto__=1'], /unknown option "--__proto__"/],
    [['a', 'b', '--store'], /expected --store to be a non-empty text, got nothing/],
    [['a', 'b', '--store', '--json'], /expected --store to be a non-empty text, got nothing/],
    [['a', 'b', '--store='], /expected --store to be a non-empty text, got ""/],
    [['a', 'b', '--json=yes'], /--json takes no value, got "yes"/],
    [['a', 'b', '--json', '--json'], /--json is given twice/],
    [['a', 'b', '--lease', '30'], /expected --lease to be a duration such as 500ms, .* got "30"/],
    [['a', 'b', '--state', 'opened'], /expected --state to be "open" or "settled", got "opened"/],
    [['a'], /ID is missing\. See onceonly keys show --help\.$/],
    [['a', 'b', 'c'], /"c" is one argument more than expected/],
  ])('%j is refused with what was expected', (args, said) => {
    expect(() => parse(...args)).toThrow(said)
    expect(() => parse(...args)).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT' }))
  })

  test('what is refused is shown without the password of a URL, and not at length', () => {
    expect(() => parse('a', 'b', '--lease', 'postgres://me:secret@host/x')).toThrow('"postgres://…@host/x"')
    const long = 'x'.repeat(10_000)
    expect(() => parse('a', 'b', '--lease', long)).toThrow(/got "x{80}…"/)
  })

  test('commands are told by name, or by the nearest one', () => {
    expect(chosen('', ['keys', 'sweep'], 'keys')).toBe('keys')
    expect(() => chosen('', ['keys', 'sweep'], 'swep')).toThrow(
      'onceonly: unknown command "swep", expected "keys" or "sweep", did you mean "sweep"? See onceonly --help.',
    )
    expect(() => chosen('keys', ['list'], undefined)).toThrow('onceonly keys: nothing was asked for, expected "list".')
  })
})

describe('values', () => {
  test.each<[string, number | undefined]>([
    ['500ms', 500],
    ['30s', 30_000],
    ['5m', 300_000],
    ['24h', 86_400_000],
    ['7d', 604_800_000],
    ['1.5s', 1_500],
    ['0s', 0],
    ['36525d', 36_525 * 86_400_000],
    ['36526d', undefined],
    ['30', undefined],
    ['30 s', undefined],
    ['-1s', undefined],
    ['1e3s', undefined],
    ['s', undefined],
    ['9999999999999999999d', undefined],
  ])('the duration %s is %s ms', (given, expected) => {
    expect(duration.parse(given)).toBe(expected)
  })

  test.each<[string, number | undefined]>([
    ['65536', 65_536],
    ['64kb', 65_536],
    ['1MB', 1_048_576],
    ['0.5gb', 536_870_912],
    ['10b', 10],
    ['1tb', undefined],
    ['-1', undefined],
    ['999999999999999gb', undefined],
  ])('the size %s is %s bytes', (given, expected) => {
    expect(bytes.parse(given)).toBe(expected)
  })

  test.each<[string, object | undefined]>([
    ['127.0.0.1:8080', { host: '127.0.0.1', port: 8_080 }],
    ['0.0.0.0:0', { host: '0.0.0.0', port: 0 }],
    ['[::1]:80', { host: '::1', port: 80 }],
    ['8080', { host: '127.0.0.1', port: 8_080 }],
    ['localhost:1', { host: 'localhost', port: 1 }],
    ['localhost', undefined],
    ['a:65536', undefined],
    ['::1:80', undefined],
    ['http://a:80', undefined],
    ['a b:80', undefined],
  ])('the address %s is %j', (given, expected) => {
    expect(address.parse(given)).toEqual(expected)
  })

  test('a list has no empty member, a count is positive', () => {
    expect(list.parse('POST, PATCH')).toEqual(['POST', 'PATCH'])
    expect(list.parse('POST,')).toBeUndefined()
    expect(count.parse('10')).toBe(10)
    for (const given of ['0', '-1', '1.5', '1e3', ' 1', '']) expect(count.parse(given)).toBeUndefined()
  })
})
