// Copies of bytes that are kept for long, many to a block: a buffer of its own costs more to make and to collect than the rest of a
// decision. What stands in one block was written at the same time and expires at about the same time, so a block is not held by a few.

/** Larger bytes have a buffer of their own. Hundreds of usual outcomes share a block. */
const blockBytes = 65_536
const sharedBytesMax = 4_096

let block = new ArrayBuffer(0)
let used = 0

/** A copy that only its keeper sees: its buffer holds what others keep, too. */
export function keptCopy(bytes: Uint8Array): Uint8Array {
  if (bytes.length > sharedBytesMax) return new Uint8Array(bytes)
  if (used + bytes.length > block.byteLength) {
    block = new ArrayBuffer(blockBytes)
    used = 0
  }
  const kept = new Uint8Array(block, used, bytes.length)
  kept.set(bytes)
  used += bytes.length
  return kept
}
