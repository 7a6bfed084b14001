// The cuts that a fault proxy has been asked for: at the N-th message or after N bytes, counted from the asking over all
// connections. Invariant: each cut happens once, at exactly the byte that was named.
import type { Direction } from './fault-connection.ts'

export interface CutAtMessage {
  direction: Direction
  // Which message from now on, counting only those that match; 1, the default, is the next.
  message?: number
  match?: string | ((message: Buffer) => boolean)
  // Whether the connection is cut before the message is delivered, or after it was.
  side: 'before' | 'after'
}

export interface CutAfterBytes {
  direction: Direction
  // How many more bytes are delivered.
  bytes: number
}

export interface Cut {
  // Resolves when the connection is cut.
  happened: Promise<void>
}

export interface Cuts {
  cutAt(cut: CutAtMessage): Cut
  cutAfterBytes(cut: CutAfterBytes): Cut
  // What is still delivered of this message before the cut that it brings about; undefined if it brings about none.
  take(direction: Direction, message: Buffer): Buffer | undefined
}

type Trap = (direction: Direction, message: Buffer) => Buffer | undefined

export function createCuts(): Cuts {
  const pending = new Map<Trap, () => void>()
  const add = (trap: Trap): Cut => ({ happened: new Promise((resolve) => pending.set(trap, resolve)) })
  return {
    cutAt: (cut) => add(messageTrap(cut)),
    cutAfterBytes: (cut) => add(bytesTrap(cut)),
    take(direction, message) {
      for (const [trap, resolve] of pending) {
        const delivered = trap(direction, message)
        if (!delivered) continue
        pending.delete(trap)
        resolve()
        return delivered
      }
      return undefined
    },
  }
}

function messageTrap({ direction, message: number = 1, match, side }: CutAtMessage): Trap {
  let left = number
  const matches = typeof match === 'string' ? (message: Buffer) => message.includes(match) : (match ?? (() => true))
  return (actual, message) => {
    if (actual !== direction || !matches(message)) return undefined
    left -= 1
    if (left > 0) return undefined
    return side === 'after' ? message : Buffer.alloc(0)
  }
}

function bytesTrap({ direction, bytes }: CutAfterBytes): Trap {
  let left = bytes
  return (actual, message) => {
    if (actual !== direction) return undefined
    if (message.length < left) {
      left -= message.length
      return undefined
    }
    return message.subarray(0, left)
  }
}
