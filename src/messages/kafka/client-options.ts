// The options that say which client and what it must be able to do. A promise that the client cannot keep is refused here, by name.

import type { KafkaClient } from '../../clients/kafka.ts'
import { OnceError } from '../../core/errors.ts'
import { type Rule, withMethods } from '../../core/options.ts'

export const aKafkaClient: Rule = (value) =>
  withMethods('producer', 'join', 'isFinal')(value) && 'confluentClient(…), kafkajsClient(…) or platformaticClient(…)'

export const topicNames: Rule = (value) =>
  Array.isArray(value) && value.length > 0 && value.every((each) => typeof each === 'string' && each !== '')
    ? undefined
    : 'a list of topics'

/** Group options that not every client can keep. */
export interface KafkaGroupPromises {
  readonly isolation: 'read_committed' | 'read_uncommitted'
  readonly instanceId: string | undefined
  readonly protocol: 'classic' | 'consumer'
}

export function refuseGroupPromises(what: string, client: KafkaClient, promises: KafkaGroupPromises): void {
  const { abilities, name } = client
  if (promises.isolation === 'read_committed' && !abilities.readCommitted) {
    throw unsupported(
      `${what}: ${name} hands out records of aborted transactions, so read_committed cannot be promised with it. ` +
        `Use @confluentinc/kafka-javascript or kafkajs, or set isolation: 'read_uncommitted' if no producer of these topics uses transactions.`,
    )
  }
  if (promises.instanceId !== undefined && !abilities.staticMembership) {
    throw unsupported(
      `${what}: ${name} has no static membership. Remove instanceId, or use @confluentinc/kafka-javascript.`,
    )
  }
  if (promises.protocol === 'consumer' && !abilities.consumerProtocol) {
    throw unsupported(
      `${what}: ${name} cannot be trusted with the group protocol of KIP-848. Use protocol: 'classic', or @confluentinc/kafka-javascript.`,
    )
  }
}

export function unsupported(message: string): OnceError {
  return new OnceError('UNSUPPORTED', { message })
}
