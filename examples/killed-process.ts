// Kills its own process between the effect and its record, is run again, and shows one effect: in a transaction both commit
// together or not at all. Run it twice on one file: node examples/killed-process.ts /tmp/shop.db kill; then without `kill`.

import { createOnce } from 'onceonly'
import { sqliteStore } from 'onceonly/sqlite'

const [path = 'shop.db', mode] = process.argv.slice(2)
const store = sqliteStore({ path })
const once = createOnce({ store, scope: 'payments' })

const { value, replayed } = await once.transaction(
  'order-42',
  (tx) => {
    tx.exec('create table if not exists charges (cents integer not null)')
    tx.exec('insert into charges values (500)')
    if (mode === 'kill') process.kill(process.pid, 'SIGKILL') // the charge is written, its record is not
    return tx.prepare('select count(*) as charges from charges').get()
  },
  { fingerprint: { order: 42, cents: 500 } },
)

console.log(JSON.stringify({ ...value, replayed }))
await once.close()
store.close()
