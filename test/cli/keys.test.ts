// `onceonly keys` on the embedded store: what is shown, what is hidden, and that nothing is changed without being agreed to.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { describe, expect, test } from 'vitest'
import { FinalError, InDoubtError } from '../../src/core/errors.ts'
import { createOnce } from '../../src/core/once.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import { findProgram } from '../servers/find-program.ts'
import { needsTool } from '../servers/needs.ts'
import { cleanEnvironment, type Ended, makeFolder, mainFile, onceonly, type TestFolder } from './program.ts'

interface Keys extends Disposable {
  path: string
  keys(...args: string[]): Promise<Ended>
}

// settled (with a secret), failed for good, abandoned, open, running.
async function withEntries(): Promise<Keys> {
  const folder: TestFolder = makeFolder()
  const path = join(folder.path, 'a.db')
  const store = sqliteStore({ path })
  const instance = createOnce({ store, scope: 'payments', leaseMs: 1 })
  const fails = (id: string, error: Error, leaseMs: number): Promise<unknown> =>
    instance.run(id, () => Promise.reject(error), { fingerprint: 1, leaseMs }).catch(() => undefined)
  await instance.run('settled', async () => ({ card: 'wxyz', evil: '\u001b[2J' }), { fingerprint: 1, leaseMs: 60_000 })
  await fails('declined', new FinalError('card wxyz declined'), 60_000)
  await fails('abandoned', new InDoubtError('who knows'), 1)
  await fails('open', new Error('passing'), 60_000)
  await fails('running', new InDoubtError('as if it ran on'), 600_000)
  await instance.close()
  store.close()
  return {
    path,
    keys: (...args) => onceonly(['keys', ...args], { env: { ONCEONLY_STORE: `sqlite:${path}` } }),
    [Symbol.dispose]: () => folder[Symbol.dispose](),
  }
}

describe('list', () => {
  test('shows entries in order, by state, page by page, without what they hold', async () => {
    using store = await withEntries()
    const { out, code } = await store.keys('list')
    expect(code).toBe(0)
    expect(out.match(/^payments\s+\S+\s+\S+/gm)!.map((line) => line.split(/\s+/).slice(1, 3).join(' '))).toEqual([
      'abandoned abandoned',
      'declined settled',
      'open open',
      'running running',
      'settled settled',
    ])
    expect(out).not.toContain('wxyz')
    expect((await store.keys('list', '--state', 'open')).out).toMatch(/^payments +open +open/m)
    expect((await store.keys('list', '--scope', 'other')).out).toBe('No such entries.\n')
    const seen: string[] = []
    for (let after: string | null | undefined; after !== null;) {
      const page = JSON.parse(
        (await store.keys('list', '--limit', '2', '--json', ...(after === undefined ? [] : ['--after', after]))).out,
      ) as { entries: { id: string }[]; next: string | null }
      expect(page.entries.length).toBeLessThanOrEqual(2)
      seen.push(...page.entries.map(({ id }) => id))
      after = page.next
    }
    expect(seen).toEqual(['abandoned', 'declined', 'open', 'running', 'settled'])
  })
})

test('shows the keys of every tenant of a service, and whose they are', async () => {
  using folder = makeFolder()
  const path = join(folder.path, 'a.db')
  const store = sqliteStore({ path })
  const keys = [
    'gateway:shop/acme',
    'gateway:shop/z%C3%A9',
    'gateway:shop/',
    'gateway:shopping/x',
    'pay',
    'pay/acme',
    'pay.x',
  ]
  const instance = createOnce({ store, scope: 'pay', sweepEveryMs: false })
  for (const scope of keys) await instance.run({ scope, id: 'k' }, () => 1)
  await instance.close()
  store.close()
  const list = (...args: string[]): Promise<Ended> => onceonly(['keys', 'list', ...args, '--store', `sqlite:${path}`])
  const tenants = async (...args: string[]): Promise<unknown[]> => {
    const { entries } = JSON.parse((await list(...args, '--json')).out) as {
      entries: { scope: string; tenant?: string }[]
    }
    return entries.map(({ scope, tenant }) => [scope, tenant])
  }
  expect((await list('--service', 'gateway:shop')).out).toMatch(/TENANT +ID[^]*\(shared\) +k [^]* acme +k [^]* zé +k /)
  expect(await tenants('--service', 'gateway:shop')).toEqual([
    ['gateway:shop/', ''],
    ['gateway:shop/acme', 'acme'],
    ['gateway:shop/z%C3%A9', 'zé'],
  ])
  expect(await tenants('--service', 'pay')).toEqual([
    ['pay', undefined],
    ['pay/acme', 'acme'],
  ])
  const all = await tenants()
  expect(all).toContainEqual(['gateway:shopping/x', 'x'])
  expect(all).toContainEqual(['pay/acme', undefined])
  expect(await list('--service', 'pay', '--scope', 'pay')).toMatchObject({ code: 2 })
})

describe('show', () => {
  test('tells each state, and what a retry would get', async () => {
    using store = await withEntries()
    const told = async (id: string): Promise<string> => (await store.keys('show', 'payments', id)).out
    expect(await told('settled')).toMatch(/State +settled: .*\n.*\n +A retry now would +replay the stored outcome/)
    expect(await told('abandoned')).toMatch(/State +abandoned: [^]*take over as attempt 2[^]*To do +find out whether/)
    expect(await told('open')).toMatch(/State +open: [^]*run the effect as attempt 2/)
    expect(await told('running')).toMatch(/State +running: [^]*IN_FLIGHT/)
  })

  test('hides what an entry holds until it is asked to reveal it, and the terminal is safe from it', async () => {
    using store = await withEntries()
    for (const id of ['settled', 'declined']) {
      for (const form of [[], ['--json']]) {
        const hidden = await store.keys('show', 'payments', id, ...form)
        expect(hidden.out).not.toMatch(/wxyz/)
        const { out } = await store.keys('show', 'payments', id, '--reveal', ...form)
        expect(out).toContain('wxyz')
        expect(out).not.toContain('\u001b')
      }
    }
    const hint = '(--reveal shows it)'
    expect((await store.keys('show', 'payments', 'settled')).out).toContain(hint)
    expect((await store.keys('show', 'payments', 'settled', '--reveal')).out).not.toContain(hint)
    const { entry } = JSON.parse((await store.keys('show', 'payments', 'settled', '--reveal', '--json')).out) as {
      entry: object
    }
    expect(entry).toMatchObject({ state: 'settled', outcome: { card: 'wxyz', evil: '\u001b[2J' } })
  })

  test('says what to type next, and what it says can be pasted', async () => {
    using store = await withEntries()
    const { out } = await store.keys('show', 'payments', 'abandoned')
    const [, typed] = /^ +onceonly (keys resolve .*)$/m.exec(out)!
    expect(typed).toBe(`keys resolve payments abandoned --value 'JSON' --reason 'TEXT' --store sqlite:${store.path}`)
    const args = typed!.replace("'JSON'", '7').replace("'TEXT'", 'looked').split(' ')
    expect(await onceonly([...args, '--yes'])).toMatchObject({ code: 0, error: '' })
    const json = JSON.parse((await store.keys('show', 'payments', 'open', '--json')).out) as {
      entry: { attempt: unknown; next: { command: string }[] }
    }
    expect(json.entry.attempt).toBe(1)
    expect(json.entry.next[0]!.command).toMatch(/^onceonly keys resolve payments open .* --store sqlite:/)
  })

  test('ends with 3 for an entry that is not there, and says how to find the one that was meant', async () => {
    using store = await withEntries()
    const absent = await store.keys('show', 'payments', 'nobody')
    expect(absent).toMatchObject({ code: 3, error: '' })
    expect(absent.out).toBe(
      `There is no entry payments / nobody in sqlite:${store.path}.\n` +
        'If scope and id are typed as the service has them, a retry now would run the effect as new. See which keys are there:\n' +
        `  onceonly keys list --store sqlite:${store.path}\n`,
    )
    expect(await store.keys('show', 'payments', 'nobody', '--json')).toMatchObject({
      code: 3,
      out: '{\n  "entry": null,\n  "audit": []\n}\n',
    })
  })
})

test('a key of a gateway whose scope was typed without its slash is found, and told with scope and id apart', async () => {
  using folder = makeFolder()
  const url = `sqlite:${join(folder.path, 'a.db')}`
  const store = sqliteStore({ path: join(folder.path, 'a.db') })
  const instance = createOnce({ store, scope: 'x', leaseMs: 1 })
  const order = { scope: 'gateway:default/', id: 'order-43' }
  await instance.run(order, () => Promise.reject(new InDoubtError('lost')), { fingerprint: 1 }).catch(() => undefined)
  await instance.close()
  store.close()
  const absent = await onceonly(['keys', 'show', 'gateway:default', 'order-43', '--store', url])
  expect(absent).toMatchObject({ code: 3, error: '' })
  const [, typed] = /that id\. See it:\n {2}onceonly (.*)\n$/.exec(absent.out)!
  expect(typed).toBe(`keys show gateway:default/ order-43 --store ${url}`)
  expect((await onceonly(typed!.split(' '))).out).toMatch(/^gateway:default\/ \/ order-43\n/)
  const mending = [order.scope, order.id, '--reason', 'x', '--yes', '--store', url]
  expect(await onceonly(['keys', 'resolve', '--value', '1', ...mending])).toMatchObject({
    code: 2,
    error: expect.stringContaining('Give --response-file FILE') as string,
  })
  const released = await onceonly(['keys', 'release', ...mending], { env: { npm_command: 'exec' } })
  expect(released.out).toContain('\ngateway:default/ / order-43: released.')
  const shown = await onceonly(['keys', 'show', order.scope, order.id, '--store', url], {
    env: { npm_command: 'exec' },
  })
  expect(shown.out).toMatch(/^ {4}npx onceonly keys resolve gateway:default\/ order-43 --response-file FILE/m)
})

describe('release and forget', () => {
  test('say what the entry was, and are in the audit trail, which outlives the entry', async () => {
    using store = await withEntries()
    const released = await store.keys('release', 'payments', 'abandoned', '--reason', 'no such charge', '--yes')
    expect(released).toMatchObject({ code: 0, error: '' })
    expect(released.out).toContain('released. The next retry runs the effect. It was abandoned, attempt 1.')
    expect((await store.keys('show', 'payments', 'abandoned')).out).toMatch(
      /State +open[^]*release when abandoned: no such charge/,
    )
    const forgotten = await store.keys('forget', 'payments', 'abandoned', '--reason', 'ticket 7', '--yes', '--json')
    expect(JSON.parse(forgotten.out)).toMatchObject({ changed: true, reason: 'ticket 7', before: { state: 'open' } })
    const after = await store.keys('show', 'payments', 'abandoned')
    expect(after.code).toBe(3)
    expect(after.out).toMatch(/release when abandoned: no such charge\n.*forget when open: ticket 7/)
  })

  test('of what is settled or open, release changes nothing and says so', async () => {
    using store = await withEntries()
    for (const id of ['settled', 'open']) {
      const ended = await store.keys('release', 'payments', id, '--reason', 'x', '--yes')
      expect(ended).toMatchObject({ code: 1, error: expect.stringContaining('nothing was changed') as string })
    }
    expect((await store.keys('show', 'payments', 'settled')).out).not.toContain('Manual changes')
  })

  test('of what is not there end with 3', async () => {
    using store = await withEntries()
    for (const action of [['release'], ['forget'], ['resolve', '--done'], ['keep', '--for', '1d']]) {
      expect(await store.keys(...action, 'payments', 'nobody', '--reason', 'x', '--yes')).toMatchObject({
        code: 3,
        out: '',
      })
    }
  })

  test('a database that is locked by a writer is told, and nothing is changed', async () => {
    using store = await withEntries()
    const writer = new DatabaseSync(store.path)
    writer.exec('BEGIN IMMEDIATE')
    const ended = await store.keys('forget', 'payments', 'settled', '--reason', 'x', '--yes')
    writer.exec('ROLLBACK')
    writer.close()
    expect(ended).toMatchObject({ code: 1, error: expect.stringContaining('STORE_UNAVAILABLE') as string })
    expect((await store.keys('show', 'payments', 'settled')).code).toBe(0)
  })
})

test('no manual change is made where no person can be asked', async () => {
  using store = await withEntries()
  for (const action of [['release'], ['forget'], ['resolve', '--done'], ['keep', '--for', '1d']]) {
    const ended = await store.keys(...action, 'payments', 'abandoned', '--reason', 'x')
    expect(ended).toMatchObject({ code: 2, error: expect.stringContaining('give --yes') as string })
  }
  expect((await store.keys('show', 'payments', 'abandoned')).out).not.toContain('Manual changes')
})

describe('resolve', () => {
  async function replayed(path: string, id: string): Promise<unknown> {
    const store = sqliteStore({ path })
    const instance = createOnce({ store, scope: 'payments' })
    const effect = (): Promise<never> => Promise.reject(new Error('the effect ran'))
    try {
      const { value, replayed: again } = await instance.run(id, effect, { fingerprint: 1 })
      return again ? { value } : 'ran'
    } catch (error) {
      return { thrown: (error as Error).message, data: (error as FinalError).data }
    } finally {
      await instance.close()
      store.close()
    }
  }

  test('every retry gets the value, the failure or nothing, from the command line or from a file', async () => {
    using store = await withEntries()
    const file = join(store.path, '..', 'found.json')
    const because = ['--reason', 'ticket 9', '--yes']
    const told = await store.keys('resolve', 'payments', 'abandoned', '--value', '{"receipt":"r1"}', ...because)
    expect(told).toMatchObject({ code: 0, error: '' })
    expect(told.out).toContain('resolved. Every retry gets this result. It was abandoned, attempt 1.')
    expect(await replayed(store.path, 'abandoned')).toEqual({ value: { receipt: 'r1' } })
    expect((await store.keys('show', 'payments', 'abandoned')).out).toMatch(/resolve when abandoned: ticket 9/)
    writeFileSync(file, '{"message":"declined","data":{"code":7}}')
    expect(await store.keys('resolve', 'payments', 'open', '--failure-file', file, ...because)).toMatchObject({
      code: 0,
    })
    expect(await replayed(store.path, 'open')).toEqual({ thrown: 'declined', data: { code: 7 } })
    expect(await store.keys('resolve', 'payments', 'running', '--done', ...because)).toMatchObject({ code: 0 })
    expect(await replayed(store.path, 'running')).toEqual({ value: undefined })
  })

  test('what cannot be read changes nothing, and says what is expected', async () => {
    using store = await withEntries()
    const found = [
      [['--value', '{receipt}'], 2, 'expected the value to be JSON'],
      [['--value', '1', '--done'], 2, 'got 2 of them'],
      [[], 2, 'Give one of --value, --value-file, --failure'],
      [['--response-file', '/nowhere'], 2, 'the file cannot be read'],
    ] as const
    for (const [given, code, message] of found) {
      const ended = await store.keys('resolve', 'payments', 'abandoned', ...given, '--reason', 'x', '--yes')
      expect(ended).toMatchObject({ code, error: expect.stringContaining(message) as string })
    }
    const settled = await store.keys('resolve', 'payments', 'settled', '--value', '1', '--reason', 'x', '--yes')
    expect(settled).toMatchObject({ code: 1, error: expect.stringContaining('It is settled, and only') as string })
    expect((await store.keys('show', 'payments', 'abandoned')).out).toMatch(/State +abandoned/)
  })
})

describe('keep', () => {
  test('prolongs the window of a key, says until when, and never shortens it', async () => {
    using store = await withEntries()
    const expires = async (): Promise<number> => {
      const { out } = await store.keys('show', 'payments', 'settled', '--json')
      return (JSON.parse(out) as { entry: { expiresAtMs: number } }).entry.expiresAtMs
    }
    const before = await expires()
    const kept = await store.keys('keep', 'payments', 'settled', '--for', '30d', '--reason', 'slow partner', '--yes')
    expect(kept).toMatchObject({ code: 0, error: '' })
    expect(kept.out).toMatch(/payments \/ settled: kept until \S+Z \(in 30 d\S*\)/)
    const after = await expires()
    expect(after - before).toBeGreaterThan(28 * 86_400_000)
    expect(await store.keys('keep', 'payments', 'settled', '--for', '1s', '--reason', 'x', '--yes')).toMatchObject({
      code: 0,
    })
    expect(await expires()).toBe(after)
    expect((await store.keys('show', 'payments', 'settled')).out).toMatch(/keep when settled: slow partner/)
    const running = await store.keys('keep', 'payments', 'running', '--for', '1d', '--reason', 'x', '--yes')
    expect(running).toMatchObject({ code: 1, error: expect.stringContaining('It is running, and only') as string })
  })
})

// util-linux has a program that gives another one a terminal.
const script = findProgram('script')

const noTerminal = { reason: 'not found, or not on Linux', cure: 'apt-get install util-linux' }

needsTool('script', script && process.platform === 'linux' ? undefined : noTerminal).describe('at a terminal', () => {
  const atTerminal = async (path: string, typed: string): Promise<string> => {
    const forget = ['keys', 'forget', 'payments', 'settled', '--reason', 'x', '--store', `sqlite:${path}`]
    const command = [process.execPath, mainFile, ...forget].map((word) => `'${word}'`).join(' ')
    const child = spawn(script!, ['-qec', command, '/dev/null'], { env: cleanEnvironment({ TERM: 'xterm' }) })
    let out = ''
    child.stdout.on('data', (chunk: Buffer) => {
      const asked = out.includes('Type yes:')
      out += chunk.toString()
      if (!asked && out.includes('Type yes:')) child.stdin.write(typed)
    })
    await once(child, 'close')
    return out
  }

  test('a change is asked about, made on yes, and left on anything else', async () => {
    using store = await withEntries()
    const no = await atTerminal(store.path, 'no\n')
    expect(no).toContain('Its effect has happened, and would happen again. The entry is deleted')
    expect(no).toContain('forget it? Type yes:')
    expect(no).toContain('Not agreed; nothing was changed.')
    expect(no).toContain('\u001b[1mpayments / settled')
    // The terminal that script gives has 0 columns.
    expect(no).toMatch(/ settled: the effect is done/)
    expect((await store.keys('show', 'payments', 'settled')).code).toBe(0)
    expect(await atTerminal(store.path, 'yes\n')).toContain('forgotten. The key is new again.')
    expect((await store.keys('show', 'payments', 'settled')).code).toBe(3)
  })

  test('the end of the input, or Ctrl-C, is no', async () => {
    using store = await withEntries()
    for (const typed of ['\u0004', '\u0003']) {
      expect(await atTerminal(store.path, typed)).toContain('Not agreed; nothing was changed.')
    }
    expect((await store.keys('show', 'payments', 'settled')).code).toBe(0)
  })
})
