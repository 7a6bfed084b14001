// Several processes on one SQLite file, and processes that are killed: what was committed is there, what was not is not, and
// no process blocks while it waits for another one's lock.

import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { DatabaseSync } from 'node:sqlite'
import { setTimeout } from 'node:timers/promises'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { systemClock } from '../../core/clock.ts'
import { key } from '../../core/key.ts'
import { bytesOf, finish, request, retention, take, times } from '../../testing/store-contract.ts'
import { sqliteStore } from '../sqlite.ts'

let file: string
const started = new Set<ChildProcess>()

beforeEach(() => {
  file = join(mkdtempSync(join(tmpdir(), 'onceonly-sqlite-')), 'test.db')
})

afterEach(() => {
  for (const child of started) child.kill('SIGKILL')
  started.clear()
  rmSync(join(file, '..'), { recursive: true })
})

interface Child {
  /** What it printed next. */
  line(): Promise<string>
  say(line: string): void
  kill(): Promise<void>
}

/** Another process, running this code with `file`, `store()`, `request`, `retention`, `key`, `heard` (a line) and `tell`. */
function start(code: string): Child {
  const url = (path: string): string => JSON.stringify(new URL(path, import.meta.url).href)
  const preamble = `
    import { createInterface } from 'node:readline'
    import { DatabaseSync } from 'node:sqlite'
    import { sqliteStore } from ${url('../sqlite.ts')}
    import { key } from ${url('../../core/key.ts')}
    import { bytesOf, request, retention, take } from ${url('../../testing/store-contract.ts')}
    const file = process.argv[1]
    const store = () => sqliteStore({ path: file })
    const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
    const heard = async () => (await lines.next()).value
    const tell = (line) => process.stdout.write(line + '\\n')
  `
  const child = spawn(process.execPath, ['--input-type=module', '-e', preamble + code, file], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  started.add(child)
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  return {
    line: async () => String((await lines.next()).value),
    say: (line) => void child.stdin.write(`${line}\n`),
    async kill() {
      child.kill('SIGKILL')
      await new Promise((resolve) => child.once('exit', resolve))
    },
  }
}

test('of 1,000 claims of one key by two processes at once, one is granted', async () => {
  const code = `
    const opened = store()
    tell('ready')
    await heard()
    const verdicts = await Promise.all(Array.from({ length: 500 }, () => opened.claim(key('shared', 'one'), request())))
    tell(JSON.stringify(verdicts.map((verdict) => verdict.is)))
  `
  const children = [start(code), start(code)]
  for (const child of children) expect(await child.line()).toBe('ready')
  for (const child of children) child.say('go')
  const answers = await Promise.all(children.map(async (child) => JSON.parse(await child.line()) as string[]))
  expect(answers.flat().filter((is) => is === 'granted')).toHaveLength(1)
  expect(answers.flat().filter((is) => is === 'busy')).toHaveLength(999)
})

test('two processes that race for a hundred keys, one commit after the other, never both get one', async () => {
  const code = `
    const opened = store()
    tell('ready')
    await heard()
    const granted = []
    for (let index = 0; index < 100; index++) {
      const verdict = await opened.claim(key('raced', String(index)), request())
      if (verdict.is !== 'granted') continue
      granted.push(index)
      await opened.settle(verdict.claim, bytesOf(String(process.pid)), retention)
    }
    tell(JSON.stringify(granted))
  `
  const children = [start(code), start(code)]
  for (const child of children) expect(await child.line()).toBe('ready')
  for (const child of children) child.say('go')
  const granted = await Promise.all(children.map(async (child) => JSON.parse(await child.line()) as number[]))
  expect(granted.flat().sort((a, b) => a - b)).toEqual(times(100))
})

test('four processes that open a new file at once make one schema, and all of them work', async () => {
  const code = `
    tell('ready')
    await heard()
    const opened = store()
    const claim = await take(opened, key('opened', String(process.pid)))
    tell(await opened.settle(claim, bytesOf('works'), retention))
  `
  const children = times(4).map(() => start(code))
  for (const child of children) expect(await child.line()).toBe('ready')
  for (const child of children) child.say('go')
  for (const child of children) expect(await child.line()).toBe('done')
  const store = sqliteStore({ path: file })
  expect(await store.list({ state: 'settled', limit: 10 })).toHaveLength(4)
  store.close()
})

test('the event loop goes on while another process has the lock, and the claim is granted when it is given back', async () => {
  const store = sqliteStore({ path: file, lockWaitMs: 60_000 })
  const child = start(`
    const database = new DatabaseSync(file)
    database.exec('BEGIN IMMEDIATE')
    tell('locked')
    await heard()
    database.exec('ROLLBACK')
  `)
  expect(await child.line()).toBe('locked')
  let granted = false
  const claim = take(store, key('locked', 'out')).then(() => (granted = true))
  // The child gives the lock back only after these: a wait inside SQLite would never let us get there.
  for (let tick = 0; tick < 50; tick++) await setTimeout(1)
  expect(granted).toBe(false)
  child.say('give it back')
  await claim
  store.close()
})

const effects = `database.exec('CREATE TABLE IF NOT EXISTS effects (name TEXT)')`

function countEffects(): number {
  const database = new DatabaseSync(file)
  const { count } = database.prepare('SELECT count(*) AS count FROM effects').get() as { count: number }
  database.close()
  return count
}

test('a process killed between effect and commit leaves neither, and the key is free at once', async () => {
  const child = start(`
    const database = new DatabaseSync(file)
    ${effects}
    const began = await store().begin(key('killed', 'before'), request())
    began.granted.tx.exec("INSERT INTO effects VALUES ('effect')")
    tell('effect written')
    await heard()
  `)
  expect(await child.line()).toBe('effect written')
  await child.kill()
  expect(countEffects()).toBe(0)
  const store = sqliteStore({ path: file })
  expect(await store.claim(key('killed', 'before'), request())).toMatchObject({ is: 'granted', how: 'fresh' })
  store.close()
})

test('a process killed right after the commit leaves both effect and outcome', async () => {
  const child = start(`
    const database = new DatabaseSync(file)
    ${effects}
    const began = await store().begin(key('killed', 'after'), request())
    began.granted.tx.exec("INSERT INTO effects VALUES ('effect')")
    tell(await began.granted.commit(bytesOf('answer'), retention))
    await heard()
  `)
  expect(await child.line()).toBe('done')
  await child.kill()
  expect(countEffects()).toBe(1)
  const store = sqliteStore({ path: file })
  expect(await store.claim(key('killed', 'after'), request())).toEqual({
    is: 'settled',
    outcome: bytesOf('answer'),
    version: 1,
    attempt: 1,
  })
  store.close()
})

test('what a killed process claimed is busy until its lease ends, and what it settled is replayed', async () => {
  const child = start(`
    const opened = store()
    const settled = await take(opened, key('killed', 'settled'))
    await opened.settle(settled, bytesOf('answer'), retention)
    await take(opened, key('killed', 'running'), { leaseMs: 60_000 })
    tell('both')
    await heard()
  `)
  expect(await child.line()).toBe('both')
  await child.kill()
  let skipMs = 0
  const store = sqliteStore({ path: file, clock: { ...systemClock, elapsed: () => systemClock.elapsed() + skipMs } })
  expect(await store.claim(key('killed', 'settled'), request())).toMatchObject({ is: 'settled' })
  expect(await store.claim(key('killed', 'running'), request())).toMatchObject({ is: 'busy' })
  skipMs = 60_000
  expect(await store.claim(key('killed', 'running'), request())).toMatchObject({ is: 'granted', how: 'taken-over' })
  store.close()
})

test('a transaction held open by another process keeps no replay waiting', async () => {
  const store = sqliteStore({ path: file })
  await finish(store, key('replayed', 'meanwhile'), bytesOf('answer'))
  const child = start(`
    await store().begin(key('held', 'open'), request())
    tell('open')
    await heard()
  `)
  expect(await child.line()).toBe('open')
  expect(await store.claim(key('replayed', 'meanwhile'), request())).toMatchObject({ is: 'settled' })
  await child.kill()
  expect(await store.settle(await take(store, key('held', 'open')), bytesOf('mine'), retention)).toBe('done')
  store.close()
})
