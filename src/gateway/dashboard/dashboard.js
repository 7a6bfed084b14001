// The dashboard. Live numbers come by server-sent events. Entries and the life of a key are fetched when they are opened, and
// the shown key again when something has happened. The token lives in this module and nowhere else.

import { showMessages, startMessages } from './messages.js'
import { ago, byId, bytes, facts, follow, make, setText, timelineList, timeElement } from './page.js'
import { drawPlot } from './plot.js'
import { showSessions, startSessions } from './sessions.js'
import { showWebhooks, startWebhooks } from './webhooks.js'

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
  const { totals, waiting, slices, latest, store, scope, countMax, sections, notReady, degraded } = overview
  setText(byId('where'), `${store} store, scope ${scope}${stateOf(notReady, degraded)}`)
  for (const name of ['absorbed', 'run', 'unprotected', 'failed']) setText(byId(name), totals[name].toLocaleString())
  for (const name of ['running', 'inDoubt', 'parked', 'open']) {
    const count = waiting?.[name]
    setText(
      byId(name),
      count === undefined ? '–' : count >= countMax ? `${countMax.toLocaleString()}+` : count.toLocaleString(),
    )
  }
  byId('doubt-number').classList.toggle('alarm', (waiting?.inDoubt ?? 0) > 0)
  byId('parked-number').classList.toggle('alarm', (waiting?.parked ?? 0) > 0)
  byId('unprotected-number').classList.toggle('alarm', totals.unprotected > 0)
  const trouble = troubleOf(overview)
  complain('problem', trouble === undefined ? undefined : new Error(trouble))
  drawPlot(byId('plot'), byId('plot-words'), slices)
  byId('events').replaceChildren(...latest.map(eventItem))
  showSections(sections)
  const newest = latest[0]?.number ?? 0
  stale ||= newest !== seen
  seen = newest
  if (stale && performance.now() >= refreshAtMs) void refresh()
  addScopes(latest.flatMap(({ event }) => event.scope ?? []))
}

function stateOf(notReady, degraded) {
  if (notReady !== undefined) return ', not ready'
  return degraded === undefined ? '' : ', unprotected'
}

/** What is wrong now, and what to do about it. A loss stays on the page: its retries may come for days. */
function troubleOf({ notReady, degraded, dataLoss, problem }) {
  const trouble = []
  if (dataLoss) {
    const { evidence, quarantined } = dataLoss.event
    trouble.push(
      `The store lost data that it had acknowledged (${evidence}, ${new Date(dataLoss.atMs).toLocaleString()}).`,
    )
    const isHeld = quarantined && notReady !== undefined
    trouble.push(
      isHeld
        ? 'New keys are refused until a person has looked: onceonly quarantine --store URL.'
        : 'New keys are served, and retries of lost keys run again.',
    )
  }
  if (notReady !== undefined) trouble.push(`Not ready: ${notReady}`)
  else if (degraded !== undefined) {
    trouble.push(`Requests with a key run without protection, because the store is missing: ${degraded}`)
  }
  return trouble.length > 0 ? trouble.join(' ') : problem
}

function eventItem({ atMs, name, event }) {
  const { scope, keyHash, attempt, how, is, code, evidence, action } = event
  const words = [
    scope,
    keyHash?.slice(0, 10),
    attempt === undefined ? '' : `attempt ${attempt}`,
    how,
    is,
    code,
    evidence,
    action,
  ]
  return make(
    'li',
    {},
    timeElement(atMs),
    make('b', {}, name),
    make('span', { className: 'soft' }, words.filter(Boolean).join(' · ')),
  )
}

let sectionsShown

function showSections(sections) {
  // An unchanged section is left as it is: a person may be on one of its buttons.
  const given = JSON.stringify(sections)
  if (given === sectionsShown) return
  sectionsShown = given
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
            ...rows.map(({ cells, key }) =>
              make(
                'tr',
                {},
                ...cells.map((cell, index) =>
                  make('td', { data: { label: columns[index] } }, index === 0 && key ? keyLink(key, cell) : cell),
                ),
              ),
            ),
          ),
        ),
        more ? make('p', { className: 'soft' }, 'There are more; the command line lists them all.') : '',
      ),
    ),
  )
}

function keyLink(key, words) {
  const open = () => void showKey({ scope: key.scope, id: key.id }).then(() => byId('key').focus())
  return make('button', { type: 'button', className: 'link mono', onclick: open }, words)
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
  return make(
    'tr',
    { className: current ? 'shown' : '', data: { scope, id } },
    make('td', {}, keyLink({ scope, id }, id), make('span', { className: 'scope' }, scopeWords(entry))),
    make('td', { className: 'state' }, badge(state)),
    make('td', { data: { label: 'Attempt' } }, String(attempt)),
    make('td', {}, timeElement(firstClaimedAtMs, ago(firstClaimedAtMs))),
    make('td', {}, answerWords(entry.outcome)),
  )
}

/** The tenant of a key. For a gateway's key that is the last part of its scope, and escaped there. */
function scopeWords({ scope, tenant }) {
  if (tenant === undefined) return scope
  return `${scope.split('/')[0]}, ${tenant === '' ? 'shared by all callers' : `tenant ${tenant}`}`
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

// The first scopes come from the store. Later ones are learnt from events, without another query.
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
    const { entry, operation, timeline } = await ask(`/api/entry?${new URLSearchParams(key)}`)
    if (shown !== key) return
    const none = 'There is no entry of this key now.'
    const told = entry ? factsOf(entry, operation) : make('p', { className: 'soft' }, none)
    byId('key-body').replaceChildren(
      make('p', { className: 'soft small' }, entry ? scopeWords(entry) : key.scope),
      told,
      make('h3', { className: 'visually-hidden' }, 'Timeline'),
      timelineList(timeline),
      actionsOf(key, entry, operation),
    )
  } catch (error) {
    byId('key-body').replaceChildren(make('p', { className: 'problem' }, error.message))
  }
}

function factsOf(entry, operation) {
  const { state, attempt, fence, version, outcome } = entry
  const pairs = [
    ['State', badge(state)],
    ...(operation ? operationFacts(operation) : []),
    ['Attempt', String(attempt)],
    ['Fence', make('span', { className: 'mono' }, String(fence))],
    ['Answer', outcome ? `${answerWords(outcome)}${outcome.contentType ? `, ${outcome.contentType}` : ''}` : 'none'],
    ['Version', String(version)],
  ]
  return make('dl', { className: 'facts' }, ...facts(pairs))
}

function operationFacts({ state, direction, inDoubt }) {
  const isOver = ['completed', 'failed', 'expired'].includes(state)
  const words = direction === 'backward' && !isOver ? `${state}, going back` : state
  return [
    ['Operation', make('span', { className: `badge ${state === 'unreadable' ? 'parked' : state}` }, words)],
    ...(inDoubt.length > 0 ? [['In doubt', inDoubt.join(', ')]] : []),
  ]
}

function actionsOf(key, entry, operation) {
  const place = make('div', { className: 'actions' })
  if (!entry || token === undefined) return place
  const act = (action, words, className) =>
    make('button', { type: 'button', className, onclick: () => askFirst(action, key, operation) }, words)
  if (operation?.state === 'parked') place.append(act('resume', 'Resume…', 'danger'))
  const isIn = (...states) => states.includes(entry.state)
  // The result of an operation is decided step by step, in its code.
  if (!operation && isIn('running', 'abandoned', 'open')) place.append(act('resolve', 'Resolve…', ''))
  if (isIn('settled', 'open', 'abandoned')) place.append(act('keep', 'Keep longer…', ''))
  if (isIn('running', 'abandoned')) place.append(act('release', 'Release…', 'danger'))
  place.append(act('forget', 'Forget…', 'danger'))
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
  resolve: {
    title: 'Resolve this key?',
    words:
      'Every retry gets what you enter here, and no effect runs. Find out first what took effect: at the provider, in the ledger.',
    confirm: 'Resolve the key',
  },
  keep: {
    title: 'Keep this key for longer?',
    words: 'It is kept for at least this long from now. This never shortens.',
    confirm: 'Keep the key',
  },
  resume: { title: 'Resume this operation?', confirm: 'Resume the operation' },
}

const foundLabels = {
  response: [
    'The response: status line, headers, an empty line, the body',
    'HTTP/1.1 201 Created\nContent-Type: application/json\n\n{"receipt":"r1"}',
  ],
  value: ['The value, as JSON', '{"receipt":"r1"}'],
  failure: ['The message that every retry gets', 'The card was declined.'],
}

function labelFound() {
  const [label, placeholder] = foundLabels[byId('found-as').value]
  setText(byId('found-label'), label)
  byId('found-text').placeholder = placeholder
}

/** Keys of a gateway are HTTP keys: nothing but a response can be replayed for them. */
function showFields(action, key) {
  const resolves = action === 'resolve'
  const isGateway = key?.scope.startsWith('gateway:') ?? false
  byId('found-fields').hidden = !resolves
  byId('found-kind').hidden = isGateway
  byId('found-text').required = resolves
  byId('found-text').value = ''
  byId('found-as').value = isGateway ? 'response' : 'value'
  byId('keep-fields').hidden = action !== 'keep'
  labelFound()
}

function givenFor(action) {
  if (action === 'keep') return { forMs: Math.round(byId('keep-days').valueAsNumber * 86_400_000) }
  return action === 'resolve' ? { as: byId('found-as').value, text: byId('found-text').value } : {}
}

/** What a person must know before the change: nothing here looks up a step for them. */
function resumeWords(inDoubt) {
  const goesOn = 'Its failures are forgotten, and the next worker or retry that has its code takes it up where it was.'
  if (inDoubt.length === 0) return goesOn
  return `${goesOn} In doubt: ${inDoubt.join(', ')}. A step that was told to stop when in doubt parks it again, unless your code decides: resume(id, { decide }).`
}

let pending

function askFirst(action, key, operation) {
  const { words = resumeWords(operation.inDoubt), ...texts } = changes[action]
  const after = async () => {
    await Promise.all([showKey(key), showEntries()])
    byId('key').focus()
  }
  askReason({
    ...texts,
    words,
    name: key.id,
    path: `/api/${action}`,
    given: () => ({ ...key, ...givenFor(action) }),
    after,
  })
  showFields(action, key)
  if (action === 'resolve' || action === 'keep') byId(action === 'resolve' ? 'found-text' : 'keep-days').focus()
}

/** Opens the dialog. When it is confirmed, what `given` returns is sent with the reason, and `after` follows. */
function askReason(change) {
  pending = change
  setText(byId('change-title'), change.title)
  byId('change-words').replaceChildren(make('span', { className: 'mono' }, change.name), make('br'), change.words)
  setText(byId('change-confirm'), change.confirm)
  byId('reason').value = ''
  showFields()
  complain('change-problem')
  byId('change-dialog').showModal()
  byId('reason').focus()
}

async function change(event) {
  event.preventDefault()
  const { path, given, after } = pending
  const body = JSON.stringify({ ...given(), reason: byId('reason').value })
  try {
    await ask(path, { method: 'POST', headers: { 'content-type': 'application/json' }, body })
    byId('change-dialog').close()
    await after()
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
    await showOf[openedView()]?.()
  } catch (error) {
    token = before
    complain('token-problem', error)
  }
}

// ── views ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────

for (const start of [startMessages, startSessions, startWebhooks]) {
  start({ ask, askReason, isUnlocked: () => token !== undefined })
}
const views = ['keys', 'messages', 'sessions', 'webhooks']
const showOf = { messages: showMessages, sessions: showSessions, webhooks: showWebhooks }
const skipsTo = {
  keys: ['#entries', 'Skip to the entries'],
  messages: ['#inbox', 'Skip to the messages'],
  sessions: ['#sessions', 'Skip to the sessions'],
  webhooks: ['#endpoints', 'Skip to the webhooks'],
}

const openedView = () => views.find((name) => !byId(`view-${name}`).hidden)

function showView(name) {
  for (const each of views) {
    const tab = byId(`tab-${each}`)
    tab.setAttribute('aria-selected', String(each === name))
    tab.tabIndex = each === name ? 0 : -1
    byId(`view-${each}`).hidden = each !== name
  }
  const [target, words] = skipsTo[name]
  byId('skip').href = target
  setText(byId('skip'), words)
}

/** What a view shows is fetched when a person opens it, and not before. */
function openView(name) {
  showView(name)
  location.hash = name !== 'keys' ? `view=${name}` : shown ? new URLSearchParams(shown).toString() : ''
  void showOf[name]?.()
}

function moveTab(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key]
  if (step === undefined) return
  event.preventDefault()
  const next = views.at((views.indexOf(openedView()) + step) % views.length)
  openView(next)
  byId(`tab-${next}`).focus()
}

// ── together ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

let refreshAtMs = 0

// Events can come by the thousand. The page fetches again every two seconds at most, and after a rest of twenty times as long
// as the fetch took, so a page that is left open does not become a load.
async function refresh() {
  const startedMs = performance.now()
  refreshAtMs = Infinity
  stale = false
  const isOpen = () => !byId('view-keys').hidden
  const looking = isOpen() && filter.afterId === undefined && !byId('rows').contains(document.activeElement)
  if (looking) await showEntries()
  if (isOpen() && shown && !byId('key').contains(document.activeElement)) await showKey(shown)
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

for (const name of views) {
  byId(`tab-${name}`).addEventListener('click', () => openView(name))
  byId(`tab-${name}`).addEventListener('keydown', moveTab)
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
byId('found-as').addEventListener('change', labelFound)
byId('change-form').addEventListener('submit', (event) => void change(event))
for (const button of document.querySelectorAll('[data-close]')) {
  button.addEventListener('click', () => button.closest('dialog').close())
}

const { changes: changeable } = await ask('/api/about')
byId('unlock').hidden = !changeable
void ask('/api/scopes').then(addScopes, () => {})
readFilter()
const linked = new URLSearchParams(location.hash.slice(1))
if (Object.hasOwn(showOf, linked.get('view') ?? '')) openView(linked.get('view'))
else if (linked.has('id')) void showKey({ scope: linked.get('scope') ?? '', id: linked.get('id') })
void follow('/api/live', {
  headers,
  onData: onOverview,
  onState(state, words = 'Live') {
    byId('live').className = `far live small ${state}`
    setText(byId('live'), words)
  },
})
