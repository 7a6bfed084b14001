// The sessions of clients: how far each has acknowledged, how full its window is, and when its lease ends. A person can close one.

import { changeButtons, fetched, fill, fillCard, link, momentsOf, onSearch, query, setPager } from './lists.js'
import { ago, byId, make, setText, timeElement, timeOfDay } from './page.js'

/** `ask` fetches with the token, `askReason` opens the dialog before a change. */
let dashboard
let after
let shown

async function showList() {
  const filter = { scope: byId('sessions-scope').value, begins: byId('sessions-client').value }
  const page = await fetched(dashboard, `/api/sessions?${query({ ...filter, ...after })}`)
  fill('sessions', page, 'There is no such session.', sessionRow)
  setPager('sessions', page, after === undefined)
}

function sessionRow(found) {
  const { scope, session, floor, leaseUntilMs } = found
  return make(
    'tr',
    { data: { scope, session } },
    make(
      'td',
      {},
      link(session, 'session', () => showSession({ scope, session })),
      make('span', { className: 'scope' }, scope),
    ),
    make('td', { className: 'state' }, stateBadge(found)),
    make('td', { data: { label: 'Acknowledged' } }, floor.toLocaleString()),
    found.state === 'open' ? make('td', { data: { label: 'Window' } }, windowWords(found)) : make('td'),
    make('td', { data: { label: 'Lease' } }, timeElement(leaseUntilMs, ago(leaseUntilMs))),
  )
}

const isFull = ({ state, floor, last, window }) => state === 'open' && last - floor >= window

function stateBadge(found) {
  const { state } = found
  if (isFull(found)) return make('span', { className: 'badge parked' }, 'window full')
  return make('span', { className: `badge ${{ open: 'good', expired: 'doubt' }[state] ?? ''}` }, state)
}

const windowWords = ({ requests, window }) => `${requests.toLocaleString()} of ${window.toLocaleString()}`

async function showSession(name) {
  shown = name
  setText(byId('session-title'), name.session)
  try {
    const found = await dashboard.ask(`/api/session?${query(name)}`)
    const moments = await momentsOf(dashboard, { scope: name.scope, id: name.session })
    if (shown !== name) return
    const isThere = found.session !== undefined
    const pairs = isThere ? sessionFacts(found) : [['State', 'There is no such session any more.']]
    const changes = found.state === 'open' ? [['Close', closing(found)]] : []
    fillCard('session', pairs, moments, changeButtons(dashboard, name.session, changes))
  } catch (error) {
    byId('session-body').replaceChildren(make('p', { className: 'problem' }, error.message))
  }
}

function sessionFacts(found) {
  const { scope, state, epoch, floor, last, leaseUntilMs, answered, unanswered } = found
  const full = `${windowWords(found)}, full: the client must acknowledge answers before it sends more`
  return [
    ['Scope', scope],
    ['State', stateBadge(found)],
    ['Epoch', make('span', { className: 'mono' }, String(epoch))],
    ['Acknowledged', floor === 0 ? 'nothing' : `through ${floor.toLocaleString()}`],
    ['Last number', last === 0 ? 'none' : last.toLocaleString()],
    ...(state === 'open' ? [['Window', isFull(found) ? full : windowWords(found)]] : []),
    [state === 'open' ? 'Lease ends' : 'Ended', timeElement(leaseUntilMs, ago(leaseUntilMs))],
    ['Answered', ranges(answered)],
    ['Unanswered', ranges(unanswered)],
  ]
}

// Of a window of 10,000 with a gap at every second number the first ones say enough.
const rangesMax = 40

function ranges(numbers) {
  const found = []
  for (const number of numbers) {
    const last = found.at(-1)
    if (last && last[1] === number - 1) last[1] = number
    else found.push([number, number])
  }
  const words = found.slice(0, rangesMax).map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`))
  if (found.length > rangesMax) words.push(`… ${numbers.length.toLocaleString()} in all`)
  return words.join(', ') || 'none'
}

function closing({ scope, session, epoch }) {
  return {
    title: 'Close this session?',
    words:
      'Its client gets SESSION_EXPIRED, and has to find out what became of its unanswered requests before it registers again. ' +
      'Answers that it has not acknowledged are let go.',
    path: '/api/close-session',
    given: () => ({ scope, session, epoch }),
    async after() {
      await showSessions()
      byId('session').focus()
    },
  }
}

export async function showSessions() {
  await Promise.all([showList(), shown && showSession({ ...shown })])
  setText(byId('sessions-at'), `As of ${timeOfDay(Date.now())}`)
}

function firstPage() {
  after = undefined
  void showList()
}

function nextPage() {
  const last = byId('sessions-rows').lastElementChild
  if (!last) return
  after = { afterScope: last.dataset.scope, afterSession: last.dataset.session }
  void showList().then(() => byId('sessions').focus())
}

export function startSessions(given) {
  dashboard = given
  onSearch('sessions', undefined, firstPage)
  byId('sessions-first').addEventListener('click', firstPage)
  byId('sessions-next').addEventListener('click', nextPage)
  byId('sessions-again').addEventListener('click', () => void showSessions())
}
