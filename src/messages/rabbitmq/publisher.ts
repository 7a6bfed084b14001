// Publishes with confirms. Invariants: a message counts as published when the server has confirmed it and has not returned it; and
// what was not confirmed when the channel ended has failed, although it may have arrived.

import type { AmqpConfirmChannel, AmqpConnection, AmqpMessage } from '../../clients/rabbitmq.ts'
import type { Clock } from '../../core/clock.ts'
import { inOrderOfKeys } from '../broker.ts'
import type { Outgoing, Publisher } from '../broker.ts'
import { asError } from '../failures.ts'
import { propertiesOf } from './message.ts'
import { openSession } from './session.ts'
import type { Session } from './session.ts'

export interface RabbitmqPublication {
  connect(): Promise<AmqpConnection>
  readonly exchange: string
  routingKeyOf(message: Outgoing): string
  readonly timeoutMs: number
  readonly clock: Clock
}

/** How many times a message came back that is not confirmed yet: RabbitMQ returns it first, and confirms it then. */
type Returned = Map<string, number>

interface Open extends Session<AmqpConfirmChannel> {
  readonly returned: Returned
  /** Publish nothing more on it. */
  giveUp(): void
}

export function createPublisher(options: RabbitmqPublication): Publisher {
  let current: Promise<Open> | undefined
  let isClosed = false
  const open = (): Promise<Open> => {
    const forget = (): void => {
      if (current === opening) current = undefined
    }
    const opening = openChannel(options, forget)
    opening.catch(forget)
    return opening
  }
  return {
    name: 'rabbitmq',
    async publish(messages) {
      if (isClosed) throw new Error('rabbitmqPublisher: this publisher is closed')
      const session = await (current ??= open())
      return inOrderOfKeys(messages, (message) => send(options, session, message))
    },
    async close() {
      isClosed = true
      const session = await current?.catch(() => undefined)
      await session?.close()
    },
  }
}

async function openChannel({ connect }: RabbitmqPublication, forget: () => void): Promise<Open> {
  const returned: Returned = new Map()
  const session = await openSession(connect, (connection) => connection.createConfirmChannel())
  session.channel.on('return', ({ fields, properties }: AmqpMessage) => {
    const place = placeOf(fields.routingKey, String(properties.messageId))
    returned.set(place, (returned.get(place) ?? 0) + 1)
  })
  void session.ended.then(forget)
  // A server that does not answer keeps its channel open for minutes. The next publish gets another one.
  const giveUp = (): void => {
    forget()
    void session.close()
  }
  return { ...session, returned, giveUp }
}

// The same id may be under way twice. What is returned is told from what is not by where it went.
function placeOf(routingKey: string, id: string): string {
  return JSON.stringify([routingKey, id])
}

function send(options: RabbitmqPublication, session: Open, message: Outgoing): Promise<void> {
  const { exchange, timeoutMs, clock } = options
  const routingKey = options.routingKeyOf(message)
  const to = exchange === '' ? `queue ${routingKey}` : `exchange ${exchange} with routing key ${routingKey}`
  return new Promise((resolve, reject) => {
    const fail = (why: string, cause?: unknown): void =>
      reject(new Error(`message ${message.id} to ${to} ${why}`, cause === undefined ? undefined : { cause }))
    const tooLate = (): void => {
      fail(`was not confirmed within ${timeoutMs} ms. Check that RabbitMQ is up, and that no alarm blocks publishers.`)
      session.giveUp()
    }
    const cancel = clock.schedule(tooLate, timeoutMs)
    const confirmed = (error: unknown): void => {
      cancel()
      if (error) return fail(`was not confirmed: ${(session.ending() ?? asError(error)).message}`, error)
      if (!takeReturn(session.returned, placeOf(routingKey, message.id))) return resolve()
      fail('was returned: no queue takes it. Declare the queue and its binding.')
    }
    const body = Buffer.from(message.body.buffer, message.body.byteOffset, message.body.byteLength)
    try {
      session.channel.publish(exchange, routingKey, body, propertiesOf(message, clock.now()), confirmed)
    } catch (error) {
      cancel()
      fail(`was not sent: ${(session.ending() ?? asError(error)).message}`, error)
    }
  })
}

function takeReturn(returned: Returned, place: string): boolean {
  const times = returned.get(place)
  if (times === undefined) return false
  if (times === 1) returned.delete(place)
  else returned.set(place, times - 1)
  return true
}
