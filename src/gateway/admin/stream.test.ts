import { createServer } from 'node:http'
import type { ServerResponse } from 'node:http'
import { connect } from 'node:net'
import type { AddressInfo } from 'node:net'
import { expect, test } from 'vitest'
import { manualClock } from '../../testing/manual-clock.ts'
import { startStream } from './stream.ts'

test('nothing is queued for a client that does not read, others are served, and it is cut off', async () => {
  const clock = manualClock()
  let pictures = 0
  // The first ones are larger than what the system takes off our hands, and each one is new.
  const picture = async (): Promise<string> => `${++pictures} ${'x'.repeat(pictures < 4 ? 8_000_000 : 10)}`
  const stream = startStream({ clock, picture })
  const responses: ServerResponse[] = []
  const server = createServer((_request, response) => {
    responses.push(response)
    stream.add(response)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const stuck = connect(port, '127.0.0.1').pause()
  stuck.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n')
  await expect.poll(() => pictures).toBe(1)
  const reader = await fetch(`http://127.0.0.1:${port}/`)
  const decoder = new TextDecoder()
  let last = ''
  const reading = (async () => {
    for await (const chunk of reader.body!) last = decoder.decode(chunk)
  })().catch(() => {}) // it ends with the server
  for (let tick = 0; tick < 70; tick++) {
    await clock.advance(500)
    expect(responses[0]!.writableLength).toBeLessThan(2 * 8_100_000)
  }
  expect(responses[0]!.destroyed).toBe(true)
  await expect.poll(() => last).toContain(`data: ${pictures} `)
  stuck.destroy()
  stream.close()
  await new Promise((resolve) => {
    server.close(resolve)
    server.closeAllConnections()
  })
  await reading
})

test('nobody looks: nothing is asked for', async () => {
  const clock = manualClock()
  let pictures = 0
  const stream = startStream({ clock, picture: async () => String(++pictures) })
  await clock.advance(10_000)
  expect(pictures).toBe(0)
  stream.close()
})
