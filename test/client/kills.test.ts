// A client that is killed at any step between choosing the key and having used the answer, and started again, against the provider of
// the payments example behind a network that loses requests and replies. The provider's own ledger judges: one charge for each order.
// ONCEONLY_CLIENT_KILLS is how many kills there are, 50 unless given.

import { execFile, spawn } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { startNetwork } from '../../examples/payments/network.ts'
import type { Network } from '../../examples/payments/network.ts'
import { seededRandom } from '../../src/testing/seeded-random.ts'
import { freshSeed } from '../fresh-seed.ts'

const wanted = Number(process.env['ONCEONLY_CLIENT_KILLS'] ?? 50)
const folder = mkdtempSync(join(tmpdir(), 'onceonly-kills-'))
const [ledger, used, pending] = ['ledger', 'used', 'pending'].map((name) => join(folder, name)) as [
  string,
  string,
  string,
]
let network: Network
let stop: () => void

beforeAll(async () => {
  const script = join(import.meta.dirname, '../../examples/payments/provider.ts')
  const provider = spawn(process.execPath, [script, ledger], { stdio: ['ignore', 'pipe', 'inherit'] })
  stop = () => void provider.kill('SIGKILL')
  const port = await new Promise<string>((resolve) =>
    provider.stdout.once('data', (chunk: Buffer) => resolve(`${chunk}`)),
  )
  network = await startNetwork(() => `http://127.0.0.1:${port.trim()}`)
})
afterAll(() => {
  network.close()
  stop()
  rmSync(folder, { recursive: true, force: true })
})

const linesOf = (file: string): string[] => readFileSync(file, 'utf8').trim().split('\n')

/** Where it was killed, or undefined if it ended by itself. */
async function pay(order: string, step: number): Promise<string | undefined> {
  const script = join(import.meta.dirname, 'paying.ts')
  const args = [script, pending, network.url, used, order, String(step)]
  try {
    await promisify(execFile)(process.execPath, args, {
      env: { ...process.env, NODE_OPTIONS: '', NODE_NO_WARNINGS: '1' },
    })
    return undefined
  } catch (error) {
    const { signal, stdout } = error as { signal?: string; stdout: string }
    if (signal !== 'SIGKILL') throw error
    return /killed (.*)/.exec(stdout)![1]!
  }
}

test(
  `one charge for each order, over ${wanted} kills at any step`,
  async () => {
    const seed = freshSeed('client kills') ?? 1
    const random = seededRandom(seed)
    const killedAt: string[] = []
    let faults = 0
    let orders = 0
    while (killedAt.length < wanted) {
      if (random.chance(0.5)) {
        const fault = random.chance(0.7) ? 'lose the response' : 'lose the request'
        network.next('/charges', fault, () => faults++)
      }
      const where = await pay(`order-${++orders}`, random.integer(1, 18))
      if (where !== undefined) killedAt.push(where)
    }
    expect(await pay('', 0)).toBeUndefined()
    const charged = linesOf(ledger).map((line) => JSON.parse(line) as { order: string; receipt: string })
    const receipts = new Map(charged.map(({ order, receipt }) => [`pay:${order}`, receipt]))
    expect(charged.length, `seed ${seed}: an order was charged twice`).toBe(receipts.size)
    for (const line of linesOf(used)) {
      const [operation, receipt] = line.split(' ')
      expect(receipts.get(operation!), `seed ${seed}: ${line}`).toBe(receipt)
    }
    // Killed before its key was kept, an order was never begun. All others were charged, and their answers were used.
    const usedBy = new Set(linesOf(used).map((line) => line.split(' ')[0]))
    expect(usedBy).toEqual(new Set(receipts.keys()))
    expect(readdirSync(pending).filter((name) => name.endsWith('.json'))).toEqual([])
    console.log(
      `${killedAt.length} kills at ${new Set(killedAt).size} kinds of steps, ${orders} orders, ${charged.length} charges, ${faults} faults, seed ${seed}`,
    )
    // A run that reached too little proves nothing.
    expect(new Set(killedAt).size).toBeGreaterThanOrEqual(6)
    expect(faults).toBeGreaterThan(wanted / 20)
  },
  60_000 + wanted * 5_000,
)
