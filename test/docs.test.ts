// The documents are true: every TypeScript block of README and docs compiles and runs as it is written, prints what the page says,
// and the tables list what the code has. A file of test/docs per page, and one for the compiler.

import { describe, expect, test } from 'vitest'
import { javascriptBlocks, notTaken } from './docs/blocks.ts'

describe('compiled', () => import('./docs/compiled.ts').then(() => {}))
describe('README.md and docs/writing-a-store.md', () => import('./docs/readme.ts').then(() => {}))
describe('docs/client.md', () => import('./docs/client.ts').then(() => {}))
describe('docs/http.md', () => import('./docs/http.ts').then(() => {}))
describe('docs/messaging.md', () => import('./docs/messaging.ts').then(() => {}))
describe('docs/messaging.md: NATS', () => import('./docs/messaging/nats.ts').then(() => {}))
describe('docs/messaging.md: RabbitMQ', () => import('./docs/messaging/rabbitmq.ts').then(() => {}))
describe('docs/messaging.md: outbox', () => import('./docs/messaging/outbox.ts').then(() => {}))
describe('docs/messaging.md: Redis Streams', () => import('./docs/messaging/redis-streams.ts').then(() => {}))
describe('docs/messaging.md: Kafka', () => import('./docs/messaging/kafka.ts').then(() => {}))
describe('docs/messaging.md: SQS', () => import('./docs/messaging/sqs.ts').then(() => {}))
describe('docs/operating.md', () => import('./docs/operating.ts').then(() => {}))
describe('docs/operations.md', () => import('./docs/operations.ts').then(() => {}))
describe('docs/performance.md and docs/scaling.md', () => import('./docs/performance.ts').then(() => {}))
describe('docs/sessions.md', () => import('./docs/sessions.ts').then(() => {}))
describe('docs/stores.md and docs/operating.md', () => import('./docs/stores.ts').then(() => {}))
describe('docs/testing.md', () => import('./docs/testing.ts').then(() => {}))
describe('docs/webhooks.md', () => import('./docs/webhooks.ts').then(() => {}))
describe('docs/writes.md', () => import('./docs/writes.ts').then(() => {}))

test('no TypeScript block is left that only compiles, and none is JavaScript', () => {
  expect(notTaken()).toEqual([])
  expect(javascriptBlocks()).toEqual([])
})
