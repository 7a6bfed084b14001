// The loop of a consumer of JetStream: ask for as many messages as there is room, and hand them over. Invariants: never more is asked
// for than fits; while a message is in hand the server is told so; and an acknowledgement counts when the server has confirmed it.

import type { NatsMessage, NatsMessages, NatsPullConsumer } from '../../clients/nats.ts'
import { backoffMs, backoffs, pausesMs } from '../../core/backoff.ts'
import { sleep } from '../../core/clock.ts'
import type { Clock, Random } from '../../core/clock.ts'
import type { Events } from '../../core/events.ts'
import type { Consuming, MessageHandler, Receiver } from '../broker.ts'
import { reportFailed } from '../failures.ts'
import { handling } from '../in-hand.ts'
import type { HeldMessage } from '../in-hand.ts'
import { checkConsumer, isHopeless } from './fitness.ts'
import type { Fit } from './fitness.ts'
import { messageOf } from './message.ts'

export interface NatsConsumption<Tx> {
  readonly consumer: NatsPullConsumer
  readonly inbox: Receiver<Tx>
  readonly handler: MessageHandler<Tx>
  readonly inFlight: number
  readonly timeoutMs: number
  readonly clock: Clock
  readonly random: Random
}

/** The shortest that the client takes. A stop waits for the end of the last question, so that no message is on its way to nobody. */
const expiresMs = 1_000

type During = Events['consumer-failed']['during']

export function startConsumer<Tx>(options: NatsConsumption<Tx>): Consuming {
  const stopping = new AbortController()
  const ended = consumeUntil(stopping.signal, options)
  return {
    ended,
    async stop() {
      stopping.abort()
      await ended.catch(() => {})
    },
  }
}

async function consumeUntil<Tx>(stop: AbortSignal, options: NatsConsumption<Tx>): Promise<void> {
  const { consumer, inbox, inFlight, timeoutMs, clock, random } = options
  const failed = (during: During, error: unknown): void =>
    reportFailed({ broker: 'nats', consumer: inbox.consumer }, during, error)
  const inHand = handling({ ...options, atOnce: inFlight, stop })
  const heartbeat = heartbeatOf(clock, (error) => failed('extend', error))
  let failures = 0
  let fit: Fit | undefined
  try {
    while (!stop.aborted) {
      try {
        fit ??= checkConsumer(await consumer.info(), inbox.attempts)
        const { ackWaitMs, hasNoLimit } = fit
        heartbeat.every(ackWaitMs / 3)
        await inHand.below(inFlight)
        if (stop.aborted) break
        const messages = await consumer.fetch({ max_messages: inFlight - inHand.size, expires: expiresMs })
        await untilEnd(stop, clock, messages, (raw) =>
          inHand.take(heldOf({ raw, timeoutMs, heartbeat, failed, canWaitAtBroker: hasNoLimit })),
        )
        failures = 0
      } catch (error) {
        if (stop.aborted) break
        fit = undefined
        failed('receive', error)
        if (isHopeless(error)) throw error
        await sleep(clock, backoffMs(backoffs.broker, failures++, random), { signal: stop })
      }
    }
  } finally {
    await inHand.empty()
    heartbeat.stop()
  }
}

/** Takes what comes until the server says that the question is over. A server that says nothing is not waited for when we stop. */
async function untilEnd(
  stop: AbortSignal,
  clock: Clock,
  messages: NatsMessages,
  taken: (raw: NatsMessage) => void,
): Promise<void> {
  let cancel = (): void => {}
  const onStop = (): void => {
    cancel = clock.schedule(() => void messages.close(), pausesMs.lastFetch)
  }
  if (stop.aborted) onStop()
  else stop.addEventListener('abort', onStop, { once: true })
  try {
    for await (const raw of messages) taken(raw)
  } finally {
    stop.removeEventListener('abort', onStop)
    cancel()
  }
}

interface Holding {
  readonly raw: NatsMessage
  readonly timeoutMs: number
  readonly heartbeat: Heartbeat
  readonly canWaitAtBroker: boolean
  failed(during: During, error: unknown): void
}

function heldOf({ raw, timeoutMs, heartbeat, canWaitAtBroker, failed }: Holding): HeldMessage {
  let isOurs = true
  const letGo = (): void => {
    isOurs = false
    heartbeat.letGo(raw)
  }
  heartbeat.hold(raw)
  return {
    message: messageOf(raw),
    isOurs: () => isOurs,
    canWaitAtBroker,
    async acknowledge() {
      // The client sends one acknowledgement only. When its answer is lost, the message comes again, or has been acknowledged.
      letGo()
      if (!(await raw.ackAck({ timeout: timeoutMs }))) throw new Error(`${raw.subject} was acknowledged before`)
    },
    giveBack(afterMs) {
      if (!isOurs) return
      letGo()
      try {
        raw.nak(afterMs)
      } catch (error) {
        // It comes again when its time is over.
        failed('return', error)
      }
    },
  }
}

interface Heartbeat {
  hold(raw: NatsMessage): void
  letGo(raw: NatsMessage): void
  every(periodMs: number): void
  stop(): void
}

/** Says of everything in hand that it is being worked on. At a third of the server's patience, so that two may be lost. */
function heartbeatOf(clock: Clock, failed: (error: unknown) => void): Heartbeat {
  const held = new Set<NatsMessage>()
  let periodMs = 0
  let cancel: (() => void) | undefined
  const beat = (): void => {
    for (const raw of held) {
      // One that cannot be told leaves the others as they are.
      try {
        raw.working()
      } catch (error) {
        failed(error)
      }
    }
    schedule()
  }
  const schedule = (): void => {
    cancel = held.size > 0 ? clock.schedule(beat, periodMs) : undefined
  }
  return {
    every: (ms) => void (periodMs = ms),
    hold(raw) {
      held.add(raw)
      if (!cancel) schedule()
    },
    letGo: (raw) => void held.delete(raw),
    stop: () => cancel?.(),
  }
}
