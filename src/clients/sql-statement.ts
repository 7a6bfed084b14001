// Statements as text with holes. What is put into the template is bound, unless it is itself a piece of a statement. A name
// becomes a piece only through `name`, after its caller has checked it. So no value can ever become text.

/** What every SQL client binds as one value. */
export type SqlValue = string | number | bigint | boolean | null | Uint8Array | Date

export interface SqlStatement {
  /** One more than there are values. */
  readonly texts: readonly string[]
  readonly values: readonly SqlValue[]
}

export function sql(texts: readonly string[], ...parts: readonly (SqlStatement | SqlValue)[]): SqlStatement {
  const result: { texts: string[]; values: SqlValue[] } = { texts: [texts[0]!], values: [] }
  parts.forEach((part, index) => {
    append(result, isStatement(part) ? part : { texts: ['', ''], values: [part] })
    append(result, { texts: [texts[index + 1]!], values: [] })
  })
  return result
}

function append(result: { texts: string[]; values: SqlValue[] }, { texts, values }: SqlStatement): void {
  result.texts[result.texts.length - 1] += texts[0]!
  result.texts.push(...texts.slice(1))
  result.values.push(...values)
}

function isStatement(part: SqlStatement | SqlValue): part is SqlStatement {
  return typeof part === 'object' && part !== null && 'texts' in part
}

/** A table or column in double quotes. Clients of a database that quotes with backticks exchange them. */
export function name(identifier: string): SqlStatement {
  const quoted = identifier.split('.').map((part) => `"${part}"`)
  return { texts: [quoted.join('.')], values: [] }
}

/** A whole number as it is, for places that take no placeholder on every server (LIMIT). */
export function integer(value: number): SqlStatement {
  if (!Number.isSafeInteger(value)) throw new Error(`Bug! ${value} is not a whole number.`)
  return { texts: [String(value)], values: [] }
}

/** A piece of a statement that holds no value. */
export function piece(text: string): SqlStatement {
  return { texts: [text], values: [] }
}

export function join([first, ...rest]: readonly SqlStatement[], separator: string): SqlStatement {
  const result = { texts: [...first!.texts], values: [...first!.values] }
  for (const part of rest) {
    result.texts[result.texts.length - 1] += separator
    append(result, part)
  }
  return result
}

/** The text, with a placeholder for each value. Positions begin at 1. */
export function textOf({ texts }: SqlStatement, placeholder: (position: number) => string): string {
  return texts.reduce((text, next, index) => `${text}${placeholder(index)}${next}`)
}
