// Lambda's events have another spelling than the SDK's messages, and its answer is the acknowledgement.

import { expect, test } from 'vitest'
import { rememberingReceiver } from '../../../test/messages/remembering-receiver.ts'
import { sqsEventHandler } from '../sqs.ts'
import type { SqsEventRecord } from '../sqs.ts'
import { failuresIn } from './requests.ts'

function record(id: string, group?: string): SqsEventRecord {
  return {
    messageId: `sqs-${id}`,
    receiptHandle: `handle-${id}`,
    body: `{"order":"${id}"}`,
    attributes: {
      SentTimestamp: '1700000000000',
      ApproximateReceiveCount: '2',
      ...(group !== undefined && { MessageGroupId: group, MessageDeduplicationId: id }),
    },
    messageAttributes: group === undefined ? { 'ce-id': { dataType: 'String', stringValue: id } } : {},
    eventSourceARN: `arn:aws:sqs:eu-central-1:123456789012:orders${group === undefined ? '' : '.fifo'}`,
  }
}

const identifiers = (...ids: string[]): { itemIdentifier: string }[] =>
  ids.map((id) => ({ itemIdentifier: `sqs-${id}` }))

test('an event of Lambda names the messages that are to come again, and no others', async () => {
  const inbox = rememberingReceiver()
  const handle = sqsEventHandler({ inbox }, (tx, fresh) => {
    if (fresh.some(({ id }) => id === 'b')) throw new Error('not now')
    tx.push(...fresh.map(({ id }) => id!))
  })
  const answer = await handle({ Records: [record('a'), record('b'), record('c'), record('a')] })
  expect(answer).toEqual({ batchItemFailures: identifiers('b') })
  expect(inbox.effects).toEqual(['a', 'c'])
  expect(inbox.seen[0]).toMatchObject({ id: 'a', topic: 'orders', delivery: 2, sentAtMs: 1_700_000_000_000 })
})

test('an inbox that delivers at most once is refused, as Lambda deletes a message after the function has returned', () => {
  const inbox = { ...rememberingReceiver(), delivery: 'at-most-once' as const }
  expect(() => sqsEventHandler({ inbox }, () => {})).toThrow(
    expect.objectContaining({ code: 'UNSUPPORTED', message: expect.stringContaining('Use sqsConsumer') as string }),
  )
})

test('of a FIFO queue, what follows a failure in its group comes again, too, and is not handled', async () => {
  const inbox = rememberingReceiver()
  const handle = sqsEventHandler({ inbox }, (tx, fresh) => {
    if (fresh.some(({ id }) => id === 'a2')) throw new Error('not now')
    tx.push(...fresh.map(({ id }) => id!))
  })
  const Records = [record('a1', 'a'), record('a2', 'a'), record('b1', 'b'), record('a3', 'a'), record('b2', 'b')]
  expect(await handle({ Records })).toEqual({ batchItemFailures: identifiers('a2', 'a3') })
  expect(inbox.effects.toSorted()).toEqual(['a1', 'b1', 'b2'])
  expect(inbox.seen.map(({ id }) => id)).not.toContain('a3')
})

test('an entry of a batch is done only when SQS says so', () => {
  const result = {
    Successful: [{ Id: '0' }],
    Failed: [{ Id: '1', Code: 'ReceiptHandleIsInvalid', Message: 'too late', SenderFault: true }],
  }
  const failures = failuresIn(result, [{ Id: '0' }, { Id: '1' }, { Id: '2' }])
  expect(failures.map((each) => each?.message)).toEqual([
    undefined,
    'SQS refused it: ReceiptHandleIsInvalid, too late',
    'SQS did not say what became of it',
  ])
})
