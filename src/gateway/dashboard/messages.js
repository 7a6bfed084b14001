// Messages that wait for a person: what inboxes have parked, how far behind the relays are, and what they could not publish. Nothing is
// fetched until a person opens the view, and then again when one asks for it. What a message says is fetched with the token alone.

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
import { ago, byId, bytes, duration, facts, make, setText, timeElement, timeOfDay } from './page.js'

/** Where PostgreSQL stops counting (messages/relay/source.ts). */
const unsentCountedMax = 10_000

const codeWords = { ATTEMPTS: 'tried too often', TOO_OLD: 'too old', MISMATCH: 'another body', NO_ID: 'no id' }

/** `ask` fetches with the token, `askReason` opens the dialog before a change. */
let dashboard
let after
let shown
let showAgain

// ── lists ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────

async function showParked() {
  const filter = { scope: byId('inbox-scope').value, id: byId('inbox-id').value, code: checked('code') }
  const page = await fetched(dashboard, `/api/parked?${query({ ...filter, ...after })}`)
  fill('inbox', page, 'No message is parked.', parkedRow)
  setPager('inbox', page, after === undefined)
}

async function showOutbox() {
  const filter = { topic: byId('outbox-topic').value, key: byId('outbox-key').value, state: checked('held') }
  const page = await fetched(dashboard, `/api/outbox?${query(filter)}`)
  fill('outbox', page, 'There is no such row.', letterRow)
  byId('outbox-status').replaceChildren(...(page.status ? facts(statusPairs(page.status)) : []))
  if (!page.more) return
  byId('outbox-none').hidden = false
  setText(byId('outbox-none'), 'There are more. Search for a topic or a key, or type onceonly outbox list.')
}

function parkedRow(parked) {
  const { scope, id, fingerprint, code, attempts, parkedAtMs, isRedriven, bytes: size } = parked
  const badge = make('span', { className: isRedriven ? 'badge good' : 'badge parked' }, codeWords[code] ?? code)
  return make(
    'tr',
    { data: { scope, id, fingerprint } },
    make(
      'td',
      {},
      link(id, 'message', () => showMessage(parked)),
      make('span', { className: 'scope' }, scope),
    ),
    make('td', { className: 'state' }, badge, isRedriven ? make('span', { className: 'scope' }, 'redriven') : ''),
    make('td', { data: { label: 'Attempts' } }, String(attempts)),
    make('td', {}, timeElement(parkedAtMs, ago(parkedAtMs))),
    make('td', {}, bytes(size)),
  )
}

function letterRow(letter) {
  const { id, topic, key, type, state, tries, failedAtMs } = letter
  return make(
    'tr',
    {},
    make(
      'td',
      {},
      link(id, 'message', () => showLetter(letter)),
      make('span', { className: 'scope' }, `${topic}, ${type}`),
    ),
    make('td', { className: 'state' }, stateBadge(state)),
    make('td', { data: { label: 'Key' } }, key ?? 'none'),
    make('td', { data: { label: 'Tries' } }, String(tries)),
    make('td', {}, failedAtMs === undefined ? '' : timeElement(failedAtMs, ago(failedAtMs))),
  )
}

function stateBadge(state) {
  return make('span', { className: `badge ${{ parked: 'parked', dead: 'bad' }[state] ?? ''}` }, state)
}

// ── one message ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

async function showMessage(parked) {
  const { scope, id, fingerprint, code, attempts, parkedAtMs, isRedriven, bytes: size } = parked
  showAgain = () => showMessage(parked)
  const name = { scope, id, fingerprint }
  const pairs = [
    ['Consumer', scope],
    ['Why', codeWords[code] ?? code],
    ['Attempts', String(attempts)],
    ['Parked', timeElement(parkedAtMs, ago(parkedAtMs))],
    ['Size', bytes(size)],
    ['Redriven', isRedriven ? 'yes: the next inbox.runRedriven of its consumer runs it' : 'no'],
  ]
  const redrive = {
    title: 'Redrive this message?',
    words: 'The next inbox.runRedriven of its consumer runs it once, and marks it. Mend what made it fail first.',
    path: '/api/redrive',
    given: () => name,
    after: () => redriven(() => showMessage({ ...parked, isRedriven: true })),
  }
  const discard = {
    title: 'Discard this message?',
    words: 'It is removed, and is never run. One that comes again is refused as before.',
    path: '/api/discard',
    given: () => name,
    after: discarded,
  }
  const changes = { discard, ...(isRedriven ? {} : { redrive }) }
  await showOne({ scope, id }, pairs, changes, `/api/parked-message?${query(name)}`)
}

async function showLetter(letter) {
  const { id, topic, key, type, state, tries, addedAtMs, failedAtMs } = letter
  showAgain = () => showLetter(letter)
  const pairs = [
    ['Topic', topic],
    ['Key', key ?? 'none'],
    ['Type', type],
    ['State', stateBadge(state)],
    ['Tries', String(tries)],
    ['Added', timeElement(addedAtMs, ago(addedAtMs))],
    ...(failedAtMs === undefined ? [] : [['Failed', timeElement(failedAtMs, ago(failedAtMs))]]),
  ]
  const order = 'A parked key leaves in its order. A dead row arrives after those that overtook it.'
  const redrive = {
    title: 'Redrive this row?',
    words: `A relay that runs tries it again within about a second, with its tries forgotten. ${order}`,
    path: '/api/redrive-letter',
    given: () => ({ id }),
    after: () => redriven(() => showLetter({ ...letter, state: 'waiting', tries: 0 })),
  }
  const discard = {
    title: 'Discard this row?',
    words: 'It is removed, and is never sent. Its key goes on without it.',
    path: '/api/discard-letter',
    given: () => ({ id }),
    after: discarded,
  }
  const changes = state === 'waiting' ? {} : { discard, redrive }
  await showOne({ scope: topic, id }, pairs, changes, `/api/dead-letter?${query({ id, state })}`)
}

async function showOne(key, pairs, { redrive, discard }, revealed) {
  shown = key
  setText(byId('message-title'), key.id)
  const changes = [
    ['Redrive', redrive],
    ['Discard', discard],
  ].filter(([, change]) => change)
  const place = changeButtons(dashboard, key.id, changes)
  if (revealed && dashboard.isUnlocked()) {
    const onclick = () => void reveal(revealed, place)
    place.append(make('button', { type: 'button', onclick }, 'Show what it says'))
  }
  const moments = await momentsOf(dashboard, key)
  if (shown === key) fillCard('message', pairs, moments, place)
}

async function reveal(path, place) {
  try {
    const { detail = 'It is gone.', text, cut } = await dashboard.ask(path)
    revealInto(place, 'Why it failed', detail === '' ? 'It waits behind another row.' : detail)
    if (text !== undefined) revealInto(place, 'The message', cut ? `${text}\n… cut` : text)
  } catch (error) {
    place.append(make('p', { className: 'problem' }, error.message))
  }
}

async function discarded() {
  // It is gone. What was done with it stays to be read.
  showAgain = undefined
  await showMessages()
  if (shown) await showOne(shown, [['State', 'discarded']], {}, undefined)
  byId('message').focus()
}

async function redriven(showOnce) {
  showAgain = showOnce
  await showMessages()
  byId('message').focus()
}

// ── together ────────────────────────────────────────────────────────────────────────────────────────────────────────────────

export async function showMessages() {
  await Promise.all([showParked(), showOutbox(), showAgain?.()])
  setText(byId('messages-at'), `As of ${timeOfDay(Date.now())}`)
}

function firstPage() {
  after = undefined
  void showParked()
}

function nextPage() {
  const last = byId('inbox-rows').lastElementChild
  if (!last) return
  const { scope, id, fingerprint } = last.dataset
  after = { afterScope: scope, afterId: id, afterFingerprint: fingerprint }
  void showParked().then(() => byId('inbox').focus())
}

export function startMessages(given) {
  dashboard = given
  onSearch('inbox', 'inbox-codes', firstPage)
  onSearch('outbox', 'outbox-states', () => void showOutbox())
  byId('inbox-first').addEventListener('click', firstPage)
  byId('inbox-next').addEventListener('click', nextPage)
  byId('messages-again').addEventListener('click', () => void showMessages())
}

function statusPairs({ unsent, lagMs, blockedKeys, headOfLineMs, waiting, parked, dead, shards, shardsIdle }) {
  const aged = (count, ageMs) => (ageMs === undefined ? count : `${count}, the oldest added ${age(ageMs)} ago`)
  const counted = unsent === unsentCountedMax ? `${unsent.toLocaleString()} or more` : unsent.toLocaleString()
  const idle = shardsIdle === 0 ? '' : `, no relay works on ${shardsIdle} of them`
  return [
    ['Unsent', aged(counted, lagMs)],
    ['Blocked keys', aged(blockedKeys.toLocaleString(), headOfLineMs)],
    ['Waiting', `${waiting.toLocaleString()} rows, to be tried again or behind one that is`],
    ['Parked', parked.toLocaleString()],
    ['Dead', dead.toLocaleString()],
    ['Shards', `${shards}${idle}`],
  ]
}

const age = (ms) => duration(Math.round(ms / 1000))
