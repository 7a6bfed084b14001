// One connection that streams a slot, and another one when it has ended. Each is a *session*: from its start on, it hears of every
// commit that no session before it has acknowledged.

import type { DecodedMessage, ReplicationLibrary, ReplicationService } from '../../../clients/logical-replication.ts'
import { backoffMs, backoffs, pausesMs } from '../../../core/backoff.ts'
import { sleep } from '../../../core/clock.ts'
import type { Clock, Random } from '../../../core/clock.ts'
import { publish } from '../../../core/events.ts'
import { codeOf } from '../../failures.ts'

export interface SlotStreamOptions {
  readonly library: ReplicationLibrary
  readonly connection: object
  readonly slot: string
  readonly publication: string
  readonly clock: Clock
  readonly random: Random
  /** A row was committed at this position of its lane. */
  heard(lane: number, position: number): void
  /** Commits were heard of, or a session has begun or ended. */
  changed(): void
}

export interface SlotStream {
  /** The number of the session that streams. Undefined while there is none. */
  session(): number | undefined
  /** Ends a session that has been silent since the last call, and asks for a sign of life until the next. */
  check(): void
  close(): Promise<void>
}

export function slotStream(options: SlotStreamOptions): SlotStream {
  const { slot, clock, random, changed } = options
  const stopping = new AbortController()
  let sessions = 0
  let up: Session | undefined
  let failures = 0

  const run = async (): Promise<void> => {
    while (!stopping.signal.aborted) {
      const session = openSession(options, () => {
        up = session
        sessions++
        failures = 0
        publish('relay-decoding', undefined, { slot, how: 'streaming' })
        changed()
      })
      const stop = (): void => session.end(new Error('stopped'))
      stopping.signal.addEventListener('abort', stop)
      const reason = codeOf(await session.ended) ?? 'Error'
      stopping.signal.removeEventListener('abort', stop)
      up = undefined
      if (stopping.signal.aborted) return
      publish('relay-decoding', undefined, { slot, how: 'polling', reason })
      changed()
      await sleep(clock, backoffMs(backoffs.relayOutage, failures++, random), { signal: stopping.signal })
    }
  }
  const running = run()
  return {
    session: () => (up ? sessions : undefined),
    check: () => up?.check(),
    async close() {
      stopping.abort()
      await running
    },
  }
}

interface Session {
  /** Why it has ended, after its connection is closed or could not be closed in time. */
  readonly ended: Promise<Error>
  check(): void
  end(reason: Error): void
}

function openSession(options: SlotStreamOptions, started: () => void): Session {
  const { library, connection, slot, publication, clock, heard, changed } = options
  const service = new library.LogicalReplicationService(connection as never, {
    acknowledge: { auto: false, timeoutSeconds: 0 },
  })
  const ending = Promise.withResolvers<Error>()
  const acknowledging = acknowledgingOn(service, changed)
  let isHeard = true
  let position: string | undefined
  const end = (reason: Error): void => ending.resolve(reason)
  const reached = (lsn: string): void => {
    position = lsn
    acknowledging(lsn)
  }
  service.on('error', end)
  service.on('start', started)
  service.on('data', (lsn, message: DecodedMessage) => {
    isHeard = true
    if (message.tag === 'insert') heard(Number(message.new['lane']), Number(message.new['position']))
    else if (message.tag === 'commit') reached(lsn)
  })
  // Sent when the server has decoded what is not ours, too: without an answer the slot would keep the log of all other tables.
  service.on('heartbeat', (lsn) => {
    isHeard = true
    reached(lsn)
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
    check() {
      if (!isHeard) return end(Object.assign(new Error('the stream is silent'), { code: 'SILENT' }))
      isHeard = false
      if (position !== undefined) void service.acknowledge(position, true).catch(() => undefined)
    },
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
