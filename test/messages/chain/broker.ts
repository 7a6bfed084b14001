// What the chain needs of a broker: where its messages pass through, how a relay publishes there, and how a consumer reads from there.
// Every broker of the chain keeps what it has confirmed over a kill.
import type { Consuming, MessageHandler, Publisher, Receiver } from '../../../src/messages/broker.ts'
import type { Running } from '../../servers/server.ts'

export const topic = 'orders'

export interface Started extends AsyncDisposable {
  // What a process needs to find the queue.
  readonly place: string
  // Takes the broker away from everyone for a moment, in the middle of what it does.
  strike(): Promise<void>
}

export interface Consumer<Tx> {
  readonly place: string
  readonly inbox: Receiver<Tx>
  // The same for a process and for the one that is started in its place.
  readonly name: string
}

export interface ChainBroker {
  start(): Promise<Started>
  publisher(place: string): Promise<Publisher>
  consume<Tx>(as: Consumer<Tx>, handler: MessageHandler<Tx>): Promise<Consuming>
}

export function killed(server: Running, place: string): Started {
  return {
    place,
    async strike() {
      await server.crash()
      await server.restart()
    },
    [Symbol.asyncDispose]: () => server.stop(),
  }
}
