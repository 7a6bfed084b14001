// The dashboard. Live numbers come by server-sent events; entries and the life of a key are asked for when they are looked
// at, and the shown key again whenever something has happened. The token lives in this module and nowhere else.

import { ago, byId, bytes, follow, make, setText, timelineList, timeElement } from './page.js'
import { drawPlot } from './plot.js'

let token
let filter = {}
let shown
let seen = 0
let stale = false

const headers = () => (token === undefined ? {} : { authorization: `Bearer ${token}` })

async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } })
  const answer = await response.json()
  if (!response.ok) throw new Error(answer.message)
  return answer
}

function complain(id, error) {
  const place = byId(id)
  place.hidden = error === undefined
  setText(place, error?.message ?? '')
}

// ── live ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────

function onOverview(overview) {
  const { totals, waiting, slices, latest, store, scope, countMax, problem, sections, ready } = overview
  setText(byId('where'), `${store} store, scope ${scope}${ready ? '' : ', not ready'}`)
  for (const name of ['absorbed', 'run', 'failed']) setText(byId(name), totals[name].toLocaleString())
  for (const name of ['running', 'abandoned', 'open']) {
    const count = waiting?.[name]
    setText(
      byId(name),
      count === undefined ? '–' : count >= countMax ? `${countMax.toLocaleString()}+` : count.toLocaleString(),
    )
  }
  byId('doubt-number').classList.toggle('alarm', (waiting?.abandoned ?? 0) > 0)
  complain('problem', problem === undefined ? undefined : new Error(problem))
  drawPlot(byId('plot'), byId('plot-words'), slices)
  byId('events').replaceChildren(...latest.map(eventItem))
  showSections(sections)
  const newest = latest[0]?.number ?? 0
  stale ||= newest !== seen
  seen = newest
  if (stale && performance.now() >= refreshAtMs) void refresh()
  addScopes(latest.flatMap(({ event }) => event.scope ?? []))
}

function eventItem({ atMs, name, event }) {
  const { scope, keyHash, attempt, how, code } = event
  const words = [scope, keyHash?.slice(0, 10), attempt === undefined ? '' : `attempt ${attempt}`, how, code]
  return make(
    'li',
    {},
    timeElement(atMs),
    make('b', {}, name),
    make('span', { className: 'soft' }, words.filter(Boolean).join(' · ')),
  )
}

function showSections(sections) {
  byId('sections').replaceChildren(
    ...sections.map(({ name, title, columns, rows, more }) =>
      make(
        'section',
        { className: 'card', id: `section-${name}`, 'aria-label': title },
        make('h2', {}, title),
        make(
          'table',
          {},
          make('thead', {}, make('tr', {}, ...columns.map((column) => make('th', { scope: 'col' }, column)))),
          make(
            'tbody',
            {},
            ...rows.map((row) =>
              make('tr', {}, ...row.map((cell, index) => make('td', { data: { label: columns[index] } }, cell))),
            ),
          ),
        ),
        more ? make('p', { className: 'soft' }, 'There are more; the command line lists them all.') : '',
      ),
    ),
  )
}

// ── entries ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────

async function showEntries() {
  const { text, ...rest } = filter
  const query = new URLSearchParams(Object.entries(rest).filter(([, value]) => value))
  if (text) query.set('text', text)
  try {
    const { rows, more } = await ask(`${text ? '/api/find' : '/api/entries'}?${query}`)
    const wanted = text && filter.state ? rows.filter(({ state }) => state === filter.state) : rows
    byId('rows').replaceChildren(...wanted.map(entryRow))
    byId('none').hidden = wanted.length > 0
    setText(byId('none'), text ? `No key begins with “${text}” here.` : 'There is no such entry.')
    byId('next').disabled = !more || Boolean(text)
    byId('first').disabled = filter.afterId === undefined
    setText(byId('page'), `${wanted.length} shown${more ? ', more follow' : ''}`)
  } catch (error) {
    byId('rows').replaceChildren()
    byId('none').hidden = false
    setText(byId('none'), error.message)
  }
}

const stateWords = { abandoned: 'in doubt' }

function entryRow(entry) {
  const { scope, id, state, attempt, firstClaimedAtMs } = entry
  const current = shown && shown.scope === scope && shown.id === id
  const open = () => void showKey({ scope, id }).then(() => byId('key').focus())
  return make(
    'tr',
    { className: current ? 'shown' : '', data: { scope, id } },
    make(
      'td',
      {},
      make('button', { type: 'button', className: 'link mono', onclick: open }, id),
      make('span', { className: 'scope' }, scope),
    ),
    make('td', { className: 'state' }, badge(state)),
    make('td', { data: { label: 'Attempt' } }, String(attempt)),
    make('td', {}, timeElement(firstClaimedAtMs, ago(firstClaimedAtMs))),
    make('td', {}, answerWords(entry.outcome)),
  )
}

function badge(state) {
  return make('span', { className: `badge ${state}` }, stateWords[state] ?? state)
}

function answerWords(outcome) {
  if (!outcome) return ''
  const { kind, status, bytes: size } = outcome
  if (kind === 'not-stored') return 'not stored'
  return `${kind === 'response' ? status : kind}, ${bytes(size)}`
}

// The first ones come from the store; those that come up later are learnt from events, without asking it again.
const scopes = new Set()
const scopesMax = 100

function addScopes(found) {
  for (const scope of found) {
    if (scopes.has(scope) || scopes.size >= scopesMax) continue
    scopes.add(scope)
    byId('scope').append(make('option', { value: scope }, scope))
  }
}

// ── one key ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────

async function showKey(key) {
  shown = key
  location.hash = new URLSearchParams(key).toString()
  for (const row of byId('rows').children) {
    row.className = row.dataset.scope === key.scope && row.dataset.id === key.id ? 'shown' : ''
  }
  setText(byId('key-title'), key.id)
  try {
    const { entry, timeline } = await ask(`/api/entry?${new URLSearchParams(key)}`)
    if (shown !== key) return
    const facts = entry ? factsOf(entry) : make('p', { className: 'soft' }, 'There is no entry of this key now.')
    byId('key-body').replaceChildren(
      make('p', { className: 'soft small' }, key.scope),
      facts,
      make('h3', { className: 'visually-hidden' }, 'Timeline'),
      timelineList(timeline),
      actionsOf(key, entry),
    )
  } catch (error) {
    byId('key-body').replaceChildren(make('p', { className: 'problem' }, error.message))
  }
}

function factsOf(entry) {
  const { state, attempt, fence, version, outcome } = entry
  const facts = [
    ['State', badge(state)],
    ['Attempt', String(attempt)],
    ['Fence', make('span', { className: 'mono' }, String(fence))],
    ['Answer', outcome ? `${answerWords(outcome)}${outcome.contentType ? `, ${outcome.contentType}` : ''}` : 'none'],
    ['Version', String(version)],
  ]
  return make(
    'dl',
    { className: 'facts' },
    ...facts.flatMap(([name, value]) => [make('dt', {}, name), make('dd', {}, value)]),
  )
}

function actionsOf(key, entry) {
  const place = make('div', { className: 'actions' })
  if (!entry || token === undefined) return place
  const act = (action, words) =>
    make('button', { type: 'button', className: 'danger', onclick: () => askFirst(action, key) }, words)
  if (entry.state === 'running' || entry.state === 'abandoned') place.append(act('release', 'Release…'))
  place.append(act('forget', 'Forget…'))
  if (entry.outcome) {
    place.append(make('button', { type: 'button', onclick: () => void reveal(key, place) }, 'Show the answer'))
  }
  return place
}

async function reveal(key, place) {
  try {
    const { text = '', cut } = await ask(`/api/outcome?${new URLSearchParams(key)}`)
    place.append(make('pre', { tabIndex: 0, 'aria-label': 'The stored answer' }, cut ? `${text}\n… cut` : text))
  } catch (error) {
    place.append(make('p', { className: 'problem' }, error.message))
  }
}

// ── changes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────

const changes = {
  release: {
    title: 'Release this key?',
    words:
      'Its holder is fenced off and the next request runs the effect again. If the first attempt did take effect, it happens twice.',
    confirm: 'Release the key',
  },
  forget: {
    title: 'Forget this key?',
    words:
      'The entry and its stored answer are deleted, and the next request runs the effect as new. If it did take effect, it happens twice.',
    confirm: 'Forget the key',
  },
}

let pending

function askFirst(action, key) {
  pending = { action, key }
  const { title, words, confirm } = changes[action]
  setText(byId('change-title'), title)
  byId('change-words').replaceChildren(make('span', { className: 'mono' }, key.id), make('br'), words)
  setText(byId('change-confirm'), confirm)
  byId('reason').value = ''
  complain('change-problem')
  byId('change-dialog').showModal()
  byId('reason').focus()
}

async function change(event) {
  event.preventDefault()
  const { action, key } = pending
  const body = JSON.stringify({ ...key, reason: byId('reason').value })
  try {
    await ask(`/api/${action}`, { method: 'POST', headers: { 'content-type': 'application/json' }, body })
    byId('change-dialog').close()
    await Promise.all([showKey(key), showEntries()])
    byId('key').focus()
  } catch (error) {
    complain('change-problem', error)
  }
}

async function unlock(event) {
  event.preventDefault()
  const before = token
  token = byId('token').value
  try {
    await ask('/api/token')
    byId('token').value = ''
    byId('token-dialog').close()
    byId('unlock').hidden = true
    addScopes(await ask('/api/scopes'))
    await refresh()
  } catch (error) {
    token = before
    complain('token-problem', error)
  }
}

// ── together ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

let refreshAtMs = 0

// Events can come by the thousand. What is on the page is asked for again every two seconds at most, and after a rest of twenty
// times as long as it took: a page that is left open must not become a load.
async function refresh() {
  const startedMs = performance.now()
  refreshAtMs = Infinity
  stale = false
  const looking = filter.afterId === undefined && !byId('rows').contains(document.activeElement)
  if (looking) await showEntries()
  if (shown && !byId('key').contains(document.activeElement)) await showKey(shown)
  refreshAtMs = performance.now() + Math.max(2000, 20 * (performance.now() - startedMs))
}

function readFilter() {
  filter = {
    state: document.querySelector('input[name=state]:checked').value,
    scope: byId('scope').value,
    text: byId('text').value,
  }
  void showEntries()
}

function nextPage() {
  const last = byId('rows').lastElementChild
  if (!last) return
  filter = { ...filter, afterScope: last.dataset.scope, afterId: last.dataset.id }
  void showEntries().then(() => byId('entries').focus())
}

byId('states').addEventListener('change', readFilter)
byId('scope').addEventListener('change', readFilter)
byId('filters').addEventListener('submit', (event) => {
  event.preventDefault()
  readFilter()
})
byId('first').addEventListener('click', readFilter)
byId('next').addEventListener('click', nextPage)
byId('unlock').addEventListener('click', () => {
  complain('token-problem')
  byId('token-dialog').showModal()
})
byId('token-form').addEventListener('submit', (event) => void unlock(event))
byId('change-form').addEventListener('submit', (event) => void change(event))
for (const button of document.querySelectorAll('[data-close]')) {
  button.addEventListener('click', () => button.closest('dialog').close())
}

const { changes: changeable } = await ask('/api/about')
byId('unlock').hidden = !changeable
void ask('/api/scopes').then(addScopes, () => {})
readFilter()
const linked = new URLSearchParams(location.hash.slice(1))
if (linked.has('id')) void showKey({ scope: linked.get('scope') ?? '', id: linked.get('id') })
void follow('/api/live', {
  headers,
  onData: onOverview,
  onState(state, words = 'Live') {
    byId('live').className = `far live small ${state}`
    setText(byId('live'), words)
  },
})
