// Headers between a broker-neutral message and Kafka's: the CloudEvents binding of Kafka says `ce_id` where ours says `ce-id`.

import type { KafkaOutput, KafkaRecord } from '../../clients/kafka.ts'
import type { Message, Outgoing } from '../broker.ts'

export type KafkaMessage = Message<KafkaRecord>

export function messageOf(record: KafkaRecord): KafkaMessage {
  const headers: Record<string, string> = {}
  for (const [name, value] of Object.entries(record.headers)) headers[name.toLowerCase().replace(/^ce_/, 'ce-')] = value
  return {
    ...(headers['ce-id'] !== undefined && { id: headers['ce-id'] }),
    topic: record.topic,
    ...(record.key && { key: Buffer.from(record.key).toString() }),
    body: record.value ?? new Uint8Array(),
    headers,
    ...(record.timestampMs !== undefined && record.timestampMs >= 0 && { sentAtMs: record.timestampMs }),
    raw: record,
  }
}

export function outputOf(message: Outgoing): KafkaOutput {
  return {
    topic: message.topic,
    key: message.key,
    value: message.body,
    headers: headersOf({ ...message.headers, 'ce-id': message.id }),
  }
}

export function headersOf(headers: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.replace(/^ce-/, 'ce_'), value]))
}
