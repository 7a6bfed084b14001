// One command to one Redis, on a connection of its own. Invariant: no connection stays open and none comes back.
import { createClient } from 'redis'

export async function redisCommand(url: string, ...command: (string | number)[]): Promise<unknown> {
  // The older protocol answers with plain arrays, also where the newer one has maps.
  const client = createClient({ url, RESP: 2, socket: { reconnectStrategy: false, connectTimeout: 5_000 } })
  // The rejected promise says it all; without a listener the event would end the process.
  client.on('error', () => {})
  await client.connect()
  try {
    return await client.sendCommand(command.map(String))
  } finally {
    client.destroy()
  }
}

export async function redisInfo(url: string): Promise<string> {
  return String(await redisCommand(url, 'INFO'))
}
