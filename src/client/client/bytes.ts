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

/** The whole of a stream, or a stream of the same bytes if there are more than `bytesMax`: no more than that is held. */
export async function readUpTo(
  stream: ReadableStream<Uint8Array>,
  bytesMax: number,
): Promise<Uint8Array<ArrayBuffer> | ReadableStream<Uint8Array>> {
  const reader = stream.getReader()
  const chunks: Uint8Array<ArrayBuffer>[] = []
  let length = 0
  for (let next = await reader.read(); !next.done; next = await reader.read()) {
    chunks.push(next.value as Uint8Array<ArrayBuffer>)
    length += next.value.length
    if (length > bytesMax) {
      return new ReadableStream({
        async pull(controller) {
          const chunk = chunks.shift() ?? (await reader.read()).value
          if (chunk) controller.enqueue(chunk)
          else controller.close()
        },
        cancel: (reason) => reader.cancel(reason),
      })
    }
  }
  return new Uint8Array(await new Blob(chunks).arrayBuffer())
}
