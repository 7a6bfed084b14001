// In the place of the inbox that a program of the page leaves open: hands everything on, and prints what is written.
import { expect } from 'vitest'

const inbox = `
const written: unknown[] = []
const tx = { query: async (_sql: string, values: unknown[]) => void (written.push(...values), console.log(JSON.stringify(values))) }
const inbox: Receiver<typeof tx> = {
  consumer: 'docs',
  async deliver(message, handler, acknowledge) {
    await handler(tx, message)
    await acknowledge()
    return { acknowledged: true }
  },
  deliverBatch: async () => [],
}`

/** Publishes one message, waits until its handler has written, and ends. */
const end = `
console.log(await publisher.publish([{ id: '1', topic: 'orders', body: Buffer.from('{"orderId":"order-1"}'), headers: {} }]))
while (written.length === 0) await new Promise((resolve) => setTimeout(resolve, 20))
await consuming.stop()
await publisher.close?.()
`

export function withPrintingInbox(code: string): string {
  expect(code).toContain('declare const inbox')
  return code.replace(/^declare const inbox.*$/m, inbox) + end
}
