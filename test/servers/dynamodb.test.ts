// DynamoDB Local as the tests get it: what it keeps over a crash, and who is believed to be it.
import { createServer } from 'node:net'
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { DynamoDB } from '@aws-sdk/client-dynamodb'
import { expect, test } from 'vitest'
import { startDynamodb } from './dynamodb.ts'
import { listensOn } from './listens-on.ts'
import { needs } from './needs.ts'

function connect(endpoint: string): DynamoDB {
  return new DynamoDB({ endpoint, region: 'local', credentials: { accessKeyId: 'a', secretAccessKey: 'b' } })
}

needs('dynamodb', { ours: true }).describe('a DynamoDB of our own', () => {
  test('keeps what was written over a crash and an orderly restart', async () => {
    await using server = await startDynamodb()
    const client = connect(server.url)
    await client.createTable({
      TableName: 'kept',
      BillingMode: 'PAY_PER_REQUEST',
      KeySchema: [{ AttributeName: 'id', KeyType: 'HASH' }],
      AttributeDefinitions: [{ AttributeName: 'id', AttributeType: 'S' }],
    })
    await client.putItem({ TableName: 'kept', Item: { id: { S: 'a' } } })
    const read = () => client.getItem({ TableName: 'kept', Key: { id: { S: 'a' } } })
    await server.crash()
    await server.restart()
    expect((await read()).Item).toEqual({ id: { S: 'a' } })
    await server.restart()
    expect((await read()).Item).toEqual({ id: { S: 'a' } })
  })

  test('given by URL is used as it is', async () => {
    await using server = await startDynamodb()
    process.env['ONCEONLY_DYNAMODB_URL'] = server.url
    try {
      const given = await startDynamodb()
      expect((await connect(given.url).listTables({})).TableNames).toEqual([])
      await expect(given.crash()).rejects.toThrow(/cannot be crashed/)
    } finally {
      delete process.env['ONCEONLY_DYNAMODB_URL']
    }
  })
})

test('listensOn tells a process from another that has the port', async () => {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  expect(listensOn(process.pid, port)).toBe(true)
  // Where the system cannot tell, everybody is believed.
  if (process.platform === 'linux') expect(listensOn(1, port)).toBe(false)
  server.close()
  await once(server, 'close')
  if (process.platform === 'linux') expect(listensOn(process.pid, port)).toBe(false)
})
