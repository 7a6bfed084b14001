// NATS as the tests get it: what it keeps over a crash.
import { jetstream, jetstreamManager } from '@nats-io/jetstream'
import { connect } from '@nats-io/transport-node'
import { expect, test } from 'vitest'
import { startNats } from './nats.ts'
import { needs } from './needs.ts'
import { pollUntil } from './poll.ts'
import { isAlive } from './process-tree.ts'

async function messagesIn(url: string, stream: string): Promise<number> {
  const connection = await connect({ servers: url })
  try {
    return (await (await jetstreamManager(connection)).streams.info(stream)).state.messages
  } finally {
    await connection.close()
  }
}

async function keep(url: string, stream: string): Promise<void> {
  const connection = await connect({ servers: url })
  await (await jetstreamManager(connection)).streams.add({ name: stream, subjects: [`${stream}.>`] })
  await jetstream(connection).publish(`${stream}.a`, 'kept')
  await connection.close()
}

needs('nats', { ours: true }).describe('a NATS of our own', () => {
  test('keeps what it has acknowledged over a crash and an orderly restart, and leaves no process behind', async () => {
    await using server = await startNats()
    await keep(server.url, 'kept')
    await server.crash()
    await server.restart()
    expect(await messagesIn(server.url, 'kept')).toBe(1)
    await server.restart()
    expect(await messagesIn(server.url, 'kept')).toBe(1)
    const pid = server.pid!
    await server.stop()
    await pollUntil('its process to end', () => !isAlive(pid))
  })
})
