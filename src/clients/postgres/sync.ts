// Several prepared statements of one connection of pg in one message, up to one Sync: one round trip, as the text of several
// statements is, and without parsing and planning them again. pg has an interface for this (what pg-cursor uses), and nothing of
// its own that sends more than one statement.
// Invariant: after an error the server skips everything up to the Sync. So a COMMIT behind a statement that failed is not carried out.

import type { BoundStatement, StatementResult } from '../postgres.ts'

/** What pg hands to a query that submits itself. */
interface Wire {
  readonly stream: { cork?(): void; uncork?(): void }
  /** What this connection has prepared: the text of each name. */
  readonly parsedStatements: Record<string, string>
  parse(statement: { readonly name: string; readonly text: string }): void
  bind(portal: { readonly statement: string; readonly values: readonly unknown[] }): void
  execute(portal: object): void
  sync(): void
  on(event: 'parseComplete', listener: () => void): unknown
  off(event: 'parseComplete', listener: () => void): unknown
}

export interface SyncedClient {
  query(query: object): unknown
}

export function inOneSync(
  client: SyncedClient,
  statements: readonly BoundStatement[],
): Promise<readonly StatementResult[]> {
  return new Promise((resolve, reject) => {
    const results: StatementResult[] = []
    let answers: string[] = []
    let unlisten = (): void => {}
    client.query({
      callback(error: Error | null) {
        unlisten()
        if (error) reject(error)
        else resolve(results)
      },
      submit(wire: Wire) {
        wire.stream.cork?.()
        unlisten = send(wire, statements)
        wire.stream.uncork?.()
      },
      handleDataRow: ({ fields }: { fields: string[] }) => void answers.push(fields[0]!),
      handleCommandComplete({ text }: { text: string }) {
        results.push({ command: text.split(' ', 1)[0], answers })
        answers = []
      },
      handleError(this: { callback(error: Error): void }, error: Error) {
        this.callback(error)
      },
      handleReadyForQuery(this: { callback(error: null): void }) {
        this.callback(null)
      },
      handleRowDescription() {},
      handleEmptyQuery() {},
      handlePortalSuspended() {},
      handleCopyInResponse() {},
      handleCopyData() {},
    })
  })
}

// What is parsed stays prepared, even if a later statement of the message fails. The server confirms each, in their order.
function send(wire: Wire, statements: readonly BoundStatement[]): () => void {
  const parsed: BoundStatement[] = []
  const parse = (statement: BoundStatement): void => {
    const { name = '', text } = statement
    if (name !== '' && wire.parsedStatements[name] === text) return
    wire.parse({ name, text })
    parsed.push(statement)
  }
  for (const statement of statements) {
    parse(statement)
    wire.bind({ statement: statement.name ?? '', values: statement.values })
    wire.execute({})
  }
  wire.sync()
  let confirmed = 0
  const confirm = (): void => {
    const { name, text } = parsed[confirmed++]!
    if (name !== undefined) wire.parsedStatements[name] = text
  }
  wire.on('parseComplete', confirm)
  return () => void wire.off('parseComplete', confirm)
}
