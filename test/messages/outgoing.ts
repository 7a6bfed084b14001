// Messages for a publisher under test.
import type { Outgoing } from '../../src/messages/broker.ts'

export function outgoing(id: string, more: Partial<Outgoing> = {}): Outgoing {
  return { id, topic: 'orders', body: Buffer.from(`{"order":"${id}"}`), headers: {}, ...more }
}

export function numbered(count: number, more: (n: number) => Partial<Outgoing> = () => ({})): Outgoing[] {
  return Array.from({ length: count }, (_, n) => outgoing(`m${n}`, more(n)))
}
