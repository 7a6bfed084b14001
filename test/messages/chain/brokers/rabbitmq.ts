// RabbitMQ in the chain: a quorum queue, which one of its consumers has at a time.
import { connect } from 'amqplib'
import { rabbitmqConsumer, rabbitmqPublisher } from '../../../../src/messages/rabbitmq.ts'
import { startRabbitmq } from '../../../servers/rabbitmq.ts'
import { type ChainBroker, killed, topic } from '../broker.ts'

export const rabbitmq: ChainBroker = {
  async start() {
    const server = await startRabbitmq()
    const connection = await connect(server.url)
    const channel = await connection.createChannel()
    const settings = { 'x-queue-type': 'quorum', 'x-delivery-limit': -1, 'x-single-active-consumer': true }
    await channel.assertQueue(topic, { durable: true, arguments: settings })
    await connection.close()
    await server.queueKept(topic)
    return killed(server, server.url)
  },
  publisher: async (place) => rabbitmqPublisher({ connect: () => connect(place), timeoutMs: 5_000 }),
  consume: async ({ place, inbox }, handler) =>
    rabbitmqConsumer({ connect: () => connect(place), queue: topic, inbox }, handler),
}
