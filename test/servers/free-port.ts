// A loopback port that nobody listens on now. Invariant: none; another process may take it at once, so whoever uses one
// must be ready to try the next.
import { randomInt } from 'node:crypto'
import { createServer } from 'node:net'

// Below the range from which the kernel takes the ports of outgoing connections (32768 on Linux): a server that crashed
// must find its port free when it comes back, although clients keep connecting in the meantime.
const lowestPort = 15_000
const highestPort = 32_767

export async function freePort(): Promise<number> {
  for (;;) {
    const port = randomInt(lowestPort, highestPort + 1)
    if (await isFree(port)) return port
  }
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer()
    server.once('error', () => resolve(false))
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)))
  })
}
