// What the client has on Node only: keys in files, and keys beside the tables of a SQL store.

export { fileKeys } from './node/file-keys.ts'
