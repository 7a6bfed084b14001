// RabbitMQ as the tests get it: what it keeps over a crash, and that it leaves nothing behind.
import { readdirSync, readFileSync } from 'node:fs'
import { connect } from 'amqplib'
import { expect, test } from 'vitest'
import { needs } from './needs.ts'
import { pollUntil } from './poll.ts'
import { isAlive } from './process-tree.ts'
import { startRabbitmq } from './rabbitmq.ts'

/** The name server and whatever else it has started. */
function childrenOf(pid: number): number[] {
  return readdirSync(`/proc/${pid}/task`).flatMap((task) => {
    const children = readFileSync(`/proc/${pid}/task/${task}/children`, 'utf8')
    return children.split(' ').filter(Boolean).map(Number)
  })
}

async function messagesIn(url: string, queue: string): Promise<number> {
  const connection = await connect(url)
  try {
    const channel = await connection.createChannel()
    return (await channel.checkQueue(queue)).messageCount
  } finally {
    await connection.close()
  }
}

async function keep(url: string, queue: string): Promise<void> {
  const connection = await connect(url)
  const channel = await connection.createConfirmChannel()
  await channel.assertQueue(queue, { durable: true, arguments: { 'x-queue-type': 'quorum' } })
  channel.sendToQueue(queue, Buffer.from('kept'), { persistent: true })
  await channel.waitForConfirms()
  await connection.close()
}

needs('rabbitmq', { ours: true }).describe('a RabbitMQ of our own', () => {
  test('keeps what it has confirmed over a crash and an orderly restart, and leaves no process behind', async () => {
    await using server = await startRabbitmq()
    await keep(server.url, 'kept')
    await server.queueKept('kept')
    const first = [server.pid!, ...childrenOf(server.pid!)]
    expect(first.length).toBeGreaterThan(1)
    await server.crash()
    await pollUntil('its processes to end', () => !first.some(isAlive))
    await server.restart()
    await pollUntil('the message', async () => (await messagesIn(server.url, 'kept')) === 1)
    const second = [server.pid!, ...childrenOf(server.pid!)]
    await server.shutDown()
    await pollUntil('its processes to end', () => !second.some(isAlive))
    await server.restart()
    await pollUntil('the message', async () => (await messagesIn(server.url, 'kept')) === 1)
    const third = [server.pid!, ...childrenOf(server.pid!)]
    await server.stop()
    await pollUntil('its processes to end', () => !third.some(isAlive))
  })
})
