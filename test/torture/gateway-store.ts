// What a gateway under torture gets for its store: the real one, watched. See gateway-hook.ts.
import { openStore as openReal } from '../../src/cli/open-store.ts'
import type { OpenedStore, OpenStoreOptions } from '../../src/cli/open-store.ts'
import type { GatewayOrders } from './gateways.ts'
import { openJournal } from './journal.ts'
import { passThrough, watched } from './points.ts'

export async function openStore(url: string, options?: OpenStoreOptions): Promise<OpenedStore> {
  const { folder, name, offsetMs, fate } = JSON.parse(process.env['ONCEONLY_TORTURE']!) as GatewayOrders
  const journal = openJournal(folder, name, offsetMs)
  process.on('unhandledRejection', (reason) => journal.write({ is: 'unhandled', message: String(reason) }))
  journal.write({ is: 'watched' })
  const opened = await openReal(url, options)
  return { ...opened, store: watched(opened.store, passThrough(journal, fate)) }
}
