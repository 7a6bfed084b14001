// The requests as they fly: one line each, drawn from the measured times, on one axis of time.

import { make, setText } from './page.js'

export function createFlight(list, axis) {
  const reduced = matchMedia('(prefers-reduced-motion: reduce)')
  let rows = new Map()
  let originMs = 0
  let frame

  const nowMs = () => performance.timeOrigin + performance.now()

  function draw() {
    const requests = [...rows.values()]
    const lastMs = Math.max(...requests.map(({ request }) => request.endedMs ?? nowMs()), originMs + 200)
    const spanMs = (lastMs - originMs) * 1.02
    for (const { request, bar, took } of requests) {
      const endMs = request.endedMs ?? nowMs()
      bar.style.left = `${((request.startedMs - originMs) / spanMs) * 100}%`
      bar.style.width = `${Math.max(0.6, ((endMs - request.startedMs) / spanMs) * 100)}%`
      setText(took, `${Math.round(endMs - request.startedMs)} ms`)
    }
    setText(axis, `${Math.round(lastMs - originMs)} ms`)
  }

  // While a request is under way its bar grows with the time. Nothing else moves.
  function animate() {
    draw()
    const flying = [...rows.values()].some(({ request }) => request.endedMs === undefined)
    if (!flying) return (frame = undefined)
    frame = reduced.matches ? setTimeout(animate, 500) : requestAnimationFrame(animate)
  }

  return {
    clear() {
      rows = new Map()
      originMs = nowMs()
      list.replaceChildren()
    },
    report(request) {
      const name = `${request.who} ${request.number}`
      const row = rows.get(name) ?? addRow(list, request)
      row.request = request
      rows.set(name, row)
      if (request.endedMs !== undefined) {
        row.item.className = request.is
        setText(row.words, request.words)
      }
      if (frame === undefined) animate()
      else draw()
    },
  }
}

function addRow(list, { who, number }) {
  const bar = make('span', { className: 'line' })
  const took = make('span', { className: 'took soft' })
  const words = make('span', { className: 'words' }, 'under way')
  const item = make(
    'li',
    { className: 'flying' },
    make('span', { className: 'who' }, who ? `${who}, try ${number}` : `Try ${number}`),
    make('span', { className: 'track', 'aria-hidden': 'true' }, bar),
    took,
    words,
  )
  list.append(item)
  return { item, bar, took, words }
}
