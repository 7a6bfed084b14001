// Effect and record in one transaction of DynamoDB. The effect collects its items with `tx`. They are written together with the
// record of the key, or not at all.

import { DynamoDB } from '@aws-sdk/client-dynamodb'
import { createOnce, OnceError } from 'onceonly'
import { dynamodbStore } from 'onceonly/dynamodb'

const client = new DynamoDB({ region: 'local', endpoint: process.env['DYNAMODB_URL'] ?? 'http://127.0.0.1:8000' })
const store = dynamodbStore({ client, table: 'onceonly' })
await store.migrate()
await client.createTable({
  TableName: 'accounts',
  BillingMode: 'PAY_PER_REQUEST',
  KeySchema: [{ AttributeName: 'id', KeyType: 'HASH' }],
  AttributeDefinitions: [{ AttributeName: 'id', AttributeType: 'S' }],
})
await client.putItem({ TableName: 'accounts', Item: { id: { S: 'ann' }, cents: { N: '1000' } } })

const once = createOnce({ store, scope: 'transfers' })

const transfer = (id: string, cents: number) =>
  once.transaction(
    id,
    (tx) => {
      const amount = { ':cents': { N: String(cents) } }
      tx.update({
        TableName: 'accounts',
        Key: { id: { S: 'ann' } },
        UpdateExpression: 'ADD cents :minus',
        ConditionExpression: 'cents >= :cents',
        ExpressionAttributeValues: { ...amount, ':minus': { N: String(-cents) } },
      })
      tx.update({
        TableName: 'accounts',
        Key: { id: { S: 'bob' } },
        UpdateExpression: 'ADD cents :cents',
        ExpressionAttributeValues: amount,
      })
      return { id, cents }
    },
    { fingerprint: { cents } },
  )

const results = await Promise.allSettled(Array.from({ length: 20 }, () => transfer('transfer-1', 600)))
// The condition does not hold: nothing was written, and the key is free.
const refused = await transfer('transfer-2', 600).catch((error: unknown) => error)
const balances = await Promise.all(
  ['ann', 'bob'].map(async (id) => (await client.getItem({ TableName: 'accounts', Key: { id: { S: id } } })).Item),
)
console.log(
  JSON.stringify({
    asked: results.length + 1,
    cents: balances.map((item) => Number(item?.['cents']?.N)),
    refused: refused instanceof OnceError ? refused.code : undefined,
  }),
)
await once.close()
client.destroy()
