// One welcome mail a user, also when the mail server takes the mail and its answer never comes. The key is the user, not the
// request: whoever asks, from wherever and however often, asks for the same mail. node examples/welcome-mail.ts FILE EMAIL POLICY

import { DatabaseSync } from 'node:sqlite'
import { createOnce, InDoubtError, OnceError } from 'onceonly'
import { sqliteStore } from 'onceonly/sqlite'
import { sqliteWrites } from 'onceonly/writes'

const [path = 'welcome.db', email = 'ada@example.org', policy = 'run'] = process.argv.slice(2)
const mailServer = process.env['MAIL_URL'] ?? 'http://127.0.0.1:8025/mails'
const mailTimeoutMs = Number(process.env['MAIL_TIMEOUT_MS'] ?? 10_000)

// The user, once.
const database = new DatabaseSync(path)
database.exec('pragma busy_timeout = 5000; create table if not exists users (email text primary key, name text)')
const signedUp = sqliteWrites(database).insertOnce('users', { key: { email }, set: { name: 'Ada' } })
database.close()

const store = sqliteStore({ path })
const once = createOnce({
  store,
  scope: 'welcome-mail',
  leaseMs: 3_000, // nobody else sends while this may still be under way
  waitMs: 30_000,
  keepMs: 365 * 86_400_000, // a second welcome after a day would be one too many
  // 'run': the mail server knows the key and drops the second. 'refuse': it does not, so rather none than two.
  onTakeover: policy === 'refuse' ? 'refuse' : 'run',
})

async function sendWelcome(key: string): Promise<{ messageId: string }> {
  const messageId = `<${key}@example.org>` // the same on every attempt: mailboxes, too, know a duplicate by it
  const headers = { 'content-type': 'application/json', 'idempotency-key': key }
  const body = JSON.stringify({ to: email, subject: 'Welcome', messageId })
  const signal = AbortSignal.timeout(mailTimeoutMs)
  const response = await fetch(mailServer, { method: 'POST', headers, body, signal }).catch((error: unknown) => {
    const { code } = ((error as Error).cause ?? {}) as { code?: string }
    if (code === 'ECONNREFUSED') throw error // nothing was sent: the key is free again at once
    throw new InDoubtError('the mail server did not answer; it may have taken the mail', { cause: error })
  })
  if (!response.ok) throw new Error(`the mail server said ${response.status}`) // it did not take it
  return { messageId }
}

try {
  const { value, replayed } = await once.run(email, (op) => sendWelcome(op.keyFor('mail')))
  console.log(JSON.stringify({ signedUp, messageId: value.messageId, replayed }))
} catch (error) {
  const told = error instanceof OnceError ? error.code : (error as Error).name
  console.log(JSON.stringify({ signedUp, told }))
}
await once.close()
store.close()
