// A mail server as a process of its own, with the faults of real ones: it takes the mail and its answer is lost, it hangs before
// it takes it, it refuses. Arguments: whether it knows keys, then what happens to each mail in turn, "take" after the last.
import { createServer } from 'node:http'

const [knowsKeys, ...faults] = process.argv.slice(2)
const mailbox: { messageId: string }[] = []
const keys = new Set<string>()

const server = createServer((request, response) => {
  if (request.method === 'GET') return void response.end(JSON.stringify(mailbox))
  let body = ''
  request.setEncoding('utf8').on('data', (chunk: string) => (body += chunk))
  request.on('end', () => {
    const fault = faults.shift() ?? 'take'
    if (fault === 'refuse') return void response.writeHead(503).end()
    // The caller's time-out is what ends it.
    if (fault === 'hang') return
    const key = String(request.headers['idempotency-key'])
    if (knowsKeys !== 'keys' || !keys.has(key)) mailbox.push(JSON.parse(body) as { messageId: string })
    keys.add(key)
    if (fault === 'cut') return void request.socket.destroy()
    if (fault !== 'take and hang') response.writeHead(202).end()
  })
})
server.listen(0, '127.0.0.1', () => process.send!((server.address() as { port: number }).port))
process.on('disconnect', () => process.exit())
