// A codec that encodes the same value differently each time, as encryption does.

import type { Codec } from '../../src/core/outcome.ts'
import type { Life } from './world/world.ts'

export function sealedBy({ random }: Pick<Life, 'random'>): Codec {
  return { encode: (value) => Buffer.from(random.uuid() + JSON.stringify([value])), decode: unseal }
}

const uuidLength = 36

export function unseal(bytes: Uint8Array): unknown {
  return (JSON.parse(Buffer.from(bytes).toString().slice(uuidLength)) as [unknown])[0]
}
