// What the client has on Node only: keys in files, keys beside the tables of a SQL store, and an interceptor for undici.

export { fileKeys } from './node/file-keys.ts'
export { keyedInterceptor } from './node/interceptor.ts'
export { sqlKeys } from './node/sql-keys.ts'
export type { SqlKeys, SqlKeysOptions } from './node/sql-keys.ts'
