// The way to the store and back. A request and its reply travel separately, so that a request can be carried out although its
// sender never hears of it. Either can be lost, late or delivered twice.

import { OnceError } from '../../../src/core/errors.ts'
import type { Asked, History, StoreOperation } from '../../../src/testing/history-checker.ts'
import type { Life, Process, World } from './world.ts'

/** What goes wrong with one message: the n-th, from 0, that a process sends, or the n-th claim. */
export interface MessageFault {
  readonly process: string
  readonly message: number
  readonly of?: 'claim'
  readonly does:
    | 'lose-request'
    | 'lose-reply'
    | 'delay-request'
    | 'delay-reply'
    | 'duplicate'
    | 'refuse'
    | 'crash-on-decision'
  /** How late. For a loss, after how long the sender notices that its connection is gone (never, when undefined). */
  readonly delayMs?: number
}

export interface Outage {
  readonly fromMs: number
  readonly untilMs: number
  /** The sender hears at once that its connection is gone: the server is down, and the way to it is not. */
  readonly isHeard?: boolean | undefined
}

export interface NetworkOptions {
  readonly faults: readonly MessageFault[]
  /** What is sent later arrives. Default: no end. */
  readonly faultsUntilMs?: number
  /** No message of any process gets through in these times. */
  readonly outages?: readonly Outage[]
  /** One way, at the least and at the most. */
  readonly latencyMs: readonly [number, number]
  crash(process: Process): void
}

export type NetworkCounts = {
  lostRequests: number
  lostAcknowledgements: number
  duplicates: number
}

export interface Network {
  readonly counts: NetworkCounts
  /**
   * `decide` is the store's part, called when the request arrives. `onLost` is called when a connection would be gone. `isOpen` is asked
   * when the reply arrives: on a connection that is gone the sender does not hear it. Several operations in one message stand one
   * after the other in the history, and `decide` gets the first of them.
   */
  send<T>(
    life: Life,
    what: SentOperation | readonly SentOperation[],
    decide: (operation: number) => Promise<T>,
    onLost?: () => void,
    isOpen?: () => boolean,
  ): Promise<T>
}

/** What is asked, and of which key. */
export type SentOperation = Asked & { readonly key: string }

/** A message on its way. */
interface Sending<T> {
  readonly life: Life
  readonly asked: readonly SentOperation[]
  readonly operation: number
  readonly fault: MessageFault | undefined
  readonly decide: (operation: number) => Promise<T>
  readonly onLost: (() => void) | undefined
  /** Whether the connection that it was sent on is still there for its reply. */
  readonly isOpen: (() => boolean) | undefined
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
  const faults = new Map(options.faults.map((fault) => [`${fault.process} ${fault.of} ${fault.message}`, fault]))
  const sent = new Map<string, number>()
  const counts: NetworkCounts = { lostRequests: 0, lostAcknowledgements: 0, duplicates: 0 }
  const wire: Wire = { world, history, options, counts }
  const { faultsUntilMs = Infinity } = options

  function draw(name: string): MessageFault | undefined {
    const number = sent.get(name) ?? 0
    sent.set(name, number + 1)
    return world.now() < faultsUntilMs ? faults.get(`${name} ${number}`) : undefined
  }

  function drawFault({ process: { name } }: Life, { call }: SentOperation): MessageFault | undefined {
    const fault = draw(`${name} ${undefined}`)
    return call === 'claim' ? (draw(`${name} claim`) ?? fault) : fault
  }

  return {
    counts,
    send: (life, what, decide, onLost, isOpen) =>
      new Promise((resolve, reject) => {
        if (life.over) return
        const asked: readonly SentOperation[] = 'call' in what ? [what] : what
        const fault = drawFault(life, asked[0]!)
        const operation = record(wire, life, asked)
        dispatch(wire, { life, asked, operation, fault, decide, onLost, isOpen, resolve, reject })
      }),
  }
}

function dispatch<T>(wire: Wire, sending: Sending<T>): void {
  const { life, fault, onLost } = sending
  if (fault?.does === 'lose-request') return loseRequest(wire, sending)
  if (fault?.does === 'refuse') return notice(wire, sending, 'the store refused it')
  const lateMs = fault?.does === 'delay-request' ? (fault.delayMs ?? 0) : 0
  wire.world.after(latencyMs(wire, life) + lateMs, () =>
    isCut(wire) ? loseRequest(wire, sending) : void carryOut(wire, sending),
  )
  // Inside a connection nothing comes twice.
  if (fault?.does === 'duplicate' && !onLost) repeat(wire, sending)
}

async function carryOut<T>(wire: Wire, sending: Sending<T>): Promise<void> {
  const { world, options, counts } = wire
  const { life, fault } = sending
  const operations = recorded(wire, sending)
  const decidedAtMs = Math.floor(world.now())
  for (const operation of operations) operation.decidedAtMs = decidedAtMs
  const answered = await sending.decide(sending.operation).then(
    (answer) => () => sending.resolve(answer),
    (error: Error) => {
      for (const operation of operations) operation.failed = String(error)
      return () => sending.reject(error)
    },
  )
  // After the last fault nothing crashes any more, and the reply must come: else the connection would be open forever.
  const { faultsUntilMs = Infinity } = options
  if (fault?.does === 'crash-on-decision' && world.now() < faultsUntilMs) return options.crash(life.process)
  if (fault?.does === 'lose-reply' || isCut(wire)) {
    counts.lostAcknowledgements++
    return notice(wire, sending, 'the reply was lost')
  }
  const lateMs = fault?.does === 'delay-reply' ? (fault.delayMs ?? 0) : 0
  life.arrive(latencyMs(wire, life) + lateMs, () => {
    if (sending.isOpen?.() === false) {
      counts.lostAcknowledgements++
      for (const operation of operations) operation.failed = 'the reply was lost'
      return sending.reject(connectionGone('the reply was lost'))
    }
    for (const operation of operations) operation.answeredAtMs = world.now()
    answered()
  })
}

/** The network delivers the request once more. The sender never gets the result. */
function repeat<T>(wire: Wire, sending: Sending<T>): void {
  const { world, counts } = wire
  const operation = record(wire, sending.life, sending.asked, true)
  world.after(sending.fault?.delayMs ?? 0, () => {
    counts.duplicates++
    const repetitions = recorded(wire, { ...sending, operation })
    for (const repetition of repetitions) repetition.decidedAtMs = Math.floor(world.now())
    sending.decide(operation).catch((error: unknown) => {
      for (const repetition of repetitions) repetition.failed = String(error)
    })
  })
}

function loseRequest<T>(wire: Wire, sending: Sending<T>): void {
  wire.counts.lostRequests++
  notice(wire, sending, 'the request was lost')
}

/** The sender may notice that its connection is gone, or it is left to its own time-out. */
function notice<T>(wire: Wire, sending: Sending<T>, why: string): void {
  const { life, fault, onLost, reject } = sending
  for (const operation of recorded(wire, sending)) operation.failed = why
  onLost?.()
  const delayMs = fault?.delayMs ?? (outageOf(wire)?.isHeard ? 0 : undefined)
  if (delayMs === undefined) return
  life.arrive(delayMs, () => reject(connectionGone(why)))
}

function connectionGone(why: string): OnceError {
  return new OnceError('STORE_UNAVAILABLE', { message: `The connection is gone: ${why}.` })
}

/** Returns where the first of them stands. */
function record({ world, history }: Wire, life: Life, asked: readonly SentOperation[], repeated?: true): number {
  const first = history.operations.length
  for (const each of asked) {
    const place = { process: life.process.name, sentAtMs: world.now(), ...(repeated && { repeated }) }
    history.operations.push({ ...each, ...place })
  }
  return first
}

function recorded<T>({ history }: Wire, { asked, operation }: Sending<T>): StoreOperation[] {
  return history.operations.slice(operation, operation + asked.length)
}

const isCut = (wire: Wire): boolean => outageOf(wire) !== undefined

function outageOf({ world, options }: Wire): Outage | undefined {
  const now = world.now()
  return options.outages?.find(({ fromMs, untilMs }) => now >= fromMs && now < untilMs)
}

function latencyMs({ options }: Wire, life: Life): number {
  const [fastest, slowest] = options.latencyMs
  return fastest + life.random.fraction() * (slowest - fastest)
}
