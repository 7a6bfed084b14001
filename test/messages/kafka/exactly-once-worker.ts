// A worker of exactlyOnce, to be killed and halted. It prints "begun" at the first message of a transform, and fails some messages once.
import { subscribe } from 'node:diagnostics_channel'
import { exactlyOnce } from '../../../src/messages/kafka.ts'
import { confluentOn } from './world.ts'

export interface ExactlyOnceWorker {
  readonly url: string
  readonly from: string
  readonly to: string
  readonly group: string
  readonly transactionalId: string
  readonly batchMax: number
  readonly transactionMs: number
  readonly instanceId?: string
  readonly protocol?: 'classic' | 'consumer'
  /** A pause of 10 ms after so many messages, so that a kill meets an open transaction. */
  readonly pauseEvery: number
  /** Every so many messages one fails, once per process. */
  readonly failEvery: number
}

const { url, from, failEvery, pauseEvery, ...options } = JSON.parse(process.argv[2]!) as ExactlyOnceWorker
// What it survives.
subscribe('onceonly:consumer-failed', () => process.stdout.write('survived\n'))
const failed = new Set<string>()
let seen = 0

const working = exactlyOnce({
  ...options,
  client: confluentOn(url),
  from: [from],
  sessionMs: 3_000,
  transform: async (message) => {
    if (seen++ === 0) process.stdout.write('begun\n')
    const text = Buffer.from(message.body).toString()
    if (seen % pauseEvery === 0) await new Promise((resolve) => setTimeout(resolve, 10))
    if (Number(text) % failEvery === failEvery - 1 && !failed.has(text)) {
      failed.add(text)
      process.stdout.write('failed\n')
      throw new Error('this once')
    }
    return { body: message.body }
  },
})
process.on('SIGTERM', () => void working.stop())
process.stdout.write('ready\n')
working.ended.catch((error: Error) => {
  process.stdout.write(`ended ${error.message}\n`)
  process.exitCode = 3
})
