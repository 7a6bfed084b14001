// The SQLite store keeps the contract in each of its three forms. What is its own is in the other sqlite-*.test.ts files.

import { describe, test } from 'vitest'
import { sqliteForms, sqliteSubject } from '../../../test/subjects/sqlite.ts'
import { sweptTest } from '../../../test/subjects/swept.ts'
import { storeContract } from '../../testing/store-contract.ts'
import type { Cannot } from '../../testing/store-contract.ts'

const cannot: Cannot = {
  collecting: 'its transactions stay open: nothing has to be collected',
  'no-waiting':
    'SQLite has one writer: while a transaction is open, whoever must write waits, for lockWaitMs at the most',
  'clock-skew': 'all processes that share a SQLite file are on one machine and read its clock',
  'crash-recovery': 'there is no server; sqlite/processes.test.ts kills the process itself',
  'connection-faults':
    'there is no connection to lose; sqlite/faults.test.ts has a full disk and a lock that is not given back',
  'commit-faults': 'there is no connection to lose; sqlite/processes.test.ts kills the process before and after COMMIT',
}

for (const [name, form] of Object.entries(sqliteForms)) {
  describe(name, () => sweptTest(() => sqliteSubject(form)))
  storeContract({ name, create: () => sqliteSubject(form), cannot, test })
}
