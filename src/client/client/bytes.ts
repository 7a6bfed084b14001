// Bytes as text and back, without Node's Buffer.

// A call takes some ten thousand arguments at most.
const chunkBytes = 8_192

export function toBase64(bytes: Uint8Array): string {
  let text = ''
  for (let at = 0; at < bytes.length; at += chunkBytes)
    text += String.fromCharCode(...bytes.subarray(at, at + chunkBytes))
  return btoa(text)
}

export function fromBase64(text: string | null): Uint8Array<ArrayBuffer> | null {
  return text === null ? null : Uint8Array.from(atob(text), (character) => character.charCodeAt(0))
}

/** The whole of a stream. One that has more is cancelled, as a retry must have all of it. */
export async function readAll(stream: ReadableStream<Uint8Array>, bytesMax: number): Promise<Uint8Array> {
  const reader = stream.getReader()
  const chunks: Uint8Array<ArrayBuffer>[] = []
  let length = 0
  for (let next = await reader.read(); !next.done; next = await reader.read()) {
    chunks.push(next.value as Uint8Array<ArrayBuffer>)
    length += next.value.length
    if (length <= bytesMax) continue
    await reader.cancel()
    throw new Error(`its body has more than ${bytesMax} bytes (bodyBytesMax)`)
  }
  return new Uint8Array(await new Blob(chunks).arrayBuffer())
}
