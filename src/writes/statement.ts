// Statements as text with holes. Whatever is put into the template is bound, unless it is itself a piece of a statement; a name
// becomes a piece only through `name`, after requests.ts has looked at it. So no value can ever become text.

import type { Row, Value } from './writes.ts'

export interface Statement {
  /** One more than there are values. */
  readonly texts: readonly string[]
  readonly values: readonly Value[]
}

export function sql(texts: readonly string[], ...parts: readonly (Statement | Value)[]): Statement {
  const result: { texts: string[]; values: Value[] } = { texts: [texts[0]!], values: [] }
  parts.forEach((part, index) => {
    append(result, isStatement(part) ? part : { texts: ['', ''], values: [part] })
    append(result, { texts: [texts[index + 1]!], values: [] })
  })
  return result
}

function append(result: { texts: string[]; values: Value[] }, { texts, values }: Statement): void {
  result.texts[result.texts.length - 1] += texts[0]!
  result.texts.push(...texts.slice(1))
  result.values.push(...values)
}

function isStatement(part: Statement | Value): part is Statement {
  return typeof part === 'object' && part !== null && 'texts' in part
}

/** A table or column, in double quotes; clients whose database quotes with backticks exchange them. */
export function name(identifier: string): Statement {
  return {
    texts: [
      identifier
        .split('.')
        .map((part) => `"${part}"`)
        .join('.'),
    ],
    values: [],
  }
}

export function join(parts: readonly Statement[], separator: string): Statement {
  return parts.reduce((whole, part) => sql(['', separator, ''], whole, part))
}

export function names(row: Row): Statement {
  return join(Object.keys(row).map(name), ', ')
}

export function values(row: Row): Statement {
  return join(
    Object.values(row).map((value) => sql`${value}`),
    ', ',
  )
}

export function where(row: Row): Statement {
  return join(
    Object.entries(row).map(([column, value]) => sql`${name(column)} = ${value}`),
    ' and ',
  )
}

export function assignments(row: Row): Statement {
  return join(
    Object.entries(row).map(([column, value]) => sql`${name(column)} = ${value}`),
    ', ',
  )
}

export function textOf({ texts }: Statement, placeholder: (position: number) => string): string {
  return texts.reduce((text, next, index) => `${text}${placeholder(index)}${next}`)
}
