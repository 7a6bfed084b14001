// What the views of messages, sessions and webhooks have in common: a list page by page, and beside it one thing in full with what can be
// done about it. Nothing is fetched until a person opens a view, and then again when one asks for it.

import { byId, facts, make, setText, timelineList } from './page.js'

export const query = (given) => new URLSearchParams(Object.entries(given).filter(([, value]) => value))

export const checked = (name) => document.querySelector(`input[name=${name}]:checked`).value

/** A page of rows. A store that keeps nothing of the kind says why, in `missing`. */
export async function fetched(dashboard, path) {
  try {
    return { rows: [], more: false, ...(await dashboard.ask(path)) }
  } catch (error) {
    return { rows: [], more: false, missing: error.message }
  }
}

export function fill(place, { rows, missing }, none, row) {
  byId(`${place}-rows`).replaceChildren(...rows.map(row))
  byId(`${place}-none`).hidden = rows.length > 0
  setText(byId(`${place}-none`), missing ?? none)
}

/** The buttons below a list, and what is said between them. */
export function setPager(place, { rows, more }, isFirst) {
  byId(`${place}-next`).disabled = !more
  byId(`${place}-first`).disabled = isFirst
  setText(byId(`${place}-page`), `${rows.length} shown${more ? ', more follow' : ''}`)
}

/** Opens one thing in its card. */
export function link(words, card, open) {
  const opened = () => void open().then(() => byId(card).focus())
  return make('button', { type: 'button', className: 'link mono', onclick: opened }, words)
}

/** What people did with it, and what this process has seen of it. There is no entry of such a key. */
export async function momentsOf(dashboard, key) {
  const life = await dashboard.ask(`/api/entry?${query(key)}`).catch(() => ({ timeline: [] }))
  return life.timeline.filter(({ witness }) => witness !== 'store')
}

/** `[words on the button, change]` pairs, as buttons that ask for a reason first. None without the token. */
export function changeButtons(dashboard, name, changes) {
  const place = make('div', { className: 'actions' })
  if (!dashboard.isUnlocked()) return place
  for (const [confirm, change] of changes) {
    const onclick = () => dashboard.askReason({ ...change, name, confirm })
    const className = `danger ${confirm.toLowerCase()}`
    place.append(make('button', { type: 'button', className, onclick }, `${confirm}…`))
  }
  return place
}

/** One thing, in its card: what is known of it, lists, and what can be done. */
export function fillCard(card, pairs, moments, ...rest) {
  byId(`${card}-body`).replaceChildren(
    make('dl', { className: 'facts' }, ...facts(pairs)),
    make('h3', { className: 'visually-hidden' }, 'Timeline'),
    timelineList(moments),
    ...rest,
  )
}

export function revealInto(place, label, words) {
  place.append(make('pre', { tabIndex: 0, 'aria-label': label }, words))
}

/** A form searches, a choice does so at once, and both begin at the first page. */
export function onSearch(place, choices, search) {
  if (choices) byId(choices).addEventListener('change', () => search())
  byId(`${place}-filters`).addEventListener('submit', (event) => {
    event.preventDefault()
    search()
  })
}
