// What is written of an operation, byte by byte: records outlive the version that wrote them.

import { describe, expect, test } from 'vitest'
import { key } from '../key.ts'
import { opaqueCodec, sealedWords } from '../outcome.ts'
import type { Codec } from '../outcome.ts'
import type { Ledger, LedgerRecord } from '../store.ts'
import { courseRecord, messageOf, readRecords, stepRecord, storable } from './records.ts'
import type { Course, StepRecord } from './records.ts'

const subject = key('shop/operations/checkout', '1')

/** Turns every byte, so that nothing of it can be read in the clear. */
const turning: Codec = {
  encode: (each) => Buffer.from(JSON.stringify(each)).map((byte) => byte ^ 1),
  decode: (bytes) => JSON.parse(Buffer.from(bytes.map((byte) => byte ^ 1)).toString()) as unknown,
}

const ledgerOf = (...records: readonly Omit<LedgerRecord, 'revision'>[]): Ledger => ({
  records: records.map((record, index) => ({ ...record, revision: index + 1, atMs: 100 + index })),
  dueAtMs: undefined,
  cancelReason: undefined,
})
const textOf = ({ content }: { content: Uint8Array }): string => Buffer.from(content).toString('latin1')
const record = (name: string, text: string): Omit<LedgerRecord, 'revision'> => ({
  name,
  content: Buffer.from(text, 'latin1'),
})

const course: Course = { version: 2, direction: 'forward', failures: 3 }
const step: StepRecord = { name: 'charge', order: 4, state: 'done', attempt: 2 }

describe('a record', () => {
  test('of a step is a line of JSON without its name, and its result after it', () => {
    const written = stepRecord({ ...step, result: Buffer.from('j"paid\n"') }, undefined)
    expect(written.name).toBe('charge')
    expect(textOf(written)).toBe('{"order":4,"state":"done","attempt":2}\nj"paid\n"')
    const { steps } = readRecords(subject, ledgerOf(written))
    expect(steps).toEqual([
      { content: { ...step, result: expect.any(Uint8Array) as Uint8Array }, revision: 1, atMs: 100 },
    ])
    expect(Buffer.from(steps[0]!.content.result!).toString()).toBe('j"paid\n"')
  })

  test('of a step without a result, and of the course, is that line alone', () => {
    const [began, whole] = [stepRecord({ ...step, state: 'began' }, undefined), courseRecord(course, undefined)]
    expect(textOf(began)).toBe('{"order":4,"state":"began","attempt":2}\n')
    expect(whole.name).toBe('')
    expect(textOf(whole)).toBe('{"version":2,"direction":"forward","failures":3}\n')
    const read = readRecords(subject, ledgerOf(began, whole))
    expect(read.steps[0]!.content).toEqual({ ...step, state: 'began' })
    expect(read.course).toEqual({ content: course, revision: 2, atMs: 101 })
  })

  test('that is missing is no record, and steps come in the order in which they began', () => {
    expect(readRecords(subject, undefined)).toEqual({ course: undefined, steps: [] })
    const steps = [3, 1, 2].map((order) => stepRecord({ ...step, name: `s${order}`, order }, undefined))
    expect(readRecords(subject, ledgerOf(...steps)).steps.map(({ content }) => content.name)).toEqual([
      's1',
      's2',
      's3',
    ])
  })

  test.each(['began', 'done', 'failed', 'undoing', 'undone', 'stuck', 'absent'] as const)('may be %s', (state) => {
    const { steps } = readRecords(subject, ledgerOf(stepRecord({ ...step, state }, undefined)))
    expect(steps[0]!.content.state).toBe(state)
  })

  test.each<[why: string, name: string, text: string]>([
    ['step "charge", cannot be read: its first line does not end', 'charge', '{"order":1}'],
    ['checkout/1 cannot be read: its first line does not end', '', ''],
    ['it is not an object', 'charge', 'null\n'],
    ['it is not an object', 'charge', '5\n'],
    ['it is not an object', '', 'null\n'],
    ['it has the state "over"', 'charge', '{"order":1,"attempt":1,"state":"over"}\n'],
    ['it has the state undefined', 'charge', '{"order":1,"attempt":1}\n'],
    ['it has no attempt or order', 'charge', '{"order":1,"state":"done"}\n'],
    ['it has no attempt or order', 'charge', '{"attempt":1,"state":"done"}\n'],
    ['it has no version or failures', '', '{"direction":"forward","failures":0}\n'],
    ['it has no version or failures', '', '{"direction":"forward","version":1}\n'],
    ['it has no direction', '', '{"version":1,"failures":0}\n'],
    ['it has no direction', '', '{"version":1,"failures":0,"direction":"sideways"}\n'],
    ['cannot be read', 'charge', '{"order":\xff}\n'],
    ['cannot be read', 'charge', '{"order"\n'],
  ])('that cannot be read is an error, and never "has not run": %s', (why, name, text) => {
    expect(() => readRecords(subject, ledgerOf(record(name, text)))).toThrow(
      expect.objectContaining({
        code: 'OUTCOME_UNREADABLE',
        executed: 'unknown',
        message: expect.stringContaining(why),
      }),
    )
  })
})

describe('with a codec', () => {
  const said: StepRecord = { ...step, state: 'stuck', error: 'card 4711 declined' }
  const ended: Course = {
    ...course,
    direction: 'backward',
    ending: { why: 'final', message: 'card 4711 declined', data: { pin: 1234 } },
    parked: 'waits for 4711',
    lastError: 'pin 1234 is wrong',
  }

  test('what an error said is sealed, and read back as it was', () => {
    const [failed, whole] = [stepRecord(said, turning), courseRecord(ended, turning)]
    for (const each of [failed, whole]) expect(textOf(each)).not.toMatch(/4711|1234/)
    expect(JSON.parse(textOf(failed))).toMatchObject({ state: 'stuck', error: sealedWords })
    expect(JSON.parse(textOf(whole))).toMatchObject({
      ending: { why: 'final', message: sealedWords },
      parked: sealedWords,
      lastError: sealedWords,
    })
    const read = readRecords(subject, ledgerOf(failed, whole), turning)
    expect(read.steps[0]!.content).toEqual({ ...said, sealed: undefined })
    expect(read.course!.content).toEqual({ ...ended, sealed: undefined })
  })

  test.each<[what: string, said: Partial<Course>]>([
    ['lastError', { lastError: 'no' }],
    ['parked', { parked: 'no' }],
    ['ending', { ending: { why: 'final', message: 'no' } }],
  ])('each of what was said is sealed by itself: %s', (name, one) => {
    const written = JSON.parse(textOf(courseRecord({ ...course, ...one }, turning))) as { sealed: string }
    expect(Object.keys(turning.decode(Buffer.from(written.sealed, 'base64')) as object)).toEqual([name])
    expect(Object.keys(written).sort()).toEqual(['direction', 'failures', 'sealed', 'version', name].sort())
  })

  test('a record in which nothing was said is as without', () => {
    expect(textOf(courseRecord(course, turning))).toBe(textOf(courseRecord(course, undefined)))
    expect(textOf(stepRecord(step, turning))).toBe(textOf(stepRecord(step, undefined)))
  })

  test('a tool without it shows other words, and writes back what it has read', () => {
    const written = courseRecord(ended, turning)
    for (const codec of [undefined, opaqueCodec]) {
      const { content } = readRecords(subject, ledgerOf(written), codec).course!
      expect(content).toMatchObject({ parked: sealedWords, ending: { message: sealedWords } })
      expect(textOf(courseRecord(content, codec))).toBe(textOf(written))
      // A person has resumed it with that tool: what was taken out is not put back.
      const { parked: _parked, ...resumed } = content
      const again = readRecords(subject, ledgerOf(courseRecord(resumed, codec)), turning).course!.content
      expect(again).toMatchObject({ lastError: 'pin 1234 is wrong' })
      expect(again).not.toHaveProperty('parked')
    }
  })

  test('that gives back no object is an error', () => {
    const codec: Codec = { ...turning, decode: () => 'text' }
    expect(() => readRecords(subject, ledgerOf(courseRecord(ended, turning)), codec)).toThrow('it is not an object')
  })
})

test('an error is kept by its message, shortened, whatever was thrown', () => {
  expect(messageOf(new Error('down'))).toBe('down')
  expect(messageOf('text')).toBe('text')
  expect(messageOf(undefined)).toBe('undefined')
  expect(messageOf(new Error('x'.repeat(2_001)))).toHaveLength(2_000)
  expect(messageOf(Object.create(null))).toBe('something that has no text was thrown')
})

test('a result that cannot be stored is refused with the name of its step', () => {
  expect(Buffer.from(storable(subject, undefined, 'charge', { a: 1 }).bytes).toString()).toBe('j{"a":1}')
  expect(() => storable(subject, undefined, 'charge', 5n)).toThrow(
    expect.objectContaining({
      code: 'OUTCOME_NOT_STORED',
      executed: 'unknown',
      message: expect.stringContaining('step "charge" of shop/operations/checkout/1'),
    }),
  )
})
