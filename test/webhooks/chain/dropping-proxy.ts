// Stands between sender and receiver, and loses every third answer: the receiver has done its work, and the sender does not hear of it.
import { once } from 'node:events'
import { createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'

export interface DroppingProxy extends AsyncDisposable {
  readonly port: number
  dropped(): number
}

export async function startDroppingProxy(targetPort: number): Promise<DroppingProxy> {
  let answers = 0
  let dropped = 0
  const server = createServer((req, res) => {
    const { method, url, headers } = req
    const onward = request({ host: '127.0.0.1', port: targetPort, method, path: url, headers }, (answer) => {
      // Only what the receiver is done with: it is the answer that must come again.
      if (answer.statusCode === 200 && ++answers % 3 === 0) {
        dropped++
        answer.resume()
        return void req.socket.destroy()
      }
      res.writeHead(answer.statusCode!, answer.headers)
      answer.pipe(res)
    })
    // The receiver has been killed.
    onward.on('error', () => res.destroy())
    req.pipe(onward)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    port: (server.address() as AddressInfo).port,
    dropped: () => dropped,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      server.close()
      await once(server, 'close')
    },
  }
}
