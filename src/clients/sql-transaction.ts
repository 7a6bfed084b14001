// What the clients of several databases have in common: how one is told by its shape, and how Kysely and Drizzle are handed a
// statement with its values, in the form that they make of their own.

export function has(value: unknown, method: string): boolean {
  const able = typeof value === 'object' || typeof value === 'function'
  return able && value !== null && typeof (value as Record<string, unknown>)[method] === 'function'
}

/** Kysely's CompiledQuery. */
export function kyselyQuery(text: string, values: readonly unknown[]): never {
  const query = { kind: 'RawNode', sqlFragments: [text], parameters: [] }
  return { sql: text, query, parameters: values, queryId: { queryId: 'onceonly' } } as never
}

/** Drizzle's SQLWrapper. */
export function drizzleQuery(text: string, values: readonly unknown[]): never {
  const built = { getSQL: () => built, toQuery: () => ({ sql: text, params: values }) }
  return built as never
}
