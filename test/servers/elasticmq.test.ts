// ElasticMQ as the tests get it: what it keeps over a crash, and that it is not taken for a process that has its port.
import { once } from 'node:events'
import { createServer } from 'node:net'
import { SQS } from '@aws-sdk/client-sqs'
import { expect, test } from 'vitest'
import { startElasticmq } from './elasticmq.ts'
import { needs } from './needs.ts'
import { pollUntil } from './poll.ts'

function connect(endpoint: string): SQS {
  return new SQS({ endpoint, region: 'local', credentials: { accessKeyId: 'a', secretAccessKey: 'b' } })
}

needs('elasticmq', { ours: true }).describe('an ElasticMQ of our own', () => {
  test('keeps queues and messages over a crash and an orderly restart', async () => {
    await using server = await startElasticmq()
    const client = connect(server.url)
    const { QueueUrl } = await client.createQueue({ QueueName: 'kept', Attributes: { VisibilityTimeout: '0' } })
    await client.sendMessage({ QueueUrl, MessageBody: 'a' })
    const read = async () => (await client.receiveMessage({ QueueUrl })).Messages?.map(({ Body }) => Body)
    await server.crash()
    await server.restart()
    // At once: it is not back before its queues are.
    expect(await read()).toEqual(['a'])
    await server.restart()
    expect(await read()).toEqual(['a'])
    client.destroy()
  })

  test('is back as soon as another process that has its port is gone', async () => {
    await using server = await startElasticmq()
    await server.crash()
    const other = createServer().listen(server.port, '127.0.0.1')
    await once(other, 'listening')
    const back = server.restart()
    await pollUntil('it to find its port taken', () => server.logTail().includes('Cannot start SQS rest server'))
    other.close()
    await back
    const client = connect(server.url)
    expect((await client.listQueues({})).QueueUrls ?? []).toEqual([])
    client.destroy()
  })

  test('given by URL is used as it is', async () => {
    await using server = await startElasticmq()
    process.env['ONCEONLY_SQS_URL'] = server.url
    try {
      const given = await startElasticmq()
      const client = connect(given.url)
      expect((await client.listQueues({})).QueueUrls ?? []).toEqual([])
      client.destroy()
      await expect(given.crash()).rejects.toThrow(/cannot be crashed/)
    } finally {
      delete process.env['ONCEONLY_SQS_URL']
    }
  })
})
