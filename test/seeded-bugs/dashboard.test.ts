// What a seeded bug asked for: that a change by hand is on record before it takes effect is seen only where the record fails.

import { expect, test } from 'vitest'
import { InDoubtError } from '../../src/core/errors.ts'
import { createOnce } from '../../src/core/once.ts'
import { resumeByHand } from '../../src/gateway/operation-by-hand.ts'
import { memoryStore } from '../../src/stores/memory.ts'

test('an operation whose resumption cannot be put on record stays parked', async () => {
  const store = memoryStore()
  const once = createOnce({ store, scope: 'shop' })
  const mail = once.operation('mail', { version: 1 }, (op) =>
    op.step('send', { run: () => Promise.reject(new InDoubtError('no answer')), inDoubt: 'park' }),
  )
  for (let attempt = 1; attempt <= 2; attempt++) await mail.run('m', 1).catch(() => undefined)
  expect(await mail.status('m')).toMatchObject({ state: 'parked' })
  const withoutAudit = { ...store, mend: () => Promise.reject(new Error('the audit trail is full')) }
  const resumed = resumeByHand(withoutAudit, { scope: 'shop/operations/mail', id: 'm' }, 'the provider has it')
  await expect(resumed).rejects.toThrow('the audit trail is full')
  expect(await mail.status('m')).toMatchObject({ state: 'parked' })
  await once.close()
})
