// The loop of a consumer of RabbitMQ: connect, consume, and connect again. Invariants: a message is acknowledged on the channel that
// delivered it and on no other, since delivery tags are numbers of a channel; and what is not acknowledged when a channel ends comes
// again.

import type { AmqpChannel, AmqpConnection, AmqpMessage } from '../../clients/rabbitmq.ts'
import { backoffMs, backoffs, pausesMs } from '../../core/backoff.ts'
import { sleep } from '../../core/clock.ts'
import type { Clock, Random } from '../../core/clock.ts'
import type { Consuming, MessageHandler, Receiver } from '../broker.ts'
import { asError, reportFailed } from '../failures.ts'
import { handling } from '../in-hand.ts'
import type { HeldMessage, InHand } from '../in-hand.ts'
import { isHopeless } from './errors.ts'
import { messageOf } from './message.ts'
import { openSession } from './session.ts'
import type { Session } from './session.ts'

export interface RabbitmqConsumption<Tx> {
  connect(): Promise<AmqpConnection>
  readonly queue: string
  readonly inbox: Receiver<Tx>
  readonly handler: MessageHandler<Tx>
  readonly prefetch: number
  readonly clock: Clock
  readonly random: Random
}

export function startConsumer<Tx>(options: RabbitmqConsumption<Tx>): Consuming {
  const stopping = new AbortController()
  const stop = stopping.signal
  const inHand = handling({ ...options, atOnce: options.prefetch, stop })
  const ended = consumeUntil(stop, options, inHand)
  return {
    ended,
    async stop() {
      stopping.abort()
      await ended.catch(() => {})
    },
  }
}

async function consumeUntil<Tx>(stop: AbortSignal, options: RabbitmqConsumption<Tx>, inHand: InHand): Promise<void> {
  let failures = 0
  try {
    while (!stop.aborted) {
      const error = await consumeOnce(stop, options, inHand, () => (failures = 0)).catch(asError)
      if (stop.aborted || error === undefined) break
      reportFailed({ broker: 'rabbitmq', consumer: options.inbox.consumer }, 'receive', error)
      if (isHopeless(error)) throw hopeless(options, error)
      await sleep(options.clock, backoffMs(backoffs.broker, failures++, options.random), { signal: stop })
    }
  } finally {
    await inHand.empty()
  }
}

/** Consumes on one channel until it ends, and returns why; undefined when it was stopped. */
async function consumeOnce<Tx>(
  stop: AbortSignal,
  options: RabbitmqConsumption<Tx>,
  inHand: InHand,
  begun: () => void,
): Promise<Error | undefined> {
  const { queue, prefetch, clock } = options
  const opening = openSession(options.connect, (connection) => connection.createChannel())
  const session = await orAborted(stop, opening)
  if (!session) {
    opening.then(({ close }) => close()).catch(() => {})
    return undefined
  }
  const { channel } = session
  try {
    await channel.prefetch(prefetch)
    let goneBy: (error: Error) => void = () => {}
    const gone = new Promise<Error>((resolve) => (goneBy = resolve))
    const { consumerTag } = await channel.consume(queue, (raw) => {
      if (raw === null)
        goneBy(new Error(`RabbitMQ has ended the consumer of ${queue}: the queue was deleted, or moved`))
      else inHand.take(heldOf(queue, session, raw))
    })
    begun()
    const why = await orAborted(stop, Promise.race([session.ended, gone]))
    if (why) return why
    await lastWord(clock, channel.cancel(consumerTag))
    await inHand.empty()
    return undefined
  } finally {
    await lastWord(clock, session.close())
  }
}

/** A server that does not answer is not waited for. It gives back what it has delivered when it finds the connection gone. */
async function lastWord(clock: Clock, word: Promise<unknown>): Promise<void> {
  const late = new AbortController()
  const said = word.then(
    () => late.abort(),
    () => late.abort(),
  )
  await Promise.race([said, sleep(clock, pausesMs.lastWord, { signal: late.signal })])
}

function heldOf(queue: string, { channel, ending }: Session<AmqpChannel>, raw: AmqpMessage): HeldMessage {
  const isOurs = (): boolean => ending() === undefined
  return {
    message: messageOf(raw, queue),
    isOurs,
    // Throws when the channel has ended. The message then comes again, and the inbox knows it.
    acknowledge: async () => channel.ack(raw),
    // A quorum queue counts, and drops a message beyond its limit.
    canWaitAtBroker: false,
    giveBack() {
      try {
        if (isOurs()) channel.nack(raw, false, true)
      } catch {
        // Messages of a channel that has ended are back in the queue already.
      }
    },
  }
}

/** Undefined as soon as the signal aborts. Nothing is left on the signal, which lives as long as the consumer. */
function orAborted<T>(signal: AbortSignal, work: Promise<T>): Promise<T | undefined> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => resolve(undefined)
    if (signal.aborted) onAbort()
    signal.addEventListener('abort', onAbort, { once: true })
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', onAbort))
  })
}

function hopeless<Tx>({ queue, inbox }: RabbitmqConsumption<Tx>, error: Error): Error {
  return new Error(
    `rabbitmqConsumer: ${inbox.consumer} cannot consume from ${queue} (${error.message}). ` +
      'Declare the queue, and check the user, its permissions and the virtual host.',
    { cause: error },
  )
}
