// NATS in the chain: a durable consumer of JetStream that has one message out at a time.
import { AckPolicy, jetstream, jetstreamManager } from '@nats-io/jetstream'
import { connect, headers, nanos, type NatsConnection } from '@nats-io/transport-node'
import { natsConsumer, natsPublisher } from '../../../../src/messages/nats.ts'
import { startNats } from '../../../servers/nats.ts'
import { pollUntil } from '../../../servers/poll.ts'
import { type ChainBroker, killed, topic } from '../broker.ts'

export const nats: ChainBroker = {
  async start() {
    const server = await startNats()
    const connection = await natsAt(server.url)
    const manager = await jetstreamManager(connection)
    await manager.streams.add({ name: topic, subjects: [topic] })
    // JetStream delivers later messages before those of a consumer that died. With one at a time there are no later ones.
    const inOrder = { ack_policy: AckPolicy.Explicit, ack_wait: nanos(1_000), max_ack_pending: 1 }
    await manager.consumers.add(topic, { durable_name: 'chain', ...inOrder })
    await connection.close()
    return killed(server, server.url)
  },
  async publisher(place) {
    const connection = await natsAt(place)
    const publisher = natsPublisher({ jetstream: jetstream(connection), headers, stream: topic, timeoutMs: 2_000 })
    return { ...publisher, close: () => connection.close() }
  },
  async consume({ place, inbox }, handler) {
    const found = jetstream(await natsAt(place)).consumers
    // A server that has just come back may not have its streams yet.
    const consumer = await pollUntil('the consumer', () => found.get(topic, 'chain').catch(() => undefined))
    return natsConsumer({ consumer, inbox, timeoutMs: 1_000 }, handler)
  },
}

const natsAt = (url: string): Promise<NatsConnection> =>
  connect({ servers: url, waitOnFirstConnect: true, maxReconnectAttempts: -1, reconnectTimeWait: 100 })
