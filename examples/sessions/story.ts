// A shop till over a bad network: answers are lost, requests come twice and late, the server's process is replaced, the till forgets
// everything. Each sale is booked once, and the server remembers a window of answers instead of every sale.
// node examples/sessions/story.ts FILE

import { createSessions, type ClientSession } from 'onceonly/sessions'
import { sqliteStore } from 'onceonly/sqlite'

const [path = 'tills.db'] = process.argv.slice(2)

// The server. A second one is another process of the same service.
function openShop() {
  const store = sqliteStore({ path })
  const sessions = createSessions({ store, scope: 'shop', window: 8, leaseMs: 60 * 60_000 })
  return { store, sessions }
}

let shop = openShop()
await shop.sessions.migrate()

interface Sale {
  readonly sequence: number
  readonly acknowledged: number
  readonly article: string
}

// What arrives at the server. The sale and its answer are written in one transaction.
async function book(till: ClientSession, { sequence, acknowledged, article }: Sale) {
  const request = { ...till, sequence, acknowledged, fingerprint: article }
  const { value, replayed } = await shop.sessions.apply(request, (tx) => {
    tx.exec('create table if not exists sales (article text not null)')
    tx.prepare('insert into sales values (?)').run(article)
    return { receipt: `${article}, thank you` }
  })
  return { receipt: value.receipt, replayed }
}

const { session, epoch } = await shop.sessions.register('till-7')
let till: ClientSession = { session, epoch }

// 300 sales. Every third answer is lost, so the till asks again. Every seventh request arrives once more, much later.
const late: Sale[] = []
let acknowledged = 0
let replayed = 0
for (let sequence = 1; sequence <= 300; sequence++) {
  const sale = { sequence, acknowledged, article: `tea ${sequence}` }
  await book(till, sale)
  if (sequence % 3 === 0 && (await book(till, sale)).replayed) replayed += 1
  if (sequence % 7 === 0) late.push(sale)
  if (sequence === 150) {
    shop.store.close()
    shop = openShop() // a new process
  }
  acknowledged = sequence // the answer is here: the till will never ask for it again
}
console.log(`300 sales, ${replayed} answers were lost and given again`)

const refused = await Promise.all(late.map((sale) => book(till, sale).catch((error: { code: string }) => error.code)))
console.log(`${refused.filter((code) => code === 'FORGOTTEN').length} of ${late.length} late duplicates were refused`)
console.log(`rows that the server keeps of them: ${(await shop.sessions.show('till-7'))?.requests}`)

// The till loses its memory and registers again: its numbers begin at 1, and do not meet the old ones.
const before = till
till = await shop.sessions.register('till-7')
console.log((await book(till, { sequence: 1, acknowledged: 0, article: 'coffee 1' })).receipt)
const ghost = book(before, { sequence: 301, acknowledged: 300, article: 'from before' })
console.log(`a request of before: ${await ghost.catch((error: { code: string }) => error.code)}`)
shop.store.close()
