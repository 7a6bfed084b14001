// The brokers of the chain. Each is loaded when it is asked for: a process that is killed twenty times should start quickly.
import type { ServerName } from '../../servers/index.ts'
import type { ChainBroker } from './broker.ts'

export interface BrokerRow {
  readonly needs: readonly ServerName[]
  // Consumers at once: more than one only where the broker itself keeps the order of a key among them.
  readonly consumers: number
  // Why no order can be asked for.
  readonly noOrder?: string
  load(): Promise<ChainBroker>
}

export const brokers = {
  kafka: {
    needs: ['kafka', 'confluent'],
    consumers: 1,
    load: async () => (await import('./brokers/kafka.ts')).kafka,
  },
  nats: {
    needs: ['nats'],
    consumers: 2,
    load: async () => (await import('./brokers/nats.ts')).nats,
  },
  rabbitmq: {
    needs: ['rabbitmq'],
    consumers: 2,
    load: async () => (await import('./brokers/rabbitmq.ts')).rabbitmq,
  },
  'redis-streams': {
    needs: ['redis'],
    consumers: 1,
    load: async () => (await import('./brokers/redis-streams.ts')).redisStreams,
  },
  'sqs, cut off': {
    needs: ['elasticmq'],
    consumers: 2,
    load: async () => (await import('./brokers/sqs.ts')).sqsCutOff,
  },
  'sqs, killed': {
    needs: ['elasticmq'],
    consumers: 2,
    noOrder:
      'ElasticMQ that was killed hands out the messages that were in flight behind the later ones of their group',
    load: async () => (await import('./brokers/sqs.ts')).sqsKilled,
  },
} satisfies Record<string, BrokerRow>

export type BrokerName = keyof typeof brokers
