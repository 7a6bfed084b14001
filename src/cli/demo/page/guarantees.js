// The three guarantees side by side: the same orders, the same faults, real requests. The counts are those of the ledger.

import { pay } from './client.js'
import { byId, make, setText } from './page.js'

const ways = [
  { name: 'most', road: 'without', retries: 'none' },
  { name: 'least', road: 'without', retries: 'some' },
  { name: 'once', road: 'with', retries: 'some', keyed: true },
]
const cents = 4900

export function createGuarantees({ newOrder, ledgerOf }) {
  const button = byId('compare')
  button.addEventListener('click', () => void run())

  async function run() {
    button.disabled = true
    setText(byId('compare-said'), 'Sending…')
    const chosen = [...document.querySelectorAll('#compare-faults input:checked')]
    const faults = [
      { name: '', words: 'nothing' },
      ...chosen.map(({ value, dataset }) => ({ name: value, words: dataset.words })),
    ]
    const rows = faults.map((fault) => ({ fault, cells: ways.map(() => make('td', { className: 'waiting' }, '·')) }))
    byId('compare-rows').replaceChildren(
      ...rows.map(({ fault, cells }) => make('tr', {}, make('th', { scope: 'row' }, fault.words), ...cells)),
    )
    const totals = ways.map(() => ({ never: 0, once: 0, more: 0, told: 0 }))
    for (const row of rows) await sendRow(row, totals)
    showTotals(totals, rows.length)
    button.disabled = false
  }

  // A killed server would break the requests of the others. One after the other, each meets its own fault only.
  async function sendRow({ fault, cells }, totals) {
    const one = (way, index) => sendOne(way, fault, cells[index], totals[index])
    if (fault.name !== 'server-killed') return Promise.all(ways.map(one))
    for (const [index, way] of ways.entries()) {
      await untilServiceRuns()
      await one(way, index)
    }
  }

  async function sendOne({ road, retries, keyed }, fault, cell, total) {
    const order = newOrder()
    cell.className = 'flying'
    setText(cell, '…')
    const twice = fault.name === 'duplicate-click'
    const faults = fault.name === '' || twice ? [] : [fault.name]
    const call = { order, cents, road, retries, key: keyed ? order : undefined, faults, who: 'client', report() {} }
    const endings = await Promise.all(twice ? [pay(call), pay(call)] : [pay(call)])
    const charges = (await ledgerOf([order])).length
    total[charges === 0 ? 'never' : charges === 1 ? 'once' : 'more'] += 1
    const told = endings.some(({ is }) => is === 'paid' || is === 'replayed')
    if (told) total.told += 1
    const words = told ? '' : toldWords(endings[0])
    cell.className = charges === 0 ? 'none' : charges > 1 ? 'bad' : told ? 'good' : ''
    cell.replaceChildren(make('b', {}, `${charges}×`), words ? make('span', { className: 'told' }, words) : '')
  }
}

/** The first tries meet the fault. They would not reach a restarting service, and there would be no fault to see. */
async function untilServiceRuns() {
  const runs = () =>
    fetch('/without/').then(
      ({ ok }) => ok,
      () => false,
    )
  while (!(await runs())) await new Promise((resolve) => setTimeout(resolve, 100))
}

const toldWords = (ending) => (ending.is === 'doubt' ? 'told: in doubt' : 'not told')

function showTotals(totals, count) {
  const row = (title, name) =>
    make(
      'tr',
      {},
      make('th', { scope: 'row' }, title),
      ...totals.map((total) =>
        make('td', { className: total[name] === count ? 'good' : '' }, make('b', {}, `${total[name]} of ${count}`)),
      ),
    )
  byId('compare-totals').replaceChildren(row('Charged once', 'once'), row('Customer knows', 'told'))
  const [most, least, exactly] = totals
  setText(
    byId('compare-said'),
    `${count} orders each way. At most once: ${most.never} never charged, ${most.more} more than once. ` +
      `At least once: ${least.more} charged more than once. Effectively once: ${exactly.once} of ${count} charged once.`,
  )
}
