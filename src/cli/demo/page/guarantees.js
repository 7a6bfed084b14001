// The three guarantees side by side: one order per fault, the same message and the same fault for three inboxes that differ in their
// `delivery` alone. The counts are those of the mails table.

import { askMessages, pause } from './mailers.js'
import { byId, make, setText } from './page.js'

const deliveries = ['at-most-once', 'at-least-once', 'effectively-once']
const post = (path) => askMessages(path, 'POST')

async function until(holds, order) {
  for (;;) {
    const counts = await askMessages(order ? `?order=${order}` : '')
    if (holds(counts)) return counts
    await pause()
  }
}
const isSettled = (counts) => counts.isSettled

/** Everything runs and nothing is under way, so that an order meets its own fault only. */
async function calm() {
  await post('/start')
  await until(isSettled)
}

export function createGuarantees() {
  const button = byId('compare')
  button.addEventListener('click', () => {
    button.disabled = true
    run()
      .catch((error) => setText(byId('compare-said'), `The demo does not answer: ${error.message}`))
      .finally(() => (button.disabled = false))
  })
}

async function run() {
  setText(byId('compare-said'), 'The processes start…')
  const chosen = [...document.querySelectorAll('#compare-faults input:checked')]
  const faults = [
    { name: '', words: 'nothing' },
    ...chosen.map(({ value, dataset }) => ({ name: value, words: dataset.words })),
  ]
  const rows = faults.map((fault) => ({
    fault,
    cells: deliveries.map(() => make('td', { className: 'waiting' }, '·')),
  }))
  byId('compare-rows').replaceChildren(
    ...rows.map(({ fault, cells }) => make('tr', {}, make('th', { scope: 'row' }, fault.words), ...cells)),
  )
  byId('compare-totals').replaceChildren()
  const totals = deliveries.map(() => ({ never: 0, once: 0, more: 0 }))
  for (const { fault, cells } of rows) {
    await calm()
    setText(byId('compare-said'), `One order, and ${fault.name ? `${fault.words}…` : 'nothing goes wrong…'}`)
    cells.forEach((cell) => {
      cell.className = 'flying'
      setText(cell, '…')
    })
    const { mailers } = await sendWith(fault.name)
    mailers.forEach(({ ofOrder }, index) => {
      totals[index][ofOrder === 0 ? 'never' : ofOrder === 1 ? 'once' : 'more'] += 1
      cells[index].className = ofOrder === 0 ? 'none' : ofOrder === 1 ? 'good' : 'bad'
      cells[index].replaceChildren(make('b', {}, `${ofOrder}×`))
    })
  }
  showTotals(totals, rows.length)
}

/** Places an order, lets its fault happen, mends it, and returns the counts when nothing is under way any more. */
async function sendWith(fault) {
  const isKill = fault !== '' && fault !== 'again'
  if (isKill) await post(`/kill?at=${fault}`)
  const {
    placed: [order],
  } = await post('/orders?count=1')
  if (isKill) {
    const isDead = ({ relay, mailers }) =>
      fault === 'after-publish' ? relay === 'killed' : mailers.every(({ state }) => state === 'killed')
    await until(isDead)
    await post('/start')
  }
  const counts = await until(isSettled, order)
  if (fault !== 'again') return counts
  await post(`/again?order=${order}`)
  return until(isSettled, order)
}

function showTotals(totals, count) {
  const cells = totals.map(({ once }) =>
    make('td', { className: once === count ? 'good' : '' }, make('b', {}, `${once} of ${count}`)),
  )
  byId('compare-totals').replaceChildren(make('tr', {}, make('th', { scope: 'row' }, 'One mail'), ...cells))
  const [most, least, exactly] = totals
  setText(
    byId('compare-said'),
    `${count} orders. At most once: ${most.never} without a mail. ` +
      `At least once: ${least.more} with more than one. Effectively once: ${exactly.once} of ${count} with one.`,
  )
}
