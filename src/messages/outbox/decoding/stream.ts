// One connection that streams a slot, and another one when it has ended. It is a *session* from where the log ended when it was opened to
// its silence or its end: a slot that was not read for hours is told of old commits first, and nothing must wait for it meanwhile.

import type { DecodedMessage, ReplicationLibrary, ReplicationService } from '../../../clients/logical-replication.ts'
import { backoffMs, backoffs, pausesMs } from '../../../core/backoff.ts'
import { sleep } from '../../../core/clock.ts'
import type { Clock, Random } from '../../../core/clock.ts'
import { publish } from '../../../core/events.ts'
import { asError, codeOf } from '../../failures.ts'

export interface SlotStreamOptions {
  readonly library: ReplicationLibrary
  readonly connection: object
  readonly slot: string
  readonly publication: string
  readonly clock: Clock
  readonly random: Random
  /** Where the log of the server ends now. */
  logEnd(): Promise<string>
  /** A row was committed at this position of its lane. */
  heard(lane: number, position: number): void
  /** Commits were heard of, or a session has begun or ended. */
  changed(): void
}

export interface SlotStream {
  /** The number of the session. Undefined while there is none. */
  session(): number | undefined
  /** Ends a session that has been silent since the last call, and asks for a sign of life until the next. */
  check(): void
  close(): Promise<void>
}

export function slotStream(options: SlotStreamOptions): SlotStream {
  const { slot, clock, random, changed } = options
  const stopping = new AbortController()
  let sessions = 0
  let isUp = false
  let failures = 0
  let current: Connection | undefined

  const begin = (): void => {
    if (isUp || stopping.signal.aborted) return
    isUp = true
    sessions++
    failures = 0
    publish('relay-decoding', undefined, { slot, how: 'streaming' })
    changed()
  }
  const end = (reason: string): void => {
    isUp = false
    publish('relay-decoding', undefined, { slot, how: 'polling', reason })
    changed()
  }
  const stream = async (): Promise<Error> => {
    const from = positionOf(await options.logEnd())
    if (stopping.signal.aborted) return new Error('stopped')
    const opened = openConnection(options, (lsn) => positionOf(lsn) >= from && begin())
    const stop = (): void => opened.end(new Error('stopped'))
    stopping.signal.addEventListener('abort', stop)
    current = opened
    const reason = await opened.ended
    current = undefined
    stopping.signal.removeEventListener('abort', stop)
    return reason
  }
  const run = async (): Promise<void> => {
    while (!stopping.signal.aborted) {
      const reason = await stream().catch(asError)
      if (stopping.signal.aborted) return
      end(codeOf(reason) ?? 'Error')
      await sleep(clock, backoffMs(backoffs.relayOutage, failures++, random), { signal: stopping.signal })
    }
  }
  const running = run()
  return {
    session: () => (isUp ? sessions : undefined),
    check() {
      if (!current || current.isAlive()) return
      if (isUp) end('SILENT')
      // A server that decodes a large transaction of other tables says nothing meanwhile. To begin anew would cost it all of that again.
      if (current.silentMs() > pausesMs.silentStream) current.end(new Error('the stream is silent'))
    },
    async close() {
      stopping.abort()
      await running
      isUp = false
    },
  }
}

interface Connection {
  /** Why it has ended, after it is closed or could not be closed in time. */
  readonly ended: Promise<Error>
  /** Whether anything was heard since the last call, or since the start. Asks for a sign of life. */
  isAlive(): boolean
  silentMs(): number
  end(reason: Error): void
}

function openConnection(options: SlotStreamOptions, at: (lsn: string) => void): Connection {
  const { library, connection, slot, publication, clock, heard, changed } = options
  const service = new library.LogicalReplicationService(connection as never, {
    acknowledge: { auto: false, timeoutSeconds: 0 },
  })
  const ending = Promise.withResolvers<Error>()
  const acknowledging = acknowledgingOn(service, changed)
  let isHeard = true
  let heardAt = clock.elapsed()
  let position: string | undefined
  let isOver = false
  const end = (reason: Error): void => {
    isOver = true
    ending.resolve(reason)
  }
  const reached = (lsn: string): void => {
    position = lsn
    acknowledging(lsn)
    at(lsn)
  }
  /** What still comes from a connection that was given up counts no more. */
  const isLive = (): boolean => {
    isHeard = true
    heardAt = clock.elapsed()
    return !isOver
  }
  service.on('error', end)
  service.on('data', (lsn, message: DecodedMessage) => {
    if (!isLive()) return
    if (message.tag === 'insert') heard(Number(message.new['lane']), Number(message.new['position']))
    else if (message.tag === 'commit') reached(lsn)
  })
  // Sent when the server has decoded what is not ours, too: without an answer the slot would keep the log of all other tables.
  service.on('heartbeat', (lsn) => {
    if (isLive()) reached(lsn)
  })
  const plugin = new library.PgoutputPlugin({ protoVersion: 1, publicationNames: [`"${publication}"`] })
  service.subscribe(plugin as never, slot).then(() => end(new Error('the server has ended the stream')), end)
  const close = async (reason: Error): Promise<Error> => {
    // A connection that is dead does not close. The server ends it after its wal_sender_timeout.
    await Promise.race([service.destroy().catch(() => undefined), sleep(clock, pausesMs.lastWord)])
    return reason
  }
  return {
    ended: ending.promise.then(close),
    isAlive() {
      const wasHeard = isHeard
      isHeard = false
      if (position !== undefined) void service.acknowledge(position, true).catch(() => undefined)
      return wasHeard
    },
    silentMs: () => clock.elapsed() - heardAt,
    end,
  }
}

/** One answer for all messages that have come in one piece. */
function acknowledgingOn(service: ReplicationService, changed: () => void): (lsn: string) => void {
  let last: string | undefined
  return (lsn) => {
    if (last === undefined) {
      queueMicrotask(() => {
        const position = last!
        last = undefined
        void service.acknowledge(position).catch(() => undefined)
        changed()
      })
    }
    last = lsn
  }
}

/** '16/B374D848', as a number. */
function positionOf(lsn: string): bigint {
  const [high, low] = lsn.split('/')
  return (BigInt(`0x${high}`) << 32n) + BigInt(`0x${low}`)
}
