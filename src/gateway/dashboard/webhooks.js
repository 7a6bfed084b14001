// Webhooks: endpoints with what waits for them, deliveries with the log of their attempts. A person can send a delivery again, and disable
// or enable an endpoint. What was sent and what came back is fetched with the token alone.

import {
  changeButtons,
  checked,
  fetched,
  fill,
  fillCard,
  link,
  momentsOf,
  onSearch,
  query,
  revealInto,
  setPager,
} from './lists.js'
import { ago, byId, make, preciseTime, setText, timeElement, timeOfDay } from './page.js'

/** `ask` fetches with the token, `askReason` opens the dialog before a change. */
let dashboard
let afterEndpoint
let afterDelivery
let showAgain
let shown

// ── lists ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────

async function showEndpoints() {
  const filter = { topic: byId('endpoints-topic').value, state: checked('endpoint-state'), after: afterEndpoint }
  const page = await fetched(dashboard, `/api/webhook-endpoints?${query(filter)}`)
  fill('endpoints', page, 'There is no such endpoint.', endpointRow)
  setPager('endpoints', page, afterEndpoint === undefined)
}

async function showDeliveries() {
  const filter = {
    id: byId('deliveries-id').value,
    endpoint: byId('deliveries-endpoint').value,
    state: checked('delivery-state'),
    after: afterDelivery,
  }
  const page = await fetched(dashboard, `/api/webhook-deliveries?${query(filter)}`)
  fill('deliveries', page, 'There is no such delivery.', deliveryRow)
  setPager('deliveries', page, afterDelivery === undefined)
}

const waitingWords = ({ waiting, moreWaiting }) => `${waiting.toLocaleString()}${moreWaiting ? '+' : ''}`

function endpointRow(endpoint) {
  const { id, topic, url, failingSinceMs } = endpoint
  return make(
    'tr',
    { data: { id } },
    make(
      'td',
      {},
      link(url, 'webhook', () => showEndpoint(id)),
      make('span', { className: 'scope' }, topic),
    ),
    make('td', { className: 'state' }, endpointBadge(endpoint)),
    make('td', failingSinceMs ? { data: { label: 'Failing since' } } : {}, sinceWords(failingSinceMs)),
    make('td', { data: { label: 'Waiting' } }, waitingWords(endpoint)),
  )
}

const sinceWords = (atMs) => (atMs === undefined ? '' : timeElement(atMs, ago(atMs)))

function endpointBadge({ state, failingSinceMs }) {
  if (state === 'disabled') return make('span', { className: 'badge bad' }, 'disabled')
  return failingSinceMs === undefined
    ? make('span', { className: 'badge good' }, 'active')
    : make('span', { className: 'badge doubt' }, 'failing')
}

function deliveryRow(delivery) {
  const { id, endpoint, topic, type, attempts, status, addedAtMs, position } = delivery
  return make(
    'tr',
    { data: { position } },
    make(
      'td',
      {},
      link(id, 'webhook', () => showDelivery({ id, endpoint })),
      make('span', { className: 'scope' }, `${topic}, ${type}`),
    ),
    make('td', { className: 'state' }, deliveryBadge(delivery)),
    make('td', { data: { label: 'Attempts' } }, String(attempts)),
    make('td', status === undefined ? {} : { data: { label: 'Status' } }, status === undefined ? '' : String(status)),
    make('td', {}, timeElement(addedAtMs, ago(addedAtMs))),
  )
}

function deliveryBadge({ state }) {
  return make('span', { className: `badge ${{ delivered: 'good', failed: 'bad' }[state] ?? ''}` }, state)
}

// ── one endpoint ────────────────────────────────────────────────────────────────────────────────────────────────────────────

async function showEndpoint(id) {
  const opened = { id }
  shown = opened
  showAgain = () => showEndpoint(id)
  setText(byId('webhook-title'), id)
  await orProblem(async () => {
    const endpoint = await dashboard.ask(`/api/webhook-endpoint?${query({ id })}`)
    const moments = await momentsOf(dashboard, { scope: 'webhooks', id })
    if (shown !== opened) return
    if (endpoint.id === undefined) return fillCard('webhook', [['State', 'It was removed.']], moments)
    const change = endpoint.state === 'active' ? ['Disable', disabling(id)] : ['Enable', enabling(id)]
    const place = changeButtons(dashboard, endpoint.url, [change])
    const onclick = () => deliveriesOf(id)
    place.append(make('button', { type: 'button', onclick }, 'Its deliveries'))
    fillCard('webhook', endpointFacts(endpoint), moments, place)
  })
}

function endpointFacts(endpoint) {
  const { topic, url, types, order, concurrency, disabledReason, disabledAtMs, failingSinceMs } = endpoint
  return [
    ['URL', make('span', { className: 'mono' }, url)],
    ['Topic', topic],
    ['Types', types.join(', ') || 'all'],
    ['State', endpointBadge(endpoint)],
    ...(disabledAtMs === undefined
      ? []
      : [
          ['Disabled', timeElement(disabledAtMs, ago(disabledAtMs))],
          ['Why', whyWords(disabledReason)],
        ]),
    ...(failingSinceMs === undefined ? [] : [['Failing since', sinceWords(failingSinceMs)]]),
    ['Waiting', `${waitingWords(endpoint)} to be sent`],
    ['Sends', `${concurrency} at once${order === 'key' ? ', each ordering key in its order' : ''}`],
    ['Added', timeElement(endpoint.addedAtMs, ago(endpoint.addedAtMs))],
  ]
}

function whyWords(reason) {
  return { gone: 'It answered 410.', failing: 'Every attempt failed for days.' }[reason] ?? reason ?? ''
}

const disabling = (id) => ({
  title: 'Disable this endpoint?',
  words:
    'Nothing is sent to it until it is enabled. What is for it waits, and fails after four days unless the sender says otherwise.',
  path: '/api/disable-endpoint',
  given: () => ({ id }),
  after: changed,
})

const enabling = (id) => ({
  title: 'Enable this endpoint?',
  words: 'A sender that runs sends what waits for it within about a second. Find out first that its owner can take it.',
  path: '/api/enable-endpoint',
  given: () => ({ id }),
  after: changed,
})

function deliveriesOf(endpoint) {
  byId('deliveries-endpoint').value = endpoint
  byId('deliveries-id').value = ''
  document.querySelector('input[name=delivery-state][value=""]').checked = true
  afterDelivery = undefined
  void showDeliveries().then(() => byId('deliveries').focus())
}

// ── one delivery ────────────────────────────────────────────────────────────────────────────────────────────────────────────

async function showDelivery(name) {
  shown = name
  showAgain = () => showDelivery({ ...name })
  setText(byId('webhook-title'), name.id)
  await orProblem(async () => {
    const { delivery, attempts } = await dashboard.ask(`/api/webhook-delivery?${query(name)}`)
    if (shown !== name) return
    if (!delivery) return fillCard('webhook', [['State', 'It was removed.']], [])
    const moments = await momentsOf(dashboard, { scope: delivery.topic, id: name.id })
    if (shown !== name) return
    const place = changeButtons(dashboard, name.id, [['Replay', replaying(name, delivery)]])
    if (dashboard.isUnlocked()) {
      const onclick = () => void reveal(name, place)
      place.append(make('button', { type: 'button', onclick }, 'Show what was sent'))
    }
    fillCard('webhook', deliveryFacts(delivery), moments.filter(isManual), attemptLog(attempts), place)
  })
}

// What this process sent is in the log of attempts.
const isManual = ({ witness }) => witness === 'audit'

function deliveryFacts(delivery) {
  const { endpoint, topic, type, attempts, addedAtMs, dueAtMs, endedAtMs } = delivery
  return [
    ['Endpoint', link(endpoint, 'webhook', () => showEndpoint(endpoint))],
    ['Topic', topic],
    ['Type', type],
    ['State', deliveryBadge(delivery)],
    ['Attempts', String(attempts)],
    ['Added', timeElement(addedAtMs, ago(addedAtMs))],
    ...(dueAtMs === undefined ? [] : [['Next attempt', timeElement(dueAtMs, ago(dueAtMs))]]),
    ...(endedAtMs === undefined ? [] : [['Ended', timeElement(endedAtMs, ago(endedAtMs))]]),
  ]
}

function attemptLog(attempts) {
  const items = attempts.map(({ number, atMs, durationMs, status, failure }) =>
    make(
      'li',
      { className: status >= 200 && status < 300 ? 'settled' : 'bad' },
      make('b', {}, `Attempt ${number}: ${status ?? 'no answer'}`),
      ' ',
      timeElement(atMs, preciseTime(atMs)),
      make('br'),
      make('span', { className: 'small' }, [failure, `${durationMs.toLocaleString()} ms`].filter(Boolean).join(', ')),
    ),
  )
  return make('ol', { className: 'timeline attempts', 'aria-label': 'Attempts' }, ...items)
}

function replaying(name, { state }) {
  const again = state === 'delivered' ? 'Its endpoint took it already, and knows it by its id. ' : ''
  return {
    title: 'Replay this delivery?',
    words: `${again}A sender that runs sends it within about a second, with the same id and a new schedule.`,
    path: '/api/replay-delivery',
    given: () => ({ ...name }),
    after: changed,
  }
}

async function reveal(name, place) {
  try {
    const { text = 'It is gone.', cut, responses = [] } = await dashboard.ask(`/api/webhook-sent?${query(name)}`)
    revealInto(place, 'What was sent', cut ? `${text}\n… cut` : text)
    const said = responses.filter(({ response }) => response !== '')
    for (const { number, response } of said)
      revealInto(place, `The answer to attempt ${number}`, `${number}. ${response}`)
  } catch (error) {
    place.append(make('p', { className: 'problem' }, error.message))
  }
}

// ── together ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

async function orProblem(work) {
  try {
    await work()
  } catch (error) {
    byId('webhook-body').replaceChildren(make('p', { className: 'problem' }, error.message))
  }
}

async function changed() {
  await showWebhooks()
  byId('webhook').focus()
}

export async function showWebhooks() {
  await Promise.all([showEndpoints(), showDeliveries(), showAgain?.()])
  setText(byId('webhooks-at'), `As of ${timeOfDay(Date.now())}`)
}

function firstEndpoints() {
  afterEndpoint = undefined
  void showEndpoints()
}

function firstDeliveries() {
  afterDelivery = undefined
  void showDeliveries()
}

function nextEndpoints() {
  afterEndpoint = byId('endpoints-rows').lastElementChild?.dataset.id
  void showEndpoints().then(() => byId('endpoints').focus())
}

function nextDeliveries() {
  afterDelivery = byId('deliveries-rows').lastElementChild?.dataset.position
  void showDeliveries().then(() => byId('deliveries').focus())
}

export function startWebhooks(given) {
  dashboard = given
  onSearch('endpoints', 'endpoint-states', firstEndpoints)
  onSearch('deliveries', 'delivery-states', firstDeliveries)
  byId('endpoints-first').addEventListener('click', firstEndpoints)
  byId('endpoints-next').addEventListener('click', nextEndpoints)
  byId('deliveries-first').addEventListener('click', firstDeliveries)
  byId('deliveries-next').addEventListener('click', nextDeliveries)
  byId('webhooks-again').addEventListener('click', () => void showWebhooks())
}
