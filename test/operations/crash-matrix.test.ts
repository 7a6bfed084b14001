// The crash matrix: an operation of five steps is killed (-9) before and after every call that leaves its process, and the process
// that takes it up is killed, too; then a worker in yet another process finishes. Whoever was killed wherever: each effect
// once, by ledgers that have no unique constraint. The matrix is printed.

import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { needs } from '../servers/needs.ts'
import { startPostgres } from '../servers/postgres.ts'
import type { RunningPostgres } from '../servers/postgres.ts'
import { effectsInDatabase, prepare } from './checkout.ts'
import type { Place } from './checkout.ts'
import { openGround, together } from './processes.ts'
import type { Ground } from './processes.ts'
import type { Kill } from './program.ts'

interface Cell {
  readonly name: string
  /** The process of the client is killed here. */
  readonly first: Kill
  /** The worker that takes it up is killed here. */
  readonly second?: Kill
}

let ground: Ground
let server: RunningPostgres
beforeAll(async () => {
  ground = await openGround()
})
afterAll(() => ground[Symbol.asyncDispose]())

// A process spends more time waiting than computing, on the disk above all.
const atOnce = 4
const whens = ['before', 'after'] as const
/** Of a process that is not killed: it must not lose its lease because the machine is busy. */
const leaseMs = 60_000

/** How often each of the five effects took place, for the order of every cell: '11111'. */
async function effectsOf(place: Place): Promise<(name: string) => string> {
  const lines = [...(await effectsInDatabase(place)), ...ground.outsideLines()]
  const counts = Map.groupBy(lines, (line) => line)
  const prefixes = ['reserve', 'effect bank', 'order', 'effect carrier', 'effect mail']
  return (name) => prefixes.map((prefix) => counts.get(`${prefix} ${name}`)?.length ?? 0).join('')
}

/** Who is slow loses its lease and ends otherwise; that is no crash at this point, so it is tried with another order. */
async function kill(place: Place, cell: Cell, take = 1): Promise<string> {
  const name = `${cell.name}-${take}`
  const ask = { place, names: [name] }
  const killed = await ground.run({ ...ask, do: 'client', kill: cell.first }).catch(() => undefined)
  const second = killed === 'killed' && cell.second
  const killedAgain = second ? await ground.run({ ...ask, do: 'worker', kill: second }).catch(() => undefined) : killed
  if (killed === 'killed' && killedAgain === 'killed') return name
  expect(take, `${cell.name} was never killed at ${JSON.stringify([cell.first, cell.second])}`).toBeLessThan(5)
  return kill(place, cell, take + 1)
}

/** The calls of a process that nobody kills; a client's, or a worker's after a client was killed. */
async function learn(place: Place, name: string, first?: Kill): Promise<readonly string[]> {
  if (!first) {
    const said = await ground.run({ place, do: 'client', names: [name], leaseMs })
    return (said as { points: readonly string[] }).points
  }
  const names = [await kill(place, { name, first })]
  // Point 0 is none: it waits as those that are killed do.
  const said = await ground.run({ place, do: 'worker', names, kill: { point: 0, when: 'before' }, leaseMs })
  return (said as { points: readonly string[] }).points
}

/** Kills at every cell, finishes all of them in another process, and answers the effects of each. */
async function effectsAfter(place: Place, cells: readonly Cell[]): Promise<Map<Cell, string>> {
  const names = await together(cells, atOnce, (cell) => kill(place, cell))
  const finished = await ground.run({ place, do: 'finish', names, leaseMs })
  const { values } = finished as { values: readonly string[][] }
  expect(values.map((value) => value.length)).toEqual(cells.map(() => 5))
  const effects = await effectsOf(place)
  return new Map(cells.map((cell, index) => [cell, effects(names[index]!)]))
}

function print(title: string, points: readonly string[], effects: Map<Cell, string>, at: (cell: Cell) => Kill): void {
  const of = (point: number, when: Kill['when']): string =>
    [...effects].flatMap(([cell, each]) => (at(cell).point === point && at(cell).when === when ? [each] : [])).join(' ')
  const lines = points.map((name, index) => {
    const [before, after] = whens.map((when) => of(index + 1, when))
    return `${String(index + 1).padStart(4)}  ${name.padEnd(24)} ${before!.padEnd(7)} ${after}`
  })
  const head = `      killed at                before  after   (effects of reserve, charge, order, parcel, mail)`
  process.stdout.write([`\n${title}: ${effects.size} cells`, head, ...lines, ''].join('\n'))
}

function expectOnce(effects: Map<Cell, string>): void {
  const broken = [...effects].filter(([, each]) => each !== '11111')
  expect(broken.map(([cell, each]) => `${cell.name}: ${each}`)).toEqual([])
}

function matrix(store: string, makePlace: () => Promise<Place>): void {
  test('killed before and after every call, and the worker after it: each effect once', async () => {
    const place = await makePlace()
    await prepare(place)
    const points = await learn(place, 'sound')
    const transaction = ['store.beginStep', 'store.beginStep.commit']
    const outside = (system: string): string[] => ['store.advance', `outside.${system}`, 'store.advance']
    const steps = [transaction, outside('bank'), transaction, outside('carrier'), outside('mail')]
    expect(points).toEqual(['store.enlist', ...steps.flat(), 'store.advance'])
    const cells = points.flatMap((_, index): Cell[] =>
      whens.map((when) => ({ name: `${store}-${index + 1}-${when}`, first: { point: index + 1, when } })),
    )
    const once = await effectsAfter(place, cells)
    print(`${store}, killed once`, points, once, ({ first }) => first)
    expectOnce(once)

    // What was enlisted and is not settled is taken up: the worker is killed at one of the calls that it makes in any case.
    const madeCalls = ({ first: { point, when } }: Cell): number => (when === 'after' ? point : point - 1)
    const unfinished = cells.filter((cell) => madeCalls(cell) > 0 && madeCalls(cell) < points.length)
    const anyCase = 6
    const again = unfinished.map((cell, index): Cell => ({
      ...cell,
      name: `${cell.name}-again`,
      second: { point: (index % anyCase) + 1, when: whens[Math.floor(index / anyCase) % 2]! },
    }))
    const twice = await effectsAfter(place, again)
    print(`${store}, and its worker, too`, points, twice, ({ first }) => first)
    expectOnce(twice)
  })

  test('killed with a parcel on its way, and the worker before and after every call: each effect once', async () => {
    const place = await makePlace()
    await prepare(place)
    const clients = await learn(place, 'client')
    const first: Kill = { point: clients.indexOf('outside.carrier') + 1, when: 'after' }
    const points = await learn(place, 'sound', first)
    expect(points).toContain('outside.lookup')
    const cells = points.flatMap((_, index): Cell[] =>
      whens.map((when) => ({
        name: `${store}-parcel-${index + 1}-${when}`,
        first,
        second: { point: index + 1, when },
      })),
    )
    const effects = await effectsAfter(place, cells)
    print(`${store}, the worker`, points, effects, ({ second }) => second!)
    expectOnce(effects)
  })
}

describe('SQLite', () => {
  let files = 0
  const makePlace = async (): Promise<Place> => ({
    store: join(ground.folder, `${files++}.db`),
    outside: ground.outside,
  })
  matrix('sqlite', makePlace)

  test('the ledgers can tell: without a lookup, a parcel on its way is sent again', async () => {
    const place: Place = { ...(await makePlace()), careless: true }
    await prepare(place)
    const point = (await learn(place, 'careless-client')).indexOf('outside.carrier') + 1
    const cells = whens.map((when): Cell => ({ name: `careless-${when}`, first: { point, when } }))
    const effects = await effectsAfter(place, cells)
    expect([...effects.values()]).toEqual(['11111', '11121'])
  })
})

needs('postgres').describe('PostgreSQL', () => {
  beforeAll(async () => void (server = await startPostgres()))
  afterAll(() => server.stop())
  matrix('postgres', async () => ({ store: await server.createDatabase(), outside: ground.outside }))
})
