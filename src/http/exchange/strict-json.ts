// JSON that means the same to every parser (I-JSON, RFC 7493): no member twice, no number that a double cannot hold. Only such
// a text may be fingerprinted by its value. Parsing 9007199254740993 or {"a":1,"a":2} loses a difference, and two different
// requests would pass for one.

/** Parses the text. Returns undefined when the text is not JSON or its value would lose something. */
export function parseStrictJson(bytes: Uint8Array): { readonly value: unknown } | undefined {
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes)
    const value: unknown = JSON.parse(text)
    return forgetsNothing(text) ? { value } : undefined
  } catch {
    return undefined
  }
}

// A string (with its colon, if it is the name of a member), a number, or one of the brackets. What JSON.parse has accepted
// can be cut up without further grammar.
const piece = /"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?|-?[0-9][0-9.eE+-]*|[[\]{}]/g

function forgetsNothing(text: string): boolean {
  const names: (Set<string> | undefined)[] = []
  for (const [found, colon] of text.matchAll(piece)) {
    const first = found[0]!
    if (first === '{') names.push(new Set())
    else if (first === '[') names.push(undefined)
    else if (first === '}' || first === ']') names.pop()
    else if (first !== '"') {
      if (!isExact(found)) return false
    } else if (colon !== undefined) {
      const name = JSON.parse(found.slice(0, -colon.length)) as string
      const above = names.at(-1)
      if (!above || above.has(name)) return false
      above.add(name)
    }
  }
  return true
}

/** Is the number the same decimal number after a trip through a double? */
function isExact(text: string): boolean {
  // Every integer of up to 15 digits stays the same.
  if (text.length <= 15 && /^-?(?:0|[1-9][0-9]*)$/.test(text)) return true
  const value = Number(text)
  return Number.isFinite(value) && decimal(text) === decimal(String(value))
}

/** Sign, digits and power of ten: 1.0, 1 and 10e-1 are one number. */
function decimal(text: string): string {
  const [, sign, whole, fraction = '', exponent = '0'] = /^(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?$/.exec(
    text,
  )!
  const digits = `${whole}${fraction}`.replace(/^0+/, '')
  const significant = digits.replace(/0+$/, '')
  if (significant === '') return '0'
  return `${sign}${significant}e${Number(exponent) - fraction.length + digits.length - significant.length}`
}
