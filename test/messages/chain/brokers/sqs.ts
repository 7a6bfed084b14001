// SQS in the chain: a FIFO queue of ElasticMQ, which is cut off, or killed.
import { setTimeout as sleep } from 'node:timers/promises'
import { sqsConsumer, sqsPublisher } from '../../../../src/messages/sqs.ts'
import { startElasticmq } from '../../../servers/elasticmq.ts'
import { startFaultProxy } from '../../../servers/fault-proxy.ts'
import type { Running } from '../../../servers/server.ts'
import { connectSqs, createQueue } from '../../../subjects/sqs.ts'
import type { ChainBroker, Started } from '../broker.ts'

const sqs = {
  publisher: async (place) => sqsPublisher({ client: sqsAt(place), queueUrl: place, timeoutMs: 5_000 }),
  consume: async ({ place, inbox }, handler) => {
    const settings = { waitMs: 1_000, visibilityMs: 2_000, timeoutMs: 5_000 }
    return sqsConsumer({ client: sqsAt(place), queueUrl: place, inbox, ...settings }, handler)
  },
} satisfies Omit<ChainBroker, 'start'>

async function fifoQueue(server: Running): Promise<string> {
  const client = connectSqs(server.url)
  const queueUrl = await createQueue(client, { FifoQueue: 'true' })
  client.destroy()
  return queueUrl
}

// All connections are reset, with the requests that are on their way, and new ones too for a while.
export const sqsCutOff: ChainBroker = { ...sqs, start: () => behindProxy(() => sleep(500)) }

// The same while the server is killed: it listens before it has its queues back, and says that they do not exist. SQS does not.
export const sqsKilled: ChainBroker = {
  ...sqs,
  start: () =>
    behindProxy(async (server) => {
      await server.crash()
      await server.restart()
    }),
}

async function behindProxy(whileCutOff: (server: Running) => Promise<void>): Promise<Started> {
  const server = await startElasticmq()
  const proxy = await startFaultProxy({ target: server })
  return {
    place: (await fifoQueue(server)).replace(new URL(server.url).host, `127.0.0.1:${proxy.port}`),
    async strike() {
      await proxy.setMode('reset')
      await whileCutOff(server)
      await proxy.setMode('pass')
    },
    async [Symbol.asyncDispose]() {
      await proxy.close()
      await server.stop()
    },
  }
}

const sqsAt = (queueUrl: string): ReturnType<typeof connectSqs> => connectSqs(new URL(queueUrl).origin)
