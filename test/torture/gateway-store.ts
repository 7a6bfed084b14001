// What a gateway under torture gets for its store: the real one, watched. See gateway-hook.ts.
import { openStore as openReal } from '../../src/cli/open-store.ts'
import type { OpenedStore, OpenStoreOptions } from '../../src/cli/open-store.ts'
import type { GatewayOrders } from './gateways.ts'
import { openJournal } from './journal.ts'
import { type Pass, passThrough, watched } from './points.ts'

export async function openStore(url: string, options?: OpenStoreOptions): Promise<OpenedStore> {
  const { folder, name, offsetMs, fate } = JSON.parse(process.env['ONCEONLY_TORTURE']!) as GatewayOrders
  const journal = openJournal(folder, name, offsetMs)
  process.on('unhandledRejection', (reason) => journal.write({ is: 'unhandled', message: String(reason) }))
  journal.write({ is: 'watched' })
  const opened = await openReal(url, options)
  // A gateway claims a key of its own before it listens. Its fate is to meet it at a request.
  const [harmed, unharmed] = [passThrough(journal, fate), passThrough({ ...journal, process: `${name}, probing` }, {})]
  const pass: Pass = (call, token, sent, work) => (isProbe(sent) ? unharmed : harmed)(call, token, sent, work)
  return { ...opened, store: watched(opened.store, pass) }
}

const isProbe = (sent: object | undefined): boolean =>
  (sent as { key?: string } | undefined)?.key?.includes('#readiness') === true
