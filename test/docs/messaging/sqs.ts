// The programs of docs/messaging.md about SQS run as written, on a queue of a real server.

import { afterAll, expect, test } from 'vitest'
import { elasticmq } from '../../servers/elasticmq.ts'
import { needs } from '../../servers/needs.ts'
import { sharedUrl } from '../../servers/shared.ts'
import { connectSqs, createQueue } from '../../subjects/sqs.ts'
import { take } from '../blocks.ts'
import { openPrograms } from '../programs.ts'

const running = openPrograms()
afterAll(() => running[Symbol.dispose]())

const programs = take('docs/messaging.md', (code) => code.includes("'onceonly/sqs'"))

/** In the place of the inbox that the page leaves open: hands everything on, and prints what is written. */
const printing = `
const tx = { query: async (_sql: string, values: unknown[]) => console.log(JSON.stringify(values)) }
const inbox: Receiver<typeof tx> = {
  consumer: 'docs',
  async deliver(message, handler, acknowledge) {
    await handler(tx, message)
    await acknowledge()
    return { acknowledged: true }
  },
  async deliverBatch(messages, handler, acknowledge) {
    await handler(tx, messages)
    await acknowledge([...messages.keys()])
    return messages.map(() => ({ acknowledged: true }))
  },
}`

function programWith(text: string): string {
  const [found] = programs.filter(({ code }) => code.includes(text))
  expect(found!.code).toContain('declare const inbox')
  return found!.code.replace(/^declare const inbox.*$/m, printing)
}

test('there are two programs, a consumer and a function of Lambda', () => {
  expect(programs).toHaveLength(2)
})

needs('elasticmq').test('SQS: the consumer and the publisher run as written', async () => {
  const url = await sharedUrl(elasticmq)
  const client = connectSqs(url)
  const env = {
    QUEUE_URL: await createQueue(client),
    AWS_ENDPOINT_URL_SQS: url,
    AWS_ACCESS_KEY_ID: 'onceonly',
    AWS_SECRET_ACCESS_KEY: 'onceonly',
  }
  client.destroy()
  const end = `
await publisher.publish([{ id: '1', topic: 'orders', body: Buffer.from('{"orderId":"order-1"}'), headers: {} }])
while ((await client.getQueueAttributes({ QueueUrl: queueUrl, AttributeNames: ['ApproximateNumberOfMessages'] }))
  .Attributes?.ApproximateNumberOfMessages !== '0') await new Promise((resolve) => setTimeout(resolve, 20))
await consuming.stop()
client.destroy()
`
  expect(await running.run('sqs', `${programWith('sqsConsumer(')}${end}`, [], env)).toBe('["order-1"]')
})

test('SQS on Lambda: the function runs as written', async () => {
  const end = `
const record = { messageId: 'm', receiptHandle: 'h', body: '{}', messageAttributes: {},
  attributes: { SentTimestamp: '1', ApproximateReceiveCount: '1', MessageGroupId: 'order-1' },
  eventSourceARN: 'arn:aws:sqs:eu-central-1:123456789012:orders.fifo' }
console.log(JSON.stringify(await handler({ Records: [record] })))
`
  const said = await running.run('lambda', `${programWith('sqsEventHandler(')}${end}`)
  expect(said.split('\n')).toEqual(['[["order-1"]]', '{"batchItemFailures":[]}'])
})
