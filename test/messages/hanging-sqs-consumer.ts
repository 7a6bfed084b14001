// A consumer that takes messages and never finishes one: the tests kill it. Says so as soon as it has one in hand.
import { sqsConsumer } from '../../src/messages/sqs.ts'
import { connectSqs } from '../subjects/sqs.ts'
import { rememberingReceiver } from './remembering-receiver.ts'

const [endpoint, queueUrl] = process.argv.slice(2) as [string, string]
const options = { client: connectSqs(endpoint), queueUrl, inbox: rememberingReceiver(), visibilityMs: 3_000 }
const consuming = sqsConsumer(options, async (_tx, message) => {
  process.send?.(message.id)
  await new Promise(() => {})
})
await consuming.ended
