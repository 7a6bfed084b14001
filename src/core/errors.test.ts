import { expect, test } from 'vitest'
import { errorCodes, FinalError, InDoubtError, invalidArgument, NotBegunError, OnceError } from './errors.ts'
import type { ErrorCode } from './errors.ts'

test.each(Object.entries(errorCodes))(
  '%s says what its row says, unless the error itself knows better',
  (code, row) => {
    expect(new OnceError(code as ErrorCode, { message: 'm' })).toMatchObject({ code, message: 'm', ...row })
    const other = { executed: row.executed === 'no' ? 'yes' : 'no', retryable: !row.retryable } as const
    expect(new OnceError(code as ErrorCode, { message: 'm', ...other, retryAfterMs: 5 })).toMatchObject({
      ...other,
      retryAfterMs: 5,
    })
  },
)

test.each([
  ['OnceError', (cause?: unknown) => new OnceError('MISMATCH', { message: 'm', cause })],
  ['FinalError', (cause?: unknown) => new FinalError('m', { cause })],
  ['InDoubtError', (cause?: unknown) => new InDoubtError('m', { cause })],
  ['NotBegunError', (cause?: unknown) => new NotBegunError('m', { cause })],
])('%s has its name, and a cause only where there is one', (name, make) => {
  const cause = new Error('why')
  expect(make(cause)).toMatchObject({ name, message: 'm', cause })
  expect(make()).toMatchObject({ name, message: 'm' })
  expect('cause' in make()).toBe(false)
})

test('a final failure keeps its data, and an argument that is refused has run nothing', () => {
  expect(new FinalError('m', { data: { code: 51 } }).data).toEqual({ code: 51 })
  expect(new FinalError('m').data).toBeUndefined()
  expect(invalidArgument('m')).toMatchObject({
    code: 'INVALID_ARGUMENT',
    message: 'm',
    executed: 'no',
    retryable: false,
  })
})
