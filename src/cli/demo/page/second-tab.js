// The second tab: a worker has its own thread and its own requests, and shares with the page only the number of the order.

import { pay } from './client.js'

addEventListener('message', ({ data }) => {
  void pay({ ...data, report: (request) => postMessage({ request }) }).then((ending) => postMessage({ ending }))
})
