// Which types of events an endpoint wants: by their whole name, or by its beginning (`order.*`).

import type { Rule } from '../../core/options.ts'

/** Far above what a person lists, and small enough to be read for every event. */
const typesMax = 200

export const typesRule: Rule = (value) =>
  Array.isArray(value) && value.length <= typesMax && value.every(isType)
    ? undefined
    : `an array of at most ${typesMax} types, such as "order.placed" or "order.*"`

function isType(value: unknown): boolean {
  return (
    typeof value === 'string' && value !== '' && Buffer.byteLength(value) <= 255 && !value.slice(0, -1).includes('*')
  )
}

export function wants(types: readonly string[], type: string): boolean {
  if (types.length === 0) return true
  return types.some((each) => (each.endsWith('*') ? type.startsWith(each.slice(0, -1)) : type === each))
}
