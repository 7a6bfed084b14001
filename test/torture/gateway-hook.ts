// Loaded with --import into a process of `onceonly gateway`, which is otherwise what its users start. The hook replaces the store
// that the command opens by that of gateway-store.ts, which writes down every call and can kill or stop the process there.
import { registerHooks } from 'node:module'
import { pathToFileURL } from 'node:url'
import { join } from 'node:path'

const urlOf = (...path: string[]): string => pathToFileURL(join(import.meta.dirname, ...path)).href
const [command, store, ours] = [
  urlOf('..', '..', 'src', 'cli', 'gateway.ts'),
  urlOf('..', '..', 'src', 'cli', 'open-store.ts'),
  urlOf('gateway-store.ts'),
]

registerHooks({
  resolve(specifier, context, next) {
    const resolved = next(specifier, context)
    return context.parentURL === command && resolved.url === store ? { ...resolved, url: ours } : resolved
  },
})
