// One channel on a connection of its own, from its opening to its end. Invariant: whatever ends the channel or the connection is
// heard, once, with the reason.

import type { AmqpConnection, AmqpEnding } from '../../clients/rabbitmq.ts'
import { asError } from '../failures.ts'

export interface Session<Channel> {
  readonly channel: Channel
  /** Why it has ended. Undefined while it is open. */
  ending(): Error | undefined
  /** Resolves with the reason when the channel or its connection has ended. */
  readonly ended: Promise<Error>
  /** An orderly end: the server has everything that was sent before it. A connection that is gone already is as good. */
  close(): Promise<void>
}

interface Closing extends AmqpEnding {
  close(): Promise<void>
}

export async function openSession<Channel extends Closing>(
  connect: () => Promise<AmqpConnection>,
  open: (connection: AmqpConnection) => Promise<Channel>,
): Promise<Session<Channel>> {
  const connection = await connect()
  let ending: Error | undefined
  let tell: (error: Error) => void = () => {}
  const ended = new Promise<Error>((resolve) => (tell = resolve))
  const end = (why: unknown): void => {
    ending ??= asError(why)
    tell(ending)
  }
  const watch = (part: AmqpEnding, name: string): void => {
    part.on('error', end)
    part.on('close', () => end(new Error(`the ${name} was closed`)))
  }
  let closing: Promise<void> | undefined
  const closeConnection = (): Promise<void> => (closing ??= connection.close().catch(() => {}))
  watch(connection, 'connection')
  try {
    const channel = await open(connection)
    watch(channel, 'channel')
    // A channel that fails leaves its connection open.
    void ended.then(closeConnection)
    const close = async (): Promise<void> => {
      await channel.close().catch(() => {})
      await closeConnection()
    }
    return { channel, ending: () => ending, ended, close }
  } catch (error) {
    await closeConnection()
    throw error
  }
}
