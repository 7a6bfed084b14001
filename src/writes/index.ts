// onceonly/writes: writes that may be repeated, because the second finds what the first left. They need no store and no key,
// and run on the user's own tables, in the user's own transaction.

export { postgresWrites } from './postgres.ts'
export type { PostgresWritesClient } from './postgres.ts'
export { mysqlWrites } from './mysql.ts'
export type { MysqlWritesClient } from './mysql.ts'
export { sqliteWrites } from './sqlite.ts'
export type { SqliteWritesDatabase } from './sqlite.ts'
export { dynamodbWrites } from './dynamodb.ts'
export type { DynamodbWritesClient, DynamodbWritesOptions } from './dynamodb.ts'
export { mongodbWrites } from './mongodb.ts'
export type { MongodbWritesDatabase, MongodbWritesOptions } from './mongodb.ts'
export { stateMachine } from './state-machine.ts'
export type { StateMachine, StateMachineOptions, Transition } from './state-machine.ts'
export type {
  AddOnce,
  Answers,
  AppendOnce,
  CompareAndSet,
  InsertOnce,
  Requests,
  Row,
  SyncWrites,
  Upsert,
  UpsertIf,
  UpsertIfNewer,
  Value,
  WriteName,
  Writes,
} from './writes.ts'
