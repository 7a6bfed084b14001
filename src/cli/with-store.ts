// What the commands that work on a store have in common: which store, opened for the time of the command.

import { OnceError } from '../core/errors.ts'
import type { Inspectable, Store } from '../core/store.ts'
import { flag, text, wrong } from './arguments.ts'
import type { Option } from './arguments.ts'
import { openStore } from './open-store.ts'
import type { OpenedStore, OpenStoreOptions } from './open-store.ts'
import { commandWords, quoted } from './words.ts'

export const storeOptions: { readonly store: Option<string>; readonly json: Option<true> } = { store: text, json: flag }

export const storeHelp = `  --store URL    the store; or ONCEONLY_STORE in the environment, which keeps a password out of the list of processes:
                 sqlite:FILE, postgres://…, redis://…, redis-cluster://HOST,HOST, redis-sentinel://HOST,HOST/NAME,
                 mysql://…, mariadb://…, mongodb://…/DATABASE, dynamodb:TABLE?region=…
                 ?table=NAME (SQL), ?schema=NAME (PostgreSQL), ?prefix=NAME (Redis), ?collection=NAME (MongoDB)
                 say where in it, when that is not "onceonly"
  --json         print data as JSON`

export function storeUrl(command: string, given: string | undefined): string {
  const url = given ?? process.env['ONCEONLY_STORE']
  if (url === undefined || url === '') {
    throw wrong(command, 'which store? Give --store URL, such as --store sqlite:app.db, or set ONCEONLY_STORE')
  }
  return url
}

/**
 * The option that names the store in a command to be pasted. Where the environment names the store, the command works without
 * it, and the URL that can be shown would lack its password.
 */
export function storeWords(given: string | undefined, describe: string): string {
  const named = process.env['ONCEONLY_STORE']
  const isSecret = (given ?? named) === named && named !== describe
  return isSecret ? '' : `--store ${quoted(describe)}`
}

/** For an operator who looks into a store: its settings are accepted as they are, and a missing file is not created. */
export async function withStore(
  command: string,
  url: string | undefined,
  work: (opened: OpenedStore) => Promise<number>,
  options: OpenStoreOptions = {},
): Promise<number> {
  const opened = await openStore(storeUrl(command, url), { settings: 'as-they-are', file: 'must-exist', ...options })
  try {
    return await work(opened)
  } catch (error) {
    throw withMigrateCommand(error, storeWords(url, opened.describe))
  } finally {
    await opened.close()
  }
}

/** The store, as one that shows its entries. Throws where it cannot. */
export function inspectable(store: Store & Partial<Inspectable>): Inspectable {
  if (store.show && store.list && store.mend && store.audit) return store as Store & Inspectable
  throw new OnceError('UNSUPPORTED', { message: `The store ${store.name} cannot be looked into.` })
}

/** A store says how its tables are created in code. At the command line it is a command. */
export function withMigrateCommand(error: unknown, store: string, instead = ''): unknown {
  if (!(error instanceof OnceError) || error.code !== 'SCHEMA_MISSING') return error
  const [found, cure] = error.message.split(/ (?=Run )/)
  if (cure === undefined) return error
  const [, room = ''] = /\b(inbox|outbox|webhooks|sessions)\.migrate/.exec(cure) ?? []
  const option = room === '' ? '' : room === 'webhooks' || room === 'sessions' ? ` --${room}` : ' --messages'
  const message = `${found} Run: ${commandWords(`migrate${option}`, [], [store])}${instead}`
  return new OnceError('SCHEMA_MISSING', { message, cause: error })
}
