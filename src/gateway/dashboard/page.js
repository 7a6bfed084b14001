// What every page of onceonly needs: elements whose content is always text, times, and the timeline of a key. There is no
// way here to turn a string into HTML, so a key or a body with a script in it is only ever read.

/** `make('li', { className: 'x', onclick }, 'text', child)`. Strings become text nodes. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(properties)) {
    if (name === 'data') Object.assign(element.dataset, value)
    else if (name.includes('-')) element.setAttribute(name, value)
    else element[name] = value
  }
  element.append(...children.filter((child) => child !== undefined && child !== ''))
  return element
}

export const byId = (id) => document.getElementById(id)

/** Writes only what differs, so a screen reader does not repeat the same text, and nothing loses its focus. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text
}

export const timeOfDay = (atMs) => new Date(atMs).toLocaleTimeString([], { hour12: false })

export function preciseTime(atMs) {
  return `${timeOfDay(atMs)}.${String(Math.floor(atMs % 1000)).padStart(3, '0')}`
}

export function timeElement(atMs, text = preciseTime(atMs)) {
  const date = new Date(atMs)
  return make('time', { dateTime: date.toISOString(), title: date.toLocaleString() }, text)
}

export function ago(atMs) {
  const seconds = Math.round((Date.now() - atMs) / 1000)
  if (seconds < 0) return `in ${duration(-seconds)}`
  return seconds === 0 ? 'now' : `${duration(seconds)} ago`
}

export function duration(seconds) {
  if (seconds < 120) return `${seconds} s`
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`
  return seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} days`
}

export function bytes(count) {
  if (count < 1024) return `${count} B`
  return count < 1_048_576 ? `${(count / 1024).toFixed(1)} KiB` : `${(count / 1_048_576).toFixed(1)} MiB`
}

/** `[name, content]` pairs as `<dt>` and `<dd>`. */
export function facts(pairs) {
  return pairs.flatMap(([name, content]) => [make('dt', {}, name), make('dd', {}, content)])
}

const troubled = new Set([
  'lost',
  'doubted',
  'store-failed',
  'unprotected',
  'mismatched',
  'lease over',
  'taken over',
  'parked',
  'drifted',
  'left to its lease',
  'relay-blocked',
  'dead-lettered',
])

export function timelineList(moments) {
  const now = Date.now()
  return make(
    'ol',
    { className: 'timeline' },
    ...moments.map(({ atMs, what, detail, attempt, witness }) => {
      const kind = troubled.has(what) ? 'bad' : what
      const later = witness === 'store' && atMs > now + 1000 ? 'later' : ''
      return make(
        'li',
        { className: `${kind} ${later}`.trim() },
        make('b', {}, what.replaceAll('-', ' ')),
        attempt === undefined ? '' : make('span', { className: 'soft' }, ` attempt ${attempt}`),
        ' ',
        timeElement(atMs, later ? ago(atMs) : preciseTime(atMs)),
        make('br'),
        make('span', { className: 'small' }, detail),
      )
    }),
  )
}

/** Server-sent events by fetch, as EventSource cannot send a token. Reconnects after a second when the stream is cut. */
export async function follow(url, { headers, onData, onState }) {
  for (;;) {
    try {
      const response = await fetch(url, { headers: headers() })
      if (!response.ok) throw new Error((await response.json()).message)
      onState('on')
      let text = ''
      for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
        text += chunk
        const parts = text.split('\n\n')
        text = parts.pop()
        for (const part of parts) if (part.startsWith('data: ')) onData(JSON.parse(part.slice(6)))
      }
      onState('off', 'Connection lost, trying again')
    } catch (error) {
      onState('off', error instanceof TypeError ? 'Not reachable, trying again' : error.message)
    }
    await new Promise((resolve) => setTimeout(resolve, 1000))
  }
}
