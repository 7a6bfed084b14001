// The page of the demo. A press of Pay sends real requests through the network of the demo, with the faults that are switched
// on. Then the page reads the ledger of the payment service, and the life of the key from the store and its events.

import { pay } from './client.js'
import { createFlight } from './flight.js'
import { createGuarantees } from './guarantees.js'
import { forget, payOnce, pending, resume } from './keyed.js'
import { createMailers } from './mailers.js'
import { byId, make, setText, timelineList, timeElement } from './page.js'

const cents = 4900
const flight = createFlight(byId('requests'), byId('axis'))
// The time makes numbers that no earlier visit has used.
let lastOrder = Math.floor(Date.now() / 100) % 10_000_000
const newOrder = () => `order-${(lastOrder += 1)}`
let order = newOrder()

const ask = async (path) => (await fetch(path)).json()
const ledgerOf = (orders) => ask(`/api/ledger?${new URLSearchParams(orders.map((each) => ['order', each]))}`)
const chosenFaults = () => [...document.querySelectorAll('#faults input:checked')].map(({ value }) => value)
const isProtected = () => document.querySelector('input[name=road]:checked').value === 'with'
// These two are things that people do, not things that happen to a request.
const people = ['duplicate-click', 'two-tabs']

async function press() {
  const road = isProtected() ? 'with' : 'without'
  const chosen = chosenFaults()
  const faults = chosen.filter((fault) => !people.includes(fault))
  const call = { order, cents, road, faults }
  const send = road === 'with' ? payOnce : pay
  setBusy(true)
  setText(byId('said'), 'Paying…')
  byId('said').scrollIntoView({ block: 'nearest' })
  byId('said').className = ''
  flight.clear()
  const looking = setInterval(() => void look(road), 300)
  const first = chosen.includes('duplicate-click') ? 'Click 1' : chosen.includes('two-tabs') ? 'Tab 1' : ''
  const calls = [send({ ...call, who: first, report: flight.report })]
  if (chosen.includes('duplicate-click')) calls.push(send({ ...call, who: 'Click 2', report: flight.report }))
  if (chosen.includes('two-tabs')) calls.push(payInSecondTab({ ...call, who: 'Tab 2' }))
  const endings = await Promise.all(calls)
  clearInterval(looking)
  const charges = await look(road)
  conclude(road, endings, charges.length)
  order = newOrder()
  setText(byId('order'), order)
  setBusy(false)
  byId('pay').focus()
}

function setBusy(isBusy) {
  byId('pay').disabled = isBusy
  byId('resume').disabled = isBusy
}

// ── what is pending ─────────────────────────────────────────────────────────────────────────────────────────────────────────

const states = {
  waiting: 'not sent yet',
  sent: 'sent, no answer yet',
  answered: 'answered, not read yet',
  expired: 'too old to be sent again',
}

let shownPending = '[]'

/** Read from the browser's IndexedDB each time: what an earlier visit left is there, too. */
async function showPending() {
  const left = await pending()
  // Drawn anew only when it differs: a button must not lose its focus.
  const now = JSON.stringify(left)
  if (now === shownPending) return
  shownPending = now
  byId('resume').hidden = left.length === 0
  byId('pending').replaceChildren(
    ...left.map(({ operation, key, state }) =>
      make(
        'li',
        {},
        make('span', { className: 'mono' }, operation),
        make('span', { className: 'soft small' }, `key ${key}, ${states[state]}`),
        make('button', { type: 'button', className: 'link', onclick: () => void drop(operation) }, 'Forget'),
      ),
    ),
  )
}

async function drop(operation) {
  await forget(operation)
  await showPending()
}

async function finishPending() {
  setBusy(true)
  flight.clear()
  setText(byId('said'), 'Finishing what is pending…')
  byId('said').className = ''
  const paid = await resume(flight.report)
  for (const each of paid) {
    order = each
    conclude('with', [{ is: 'paid' }], (await look('with')).length)
  }
  if (paid.length === 0) setText(byId('said'), 'No answer yet. It stays pending, with its key.')
  order = newOrder()
  await showPending()
  setBusy(false)
}

function payInSecondTab(call) {
  return new Promise((resolve) => {
    const tab = new Worker('/second-tab.js', { type: 'module' })
    tab.addEventListener('message', ({ data }) => {
      if (data.request) return flight.report(data.request)
      tab.terminate()
      return resolve(data.ending)
    })
    tab.postMessage(call)
  })
}

async function look(road) {
  const looked = order
  const charges = await ledgerOf([looked])
  await showPending()
  showLedger(road, looked, charges)
  if (road === 'with') {
    const { timeline } = await ask(`/api/life?order=${looked}`)
    showLife(timeline, looked)
  } else
    byId('life').replaceChildren(
      make(
        'p',
        { className: 'soft' },
        'No key was sent, so there is nothing to remember: every request is new to the service.',
      ),
    )
  return charges
}

/** The last order of each road stays, so that the two can be compared. */
function showLedger(road, paid, charges) {
  setText(byId(`paid-${road}`), paid)
  byId(`charges-${road}`).replaceChildren(
    ...charges.map(({ charge, cents: paidCents, atMs }, index) =>
      make(
        'li',
        { className: index === 0 ? '' : 'again' },
        make('span', {}, `Charge ${charge}`),
        timeElement(atMs),
        make('b', {}, price(paidCents)),
      ),
    ),
  )
}

function showLife(timeline, key) {
  // The dashboard shows what will happen in a day or a week.
  const past = timeline.filter(({ atMs, witness }) => witness !== 'store' || atMs < Date.now() + 1000)
  byId('life').replaceChildren(
    make('p', { className: 'small soft' }, 'Key ', make('span', { className: 'mono' }, key)),
    past.length > 0 ? timelineList(past) : make('p', { className: 'soft' }, 'The store has not seen it yet.'),
  )
}

const price = (amount) => `€${(amount / 100).toFixed(2)}`
const times = (count) => (count === 1 ? '1 charge' : `${count} charges`)

function conclude(road, endings, count) {
  const told = endings.some(({ is }) => is === 'paid' || is === 'replayed')
  const doubt = endings.some(({ is }) => is === 'doubt')
  const good = count === 1
  const after = told
    ? 'and the customer knows.'
    : doubt
      ? 'and the customer is told that the outcome is in doubt: nobody knows whether the charge was made, so it is not made again.'
      : 'and the customer was told to come back later.'
  setText(
    byId('said'),
    `One order, ${times(count)}, ${good || count === 0 ? after : 'because every retry was new to the service.'}`,
  )
  byId('said').className = good ? 'good' : count === 0 ? '' : 'bad'
  const place = byId(`score-${road}`)
  setText(place, String(count))
  setText(byId(`unit-${road}`), count === 1 ? 'charge' : 'charges')
  place.parentElement.className = `score ${good ? 'good' : count === 0 ? '' : 'bad'}`
}

// ── views ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────

const views = ['payment', 'messages', 'guarantees']
const mailers = createMailers()

function showView() {
  const asked = location.hash.slice(1)
  const view = views.includes(asked) ? asked : 'payment'
  for (const name of views) {
    byId(name).hidden = name !== view
    const link = document.querySelector(`nav a[href="#${name}"]`)
    if (name === view) link.setAttribute('aria-current', 'page')
    else link.removeAttribute('aria-current')
  }
  if (view === 'messages') void mailers.open()
  else mailers.close()
}

byId('pay').addEventListener('click', () => void press())
byId('resume').addEventListener('click', () => void finishPending())
addEventListener('hashchange', showView)
showView()
createGuarantees()
setText(byId('order'), order)
const { dashboardUrl } = await ask('/api/about')
byId('dashboard').href = dashboardUrl
await showPending()
setBusy(false)
