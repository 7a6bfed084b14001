// The one assertion of the suites, on runtimes that have no test runner here.

export function same(what: string, found: unknown, expected: unknown): void {
  if (JSON.stringify(found) === JSON.stringify(expected)) return
  throw new Error(`${what}: expected ${JSON.stringify(expected)}, got ${JSON.stringify(found)}`)
}
