// The connections of a pool that a store has lent to open transactions. A store that waits for a connection while its own
// transactions hold all of them mostly waits for itself: an effect inside `once.transaction` called `once` again. That wait ends
// with an error that says so, before the caller's time-out ends it without a reason.

import type { Clock } from '../core/clock.ts'

// Below the 5 s of storeTimeoutMs, so that this error is the one that is seen.
const waitMsMax = 4_000

export interface LentConnection {
  release(): void
  destroy(error: unknown): void
}

interface Connections<Statement, Rows, Connection> {
  run(statement: Statement): Promise<Rows>
  connect(): Promise<Connection>
}

/** `size` is how many connections the pool can have. Undefined where the pool does not say. */
export function watchingLent<Statement, Rows, Connection extends LentConnection>(
  connections: Connections<Statement, Rows, Connection>,
  { clock, size }: { readonly clock: Pick<Clock, 'schedule'>; readonly size: number | undefined },
): Connections<Statement, Rows, Connection> {
  let lent = 0
  const areAllLent = (): boolean => lent > 0 && (size === undefined || lent >= size)

  async function connect(): Promise<Connection> {
    const connection = await connections.connect()
    lent++
    let isBack = false
    const giveBack = (): void => {
      if (!isBack) lent--
      isBack = true
    }
    return {
      ...connection,
      release() {
        giveBack()
        connection.release()
      },
      destroy(error: unknown) {
        giveBack()
        connection.destroy(error)
      },
    } as Connection
  }

  function bounded<T>(work: Promise<T>, late: (result: T) => void): Promise<T> {
    return new Promise((resolve, reject) => {
      let isOver = false
      const cancel = clock.schedule(() => {
        // A connection is free, so it is the server that is slow.
        if (!areAllLent()) return
        isOver = true
        reject(allLent(lent))
      }, waitMsMax)
      work.then(
        (result) => {
          cancel()
          if (isOver) late(result)
          else resolve(result)
        },
        (error: Error) => {
          cancel()
          reject(error)
        },
      )
    })
  }

  return {
    // Without open transactions nothing of ours holds a connection, and there is nothing to watch.
    run: (statement) => (lent === 0 ? connections.run(statement) : bounded(connections.run(statement), () => {})),
    connect: () => bounded(connect(), (connection) => connection.release()),
  }
}

function allLent(lent: number): Error {
  return new Error(
    `no connection of the pool became free within ${waitMsMax} ms, because ${lent} open transactions of this store hold all ${lent}. ` +
      'An effect that calls once.transaction or once.run inside of once.transaction waits for a second connection while it holds the ' +
      'first. Use once.within(tx) inside, or give the pool more connections than transactions run at once, times the levels of nesting',
  )
}
