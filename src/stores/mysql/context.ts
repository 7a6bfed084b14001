// What the parts of one MySQL store work with.

import type { MysqlConnections, MysqlRow } from '../../clients/mysql.ts'
import type { Clock } from '../../core/clock.ts'
import { retried as retriedWhile } from '../sql-answers.ts'
import { isConflict } from './errors.ts'
import type { MysqlReadiness } from './fitness.ts'

export interface MysqlContext<Client> {
  readonly table: string
  readonly clock: Clock
  readonly connections: MysqlConnections<Client>
  /** Refuses a server on which the promise would not hold. Asks on this session, so that no second connection is needed. */
  readonly ready: MysqlReadiness
}

export interface MysqlAskingContext<Client> extends MysqlContext<Client> {
  /** Sends one statement. `what` completes "MySQL could not …", and `executed` says whether it may have: default no. */
  single(statement: string, what: string, executed?: 'unknown'): Promise<readonly MysqlRow[]>
}

/** Runs again what the server refused because of other transactions. Only for work that has no other effect. */
export function retried<T>(clock: Clock, work: () => Promise<T>): Promise<T> {
  return retriedWhile(clock, isConflict, work)
}
