// `onceonly keys`: looking at entries and mending them by hand. Each part is a file of its own.

import { chosen } from './arguments.ts'
import { storeHelp } from './with-store.ts'

const help = `onceonly keys: look at entries, and mend them by hand

Usage: onceonly keys list [--scope SCOPE] [--state STATE] [--limit N] [--after CURSOR]
       onceonly keys show SCOPE ID [--reveal]
       onceonly keys release SCOPE ID --reason TEXT [--yes]
       onceonly keys forget SCOPE ID --reason TEXT [--yes]

${storeHelp}

release gives a running or abandoned key back, so that the next retry runs it at once; forget deletes an entry in any state,
so that its key is new again. Both can let an effect happen twice; both are written to the audit trail first, with the reason.
onceonly keys <part> --help says more of each.

Example: onceonly keys show payments order-42 --store sqlite:app.db
`

const parts = {
  list: async () => (await import('./keys/list.ts')).keysList,
  show: async () => (await import('./keys/show.ts')).keysShow,
  release: async () => (await import('./keys/mend.ts')).keysRelease,
  forget: async () => (await import('./keys/mend.ts')).keysForget,
} as const

export async function keys(args: readonly string[]): Promise<number> {
  const [part, ...rest] = args
  if (part === '--help' || part === '-h') {
    console.log(help.trimEnd())
    return 0
  }
  const run = await parts[chosen('keys', Object.keys(parts) as (keyof typeof parts)[], part)]()
  return run(rest)
}
