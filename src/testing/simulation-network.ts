// The way to the store and back. A request and its reply travel separately, so that a request can be carried out although its
// sender never hears of it; either can be lost, late or delivered twice.

import { OnceError } from '../core/errors.ts'
import type { Asked, History } from './history-checker-history.ts'
import type { Life, Process, World } from './simulation-world.ts'

/** What goes wrong with one message: the n-th, from 0, that a process sends. */
export interface MessageFault {
  readonly process: string
  readonly message: number
  readonly does:
    | 'lose-request'
    | 'lose-reply'
    | 'delay-request'
    | 'delay-reply'
    | 'duplicate'
    | 'refuse'
    | 'crash-on-decision'
  /** How late; for a loss, after how long the sender notices that its connection is gone (never, when undefined). */
  readonly delayMs?: number
}

export interface NetworkOptions {
  readonly faults: readonly MessageFault[]
  /** What is sent later arrives. Default: no end. */
  readonly faultsUntilMs?: number
  /** No message of anybody gets through in these times. */
  readonly outages?: readonly { readonly fromMs: number; readonly untilMs: number }[]
  /** One way, at the least and at the most. */
  readonly latencyMs: readonly [number, number]
  crash(process: Process): void
}

export interface NetworkCounts {
  lostRequests: number
  lostAcknowledgements: number
  duplicates: number
}

export interface Network {
  readonly counts: NetworkCounts
  /** `decide` is the store's part, called when the request arrives; `onLost` is told that a connection would be gone now. */
  send<T>(life: Life, what: SentOperation, decide: (operation: number) => Promise<T>, onLost?: () => void): Promise<T>
}

/** What is asked, and of which key. */
export type SentOperation = Asked & { readonly key: string }

/** A message on its way. */
interface Sending<T> {
  readonly life: Life
  readonly operation: number
  readonly fault: MessageFault | undefined
  readonly decide: (operation: number) => Promise<T>
  readonly onLost: (() => void) | undefined
  resolve(answer: T): void
  reject(error: Error): void
}

/** What all messages go through. */
interface Wire {
  readonly world: World
  readonly history: History
  readonly options: NetworkOptions
  readonly counts: NetworkCounts
}

export function createNetwork(world: World, history: History, options: NetworkOptions): Network {
  const faults = new Map(options.faults.map((fault) => [`${fault.process} ${fault.message}`, fault]))
  const sent = new Map<string, number>()
  const counts: NetworkCounts = { lostRequests: 0, lostAcknowledgements: 0, duplicates: 0 }
  const wire: Wire = { world, history, options, counts }
  const { faultsUntilMs = Infinity } = options

  function drawFault({ process: { name } }: Life): MessageFault | undefined {
    const number = sent.get(name) ?? 0
    sent.set(name, number + 1)
    return world.now() < faultsUntilMs ? faults.get(`${name} ${number}`) : undefined
  }

  return {
    counts,
    send: <T>(life: Life, what: SentOperation, decide: (operation: number) => Promise<T>, onLost?: () => void) =>
      new Promise<T>((resolve, reject) => {
        if (life.over) return
        const fault = drawFault(life)
        const sending = { life, operation: record(wire, life, what), fault, decide, onLost, resolve, reject }
        dispatch(wire, sending, what)
      }),
  }
}

function dispatch<T>(wire: Wire, sending: Sending<T>, what: SentOperation): void {
  const { life, fault, onLost } = sending
  if (fault?.does === 'lose-request') return loseRequest(wire, sending)
  if (fault?.does === 'refuse') return notice(wire, sending, 'the store refused it')
  const lateMs = fault?.does === 'delay-request' ? (fault.delayMs ?? 0) : 0
  wire.world.after(latencyMs(wire, life) + lateMs, () =>
    isCut(wire) ? loseRequest(wire, sending) : void carryOut(wire, sending),
  )
  // Inside a connection nothing comes twice.
  if (fault?.does === 'duplicate' && !onLost) repeat(wire, sending, what)
}

async function carryOut<T>(wire: Wire, sending: Sending<T>): Promise<void> {
  const { world, history, options, counts } = wire
  const { life, fault } = sending
  const operation = history.operations[sending.operation]!
  operation.decidedAtMs = Math.floor(world.now())
  const answered = await sending.decide(sending.operation).then(
    (answer) => () => sending.resolve(answer),
    (error: Error) => {
      operation.failed = String(error)
      return () => sending.reject(error)
    },
  )
  if (fault?.does === 'crash-on-decision') return options.crash(life.process)
  if (fault?.does === 'lose-reply' || isCut(wire)) {
    counts.lostAcknowledgements++
    return notice(wire, sending, 'the reply was lost')
  }
  const lateMs = fault?.does === 'delay-reply' ? (fault.delayMs ?? 0) : 0
  life.arrive(latencyMs(wire, life) + lateMs, () => {
    operation.answeredAtMs = world.now()
    answered()
  })
}

/** The network delivers the request once more; what comes of it, nobody hears. */
function repeat<T>(wire: Wire, sending: Sending<T>, what: SentOperation): void {
  const { world, history, counts } = wire
  const operation = record(wire, sending.life, what, true)
  world.after(sending.fault?.delayMs ?? 0, () => {
    counts.duplicates++
    const repetition = history.operations[operation]!
    repetition.decidedAtMs = Math.floor(world.now())
    sending.decide(operation).catch((error: unknown) => (repetition.failed = String(error)))
  })
}

function loseRequest<T>(wire: Wire, sending: Sending<T>): void {
  wire.counts.lostRequests++
  notice(wire, sending, 'the request was lost')
}

/** The sender may notice that its connection is gone; or it is left to its own time-out. */
function notice<T>({ history }: Wire, { life, fault, operation, onLost, reject }: Sending<T>, why: string): void {
  history.operations[operation]!.failed = why
  onLost?.()
  if (fault?.delayMs === undefined) return
  life.arrive(fault.delayMs, () =>
    reject(new OnceError('STORE_UNAVAILABLE', { message: `The connection is gone: ${why}.` })),
  )
}

function record({ world, history }: Wire, life: Life, what: SentOperation, repeated?: true): number {
  const place = { process: life.process.name, sentAtMs: world.now(), ...(repeated && { repeated }) }
  return history.operations.push({ ...what, ...place }) - 1
}

function isCut({ world, options }: Wire): boolean {
  const now = world.now()
  return options.outages?.some(({ fromMs, untilMs }) => now >= fromMs && now < untilMs) ?? false
}

function latencyMs({ options }: Wire, life: Life): number {
  const [fastest, slowest] = options.latencyMs
  return fastest + life.random.fraction() * (slowest - fastest)
}
