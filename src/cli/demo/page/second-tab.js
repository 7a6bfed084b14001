// The second tab: a worker has its own thread and its own requests. It shares with the page the number of the order, and the keys in
// IndexedDB, as the tabs of one site do.

import { pay } from './client.js'
import { payOnce } from './keyed.js'

addEventListener('message', ({ data }) => {
  const send = data.road === 'with' ? payOnce : pay
  void send({ ...data, report: (request) => postMessage({ request }) }).then((ending) => postMessage({ ending }))
})
