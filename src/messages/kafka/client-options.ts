// The options that say which client and what it must be able to do. A promise that the client cannot keep is refused here, by name.

import type { ConfluentClient, ConfluentError, KafkaClient } from '../../clients/kafka.ts'
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

/** Why a client is not trusted with a promise that needs transactions. */
type Weaknesses = Readonly<Record<Exclude<KafkaClient['name'], '@confluentinc/kafka-javascript'>, string>>

export function requireTransactional(what: string, client: KafkaClient, weaknesses: Weaknesses): ConfluentClient {
  if (client.abilities.transactions) return client as ConfluentClient
  const weakness = weaknesses[client.name as keyof Weaknesses]
  throw unsupported(`${what}: ${client.name} cannot keep it, because ${weakness}. Use @confluentinc/kafka-javascript.`)
}

/** Another producer has the transactional id by now: ERR__FENCED, ERR_INVALID_PRODUCER_EPOCH, ERR_PRODUCER_FENCED. */
export const isFenced = (error: unknown): boolean => [-144, 47, 90].includes((error as ConfluentError).code)

export function unsupported(message: string): OnceError {
  return new OnceError('UNSUPPORTED', { message })
}
