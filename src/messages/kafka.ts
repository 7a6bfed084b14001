// Kafka: a publisher for a relay, a consumer for an inbox, and consume-transform-produce in one transaction. Three clients can be used, each within what it can be trusted with
// (clients/kafka.ts), and a promise that a client cannot keep is refused by name.

export { confluentClient, kafkajsClient, platformaticClient } from '../clients/kafka.ts'
export type {
  ConfluentLibrary,
  KafkaAbilities,
  KafkaClient,
  KafkajsKafka,
  KafkaRecord,
  PlatformaticLibrary,
} from '../clients/kafka.ts'
export { exactlyOnce, type ExactlyOnceOptions, type Transformed } from './kafka/exactly-once.ts'
export { kafkaConsumer, type KafkaBatchHandler, type KafkaConsumerOptions } from './kafka/consumer.ts'
export type { KafkaMessage } from './kafka/headers.ts'
export {
  kafkaTransactionalPublisher,
  type KafkaTransactionalPublisherOptions,
} from './kafka/transactional-publisher.ts'
export { kafkaPublisher, type KafkaPublisherOptions } from './kafka/publisher.ts'
export type { Consuming, Message, Outgoing, Publisher, Receiver, ShardedPublisher, StoredOffsets } from './broker.ts'
