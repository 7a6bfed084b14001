// `onceonly migrate`: creates the schema of a store or brings it up to date, or prints it for people who run their own
// migrations.

import { inboxByHand } from '../messages/inbox.ts'
import { outboxByHand } from '../messages/outbox.ts'
import { sessionsByHand } from '../sessions/sessions.ts'
import { webhooksByHand } from '../webhooks.ts'
import { flag, parseCommand } from './arguments.ts'
import { printSchema } from './open-store.ts'
import { storeHelp, storeOptions, storeUrl, withStore } from './with-store.ts'

const help = `onceonly migrate: create or update the schema of a store

Usage: onceonly migrate --store URL [--messages] [--webhooks] [--sessions] [--print] [--json]

${storeHelp}
  --messages     also the tables of inbox and outbox (onceonly/inbox, onceonly/outbox), on a SQL store
  --webhooks     also the tables of the webhook sender (onceonly/webhooks), on a SQL store
  --sessions     also the tables of sessions (onceonly/sessions), on a SQL store
  --print        print what would be run, for your own migrations, and change nothing

It can be run again, and from several machines at once: what is there is left as it is.

Example: onceonly migrate --store postgres://db.example/app --print > migrations/7-onceonly.sql
`

export async function migrate(args: readonly string[]): Promise<number> {
  const options = { ...storeOptions, messages: flag, webhooks: flag, sessions: flag, print: flag }
  const parsed = parseCommand({ command: 'migrate', help, options, args })
  if (!parsed) return 0
  const { store: url, messages, webhooks, sessions, print, json } = parsed.values
  if (print) {
    const schema = await printSchema(storeUrl('migrate', url))
    console.log(json ? JSON.stringify({ schema: schema ?? null }) : (schema ?? '').trimEnd())
    if (schema === undefined) console.error('onceonly: this store needs no schema.')
    return 0
  }
  return withStore(
    'migrate',
    url,
    async ({ store, describe }) => {
      await store.migrate?.()
      if (messages) {
        await inboxByHand(store).migrate()
        await outboxByHand(store).migrate()
      }
      if (webhooks) await webhooksByHand(store).migrate()
      if (sessions) await sessionsByHand(store).migrate()
      const words = store.migrate ? `The schema is in place: ${describe}` : `${store.name} needs no schema: ${describe}`
      console.log(json ? JSON.stringify({ store: store.name, migrated: store.migrate !== undefined }) : words)
      return 0
    },
    { file: 'create' },
  )
}
