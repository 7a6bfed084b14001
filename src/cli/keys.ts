// `onceonly keys`: looks at entries, and changes them manually. Each part has its own file.

import { chosen } from './arguments.ts'
import { storeHelp } from './with-store.ts'

const help = `onceonly keys: look at entries, and change them manually

Usage: onceonly keys list [--scope SCOPE | --service SCOPE] [--state STATE] [--limit N] [--after CURSOR]
       onceonly keys show SCOPE ID [--reveal]
       onceonly keys resolve SCOPE ID (--value JSON | --failure TEXT | --response-file FILE | …) --reason TEXT [--yes]
       onceonly keys release SCOPE ID --reason TEXT [--yes]
       onceonly keys keep SCOPE ID --for DURATION --reason TEXT [--yes]
       onceonly keys forget SCOPE ID --reason TEXT [--yes]

${storeHelp}

A key in doubt whose effect took place: resolve gives it its true result, which every retry gets. One whose effect did not take
place: release lets the next retry run it. keep prolongs how long a key is kept. forget deletes an entry in any state, so that its
key is new again. release and forget can make an effect happen twice. Each change is in the audit trail, with its reason.
onceonly keys <part> --help says more of each.

Example: onceonly keys show payments order-42 --store sqlite:app.db
`

const parts = {
  list: async () => (await import('./keys/list.ts')).keysList,
  show: async () => (await import('./keys/show.ts')).keysShow,
  resolve: async () => (await import('./keys/mend.ts')).keysResolve,
  release: async () => (await import('./keys/mend.ts')).keysRelease,
  keep: async () => (await import('./keys/mend.ts')).keysKeep,
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
