// Kafka in the chain, with Confluent's client.
import {
  confluentClient,
  type ConfluentLibrary,
  kafkaConsumer,
  kafkaPublisher,
} from '../../../../src/messages/kafka.ts'
import { requireConfluent } from '../../../servers/confluent.ts'
import { startKafka } from '../../../servers/kafka.ts'
import { type ChainBroker, killed, topic } from '../broker.ts'

export const kafka: ChainBroker = {
  async start() {
    const server = await startKafka()
    // Loads two more clients, which a process that is killed has no use for.
    const { requireTopic } = await import('../../kafka/world.ts')
    await requireTopic(server.url, topic, 4)
    return killed(server, server.url)
  },
  publisher: async (place) => kafkaPublisher({ client: confluentOn(place), timeoutMs: 5_000 }),
  consume: async ({ place, inbox, name }, handler) => {
    // A static member: the one that is started again has the partitions of the one that was killed, without a rebalance.
    const settings = { topics: [topic], group: 'chain', instanceId: name }
    return kafkaConsumer({ client: confluentOn(place), ...settings, inbox }, handler)
  },
}

function confluentOn(url: string): ReturnType<typeof confluentClient> {
  return confluentClient(requireConfluent() as ConfluentLibrary, { 'bootstrap.servers': new URL(url).host })
}
