// The slice of `pg-logical-replication` that we use: one connection that streams what a slot decodes. The library is handed in as it is
// imported, and constructed here, because what it does with its acknowledgements must not be left to its defaults.

/** `import * as library from 'pg-logical-replication'`. */
export interface ReplicationLibrary {
  readonly LogicalReplicationService: new (
    connection: never,
    options: { acknowledge: { auto: boolean; timeoutSeconds: number } },
  ) => ReplicationService
  readonly PgoutputPlugin: new (options: { protoVersion: 1; publicationNames: string[] }) => object
}

export interface ReplicationService {
  on(event: 'data', listener: (lsn: string, message: never) => void): unknown
  on(event: 'heartbeat', listener: (lsn: string, timestamp: number, shouldRespond: boolean) => void): unknown
  on(event: 'error', listener: (error: Error) => void): unknown
  /** Settles when the stream has ended. */
  subscribe(plugin: never, slot: string): Promise<unknown>
  /** `ping` asks the server for a sign of life. */
  acknowledge(lsn: string, ping?: boolean): Promise<boolean>
  destroy(): Promise<unknown>
}

/** What pgoutput says of a table that is only inserted into. */
export type DecodedMessage =
  | { readonly tag: 'insert'; readonly new: Readonly<Record<string, unknown>> }
  | { readonly tag: 'commit' }
  | { readonly tag: 'begin' | 'relation' | 'type' | 'origin' }
