// A server that is started once a run, for those that take seconds to start. The tests share it by random names. The process of the
// global set-up starts it when the first test asks, and ends it with the run. Invariant: however many test files ask at once, one starts,
// and it outlives every file that uses it.
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { createConnection, createServer } from 'node:net'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import type { Running, Server } from './server.ts'

type Startable = Pick<Server, 'start'>
type Answer = { readonly url: string } | { readonly error: string }

const socketIn = (run: string): string => join(run, 'shared')

/** Answers the processes of the run that ask for a shared server. */
export async function keepShared(run: string, known: Readonly<Record<string, Startable>>): Promise<AsyncDisposable> {
  const started = new Map<string, Promise<Running>>()
  const answer = async (name: string): Promise<Answer> => {
    try {
      if (!known[name]) throw new Error(`no server is named ${name}`)
      if (!started.has(name)) started.set(name, known[name].start())
      return { url: (await started.get(name)!).url }
    } catch (error) {
      return { error: error instanceof Error ? error.message : String(error) }
    }
  }
  const server = createServer((socket) => {
    socket.on('error', () => {})
    socket.once('data', (name: Buffer) => {
      void answer(name.toString()).then((found) => socket.end(JSON.stringify(found)))
    })
  }).listen(socketIn(run))
  await once(server, 'listening')
  return {
    async [Symbol.asyncDispose]() {
      server.close()
      for (const one of await Promise.allSettled(started.values()))
        if (one.status === 'fulfilled') await one.value.stop()
    },
  }
}

const own = new Map<Startable, Promise<Running>>()

/** The URL of the run's shared server. A process that belongs to no run has one of its own, which ends with the process. */
export async function sharedUrl(server: Startable & Pick<Server, 'name'>): Promise<string> {
  const run = process.env['ONCEONLY_RUN_DIR']
  if (!run || !existsSync(socketIn(run))) {
    if (!own.has(server)) own.set(server, server.start())
    return (await own.get(server)!).url
  }
  const socket = createConnection(socketIn(run))
  socket.write(server.name)
  const answer = JSON.parse(await text(socket)) as Answer
  if ('error' in answer) throw new Error(answer.error)
  return answer.url
}
