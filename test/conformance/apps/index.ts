// Every app by its name. A framework is loaded when its app is started: a process of its own needs only one.
import type { StartApp } from './app.ts'

export const apps = {
  node: async (ground) => (await import('./node.ts')).startNode(ground),
  fetch: async (ground) => (await import('./fetch.ts')).startFetch(ground),
  express4: async (ground) => (await import('./express.ts')).startExpress4(ground),
  express5: async (ground) => (await import('./express.ts')).startExpress5(ground),
  fastify: async (ground) => (await import('./fastify.ts')).startFastify(ground),
  hono: async (ground) => (await import('./hono.ts')).startHono(ground),
  koa: async (ground) => (await import('./koa.ts')).startKoa(ground),
  'nest-express': async (ground) => (await import('./nest.ts')).startNestExpress(ground),
  'nest-fastify': async (ground) => (await import('./nest.ts')).startNestFastify(ground),
} satisfies Record<string, StartApp>

export type AppName = keyof typeof apps
