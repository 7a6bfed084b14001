// The view of messages: an order leaves through outbox, relay and queue, and three mailers read it, one for each delivery of an inbox.
// Every number is read from the tables and from the queue. A kill is a kill: the process ends itself with SIGKILL at the chosen point.

import { byId, make, setText, timeElement } from './page.js'

const lookEveryMs = 300
export const pause = () => new Promise((resolve) => setTimeout(resolve, lookEveryMs))

export async function askMessages(path = '', method = 'GET') {
  const response = await fetch(`/api/messages${path}`, { method })
  if (!response.ok) throw new Error(`the demo answered ${response.status}`)
  return response.json()
}

const stateWords = {
  off: 'not started',
  starting: 'starting',
  running: 'running',
  armed: 'will be killed',
  killed: 'killed',
}
const stateLook = { running: 'good', armed: 'doubt', killed: 'bad' }

export function createMailers() {
  let isOpen = false
  let isLooking = false

  const act = async (path) => {
    await askMessages(path, 'POST')
    await look()
  }
  for (const [id, path] of [
    ['place-one', '/orders?count=1'],
    ['place-many', '/orders?count=25'],
    ['kill-relay', '/kill?at=after-publish'],
    ['kill-commit', '/kill?at=before-commit'],
    ['kill-acknowledgement', '/kill?at=before-acknowledgement'],
    ['bring-back', '/start'],
    ['again', '/again'],
  ])
    byId(id).addEventListener('click', () => void act(path))

  async function look() {
    show(await askMessages())
  }

  async function keepLooking() {
    if (isLooking) return
    isLooking = true
    while (isOpen) {
      // A demo that has ended leaves the page as it is.
      await look().catch((error) => setText(byId('messages-said'), `The demo does not answer: ${error.message}`))
      await pause()
    }
    isLooking = false
  }

  return {
    async open() {
      isOpen = true
      const { relay } = await askMessages()
      if (relay === 'off') void askMessages('/start', 'POST')
      void keepLooking()
    },
    close() {
      isOpen = false
    },
  }
}

const columns = new Map()

function show(counts) {
  const { relay, mailers } = counts
  const states = [relay, ...mailers.map(({ state }) => state)]
  showState(byId('relay-state'), relay)
  showState(byId('mailers-state'), worstOf(mailers.map(({ state }) => state)))
  byId('kill-relay').disabled = relay !== 'running'
  for (const id of ['kill-commit', 'kill-acknowledgement'])
    byId(id).disabled = !mailers.some(({ state }) => state === 'running')
  byId('bring-back').disabled = !states.includes('killed')
  byId('again').disabled = counts.published === 0
  for (const id of ['place-one', 'place-many']) byId(id).disabled = false
  setText(byId('count-orders'), String(counts.orders))
  setText(byId('count-rows'), String(counts.rowsWaiting))
  setText(byId('count-published'), String(counts.published))
  setText(
    byId('count-published-again'),
    counts.publishedAgain > 0 ? `${counts.publishedAgain} of them again` : 'messages',
  )
  setText(byId('visibility'), `${counts.visibilityMs / 1000} s`)
  byId('messages').dataset.settled = String(counts.isSettled)
  setText(byId('messages-said'), saying(counts))
  for (const mailer of mailers) showMailer(mailer, counts)
  showStory(counts.story)
}

function showMailer(mailer, { orders }) {
  const column = columns.get(mailer.delivery) ?? columnOf(mailer.delivery)
  columns.set(mailer.delivery, column)
  showState(column.state, mailer.state)
  for (const name of ['mails', 'once', 'more', 'never', 'deliveries', 'redeliveries', 'waiting'])
    setText(column[name], String(mailer[name]))
  setText(column.unit, orders === 1 ? 'mails for 1 order' : `mails for ${orders} orders`)
  column.never.parentElement.className = mailer.never > 0 ? 'none' : ''
  column.more.parentElement.className = mailer.more > 0 ? 'bad' : ''
  const isExact = mailer.once === orders && mailer.more === 0 && orders > 0
  column.score.className = `score ${mailer.more > 0 ? 'bad' : mailer.never > 0 ? 'none' : isExact ? 'good' : ''}`
}

function showState(badge, state) {
  setText(badge, stateWords[state])
  badge.className = `badge ${stateLook[state] ?? ''}`
}

const worstOf = (states) => ['killed', 'armed', 'off', 'starting'].find((state) => states.includes(state)) ?? 'running'

const rows = [
  ['once', 'Orders with one mail'],
  ['more', 'With more than one'],
  ['never', 'Lost, with none'],
  ['deliveries', 'Deliveries'],
  ['redeliveries', 'Not acknowledged in time'],
  ['waiting', 'Waiting in the queue'],
]

function columnOf(delivery) {
  const place = byId(`mailer-${delivery}`)
  const column = { state: place.querySelector('.badge'), score: place.querySelector('.score') }
  column.mails = place.querySelector('.score dd')
  column.unit = place.querySelector('.unit')
  const list = place.querySelector('.counts')
  for (const [name, words] of rows) {
    column[name] = make('dd', { data: { count: name } })
    list.append(make('div', {}, make('dt', {}, words), column[name]))
  }
  return column
}

let shownStory = ''
function showStory(story) {
  const newest = story.slice(0, 8)
  const text = JSON.stringify(newest)
  if (text === shownStory) return
  shownStory = text
  byId('story').replaceChildren(
    ...newest.map(({ atMs, what }) =>
      make('li', { className: what.includes('killed') ? 'bad' : '' }, make('span', {}, what), ' ', timeElement(atMs)),
    ),
  )
}

const ordersWord = (count) => (count === 1 ? '1 order' : `${count} orders`)

function saying({ relay, mailers, orders, rowsWaiting, isSettled }) {
  const state = worstOf(mailers.map((mailer) => mailer.state))
  if (relay === 'off' || relay === 'starting' || state === 'off' || state === 'starting') return 'The processes start…'
  if (relay === 'killed') return `The relay is dead, and ${rowsWaiting} rows wait in the outbox. Bring it back.`
  if (state === 'killed') return 'Mailers are dead. The queue keeps what they have not acknowledged. Bring them back.'
  if (relay === 'armed') return 'The relay will be killed in its next batch. Place an order.'
  if (state === 'armed') return 'The mailers will be killed at their next message. Place an order.'
  if (orders === 0) return 'Nothing has been ordered yet.'
  if (!isSettled) return 'Messages are under way…'
  const [most, least, exactly] = mailers
  const once = exactly.once === orders ? 'one mail each' : `${exactly.once} with one mail`
  return (
    `${ordersWord(orders)}. At most once: ${most.never} without a mail. ` +
    `At least once: ${least.more} with more than one. Effectively once: ${once}.`
  )
}
