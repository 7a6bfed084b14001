// A till that is killed at one step after the other, from taking its numbers to having settled the answer, and started again, over a
// network that loses requests and replies. The server writes down what it did: a number has one request and one effect, and every sale that
// took place was told to the till. 20 kills, and 300 with ONCEONLY_LONG=1.

import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { createSessionClient } from '../../src/client/client.ts'
import { fileKeys } from '../../src/client/node.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { seededRandom } from '../../src/testing/seeded-random.ts'
import { freshSeed } from '../fresh-seed.ts'
import { isLong, tellRun } from '../long-run.ts'
import { killedAt } from './killed-at.ts'
import { collisionsIn, listen, openTillServer } from './till-server.ts'

const wanted = isLong ? 300 : 20

/** A sale has fewer. What an earlier process left comes before it. */
const stepsMax = 26

const testName = `a number has one request and one effect, over ${wanted} kills at one step after the other`

test(
  testName,
  async () => {
    const folder = mkdtempSync(join(tmpdir(), 'onceonly-tills-'))
    const [used, keys] = [join(folder, 'used'), join(folder, 'till-7')]
    const server = openTillServer({ store: memoryStore() })
    await using shop = await listen(server)
    const seed = freshSeed('session client kills') ?? 1
    const random = seededRandom(seed)
    const first = random.integer(0, stepsMax - 1)
    const kills: string[] = []
    let articles = 0
    while (kills.length < wanted) {
      if (random.chance(0.5)) server.script.push(random.chance(0.7) ? 'lose-reply' : 'drop')
      // Steps that are far apart come close together, so that a short run reaches as many kinds as a long one.
      const lastStep = 1 + ((first + articles * 7) % stepsMax)
      const where = await killedAt('selling.ts', [keys, shop.url, used, `tea-${++articles}`, String(lastStep)])
      if (where !== undefined) kills.push(where)
    }
    expect(await killedAt('selling.ts', [keys, shop.url, used, 'the last one', '0'])).toBeUndefined()
    expect(collisionsIn(server), `seed ${seed}`).toEqual([])
    const effects = server.effects.map(({ body }) => body)
    expect(effects.length, `seed ${seed}: a sale was booked twice`).toBe(new Set(effects).size)
    // A sale that was killed before it was on record was never begun. All others took place, and their answers were used.
    const told = readFileSync(used, 'utf8').trim().split('\n')
    expect(new Set(told), `seed ${seed}`).toEqual(new Set(effects.map((body) => `${body}|receipt of ${body}`)))
    const till = createSessionClient({ url: shop.url, client: 'till-7', keys: fileKeys(keys) })
    expect(await till.pending()).toEqual([])
    const kinds = new Set(kills).size
    const epochs = new Set(server.sent.map(({ epoch }) => epoch)).size
    tellRun(
      'session client kills',
      `${wanted} kills at ${kinds} kinds of steps, ${articles} sales asked for, ${effects.length} booked once each, ${epochs} sessions, seed ${seed}`,
    )
    // A run that reached too little proves nothing.
    expect(kinds).toBeGreaterThanOrEqual(6)
    rmSync(folder, { recursive: true })
  },
  60_000 + wanted * 10_000,
)
