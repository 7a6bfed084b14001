// The machinery that all server files share, shown with the smallest server there is: a few lines of Node.
import { existsSync } from 'node:fs'
import { createServer } from 'node:net'
import { once } from 'node:events'
import { dirname } from 'node:path'
import { expect, test } from 'vitest'
import { freePort } from '../free-port.ts'
import { type Recipe, startServer } from './process.ts'

const program = `
  require('node:net').createServer((socket) => socket.end(String(process.pid)))
    .on('error', (error) => { console.error(error.message); process.exit(1) })
    .listen(process.argv[1], '127.0.0.1')`

function recipe(changes: Partial<Recipe> = {}): Recipe {
  return {
    name: 'echo',
    command: ({ port }) => ({ file: process.execPath, args: ['-e', program, String(port)] }),
    ready: async ({ port }, pid) => {
      const answer = await fetchText(port)
      return answer === String(pid)
    },
    url: ({ port }) => `tcp://127.0.0.1:${port}`,
    shutDownSignal: 'SIGTERM',
    portTaken: /EADDRINUSE/,
    ...changes,
  }
}

async function fetchText(port: number): Promise<string> {
  const { connect } = await import('node:net')
  const socket = connect(port, '127.0.0.1')
  let text = ''
  socket.on('data', (chunk: Buffer) => (text += chunk.toString()))
  await once(socket, 'close').catch(() => {})
  return text
}

test('a port that another process took is answered by taking the next', async () => {
  const taken = await freePort()
  const other = createServer().listen(taken, '127.0.0.1')
  await once(other, 'listening')
  const tried: number[] = []
  const server = await startServer(
    recipe({
      command: ({ port }) => {
        tried.push(port)
        const used = tried.length === 1 ? taken : port
        return { file: process.execPath, args: ['-e', program, String(used)] }
      },
    }),
  )
  expect(tried).toHaveLength(2)
  await server.stop()
  other.close()
})

test('a server that does not start fails with the end of its log and leaves nothing', async () => {
  let folder = ''
  const args = ['-e', 'console.error("no licence"); process.exit(3)']
  const command: Recipe['command'] = (place) => ({ file: process.execPath, args: ((folder = place.folder), args) })
  await expect(startServer(recipe({ command }))).rejects.toThrow(/echo did not start: it ended with 3\n.*no licence/s)
  expect(existsSync(folder)).toBe(false)
})

test('a server that is never ready fails with what was waited for', async () => {
  const start = startServer(recipe({ ready: () => false, startTimeoutMs: 300 }))
  await expect(start).rejects.toThrow(/waited 300 ms in vain for echo/)
})

test('crash, restart, shutDown and stop say what is running', async () => {
  const server = await startServer(recipe())
  const folder = dirname(server.dataDir ?? '')
  const first = server.pid
  await server.crash()
  expect(server.pid).toBeUndefined()
  await expect(server.crash()).rejects.toThrow(/does not run and cannot be crashed/)
  await server.restart()
  expect(server.pid).not.toBe(first)
  expect(await fetchText(server.port)).toBe(String(server.pid))
  await server.shutDown()
  expect(server.pid).toBeUndefined()
  await server.restart()
  await Promise.all([server.stop(), server.stop()])
  await server.stop()
  expect(existsSync(folder)).toBe(false)
})
