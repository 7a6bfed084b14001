// Finding the command, help, versions, exit codes, and what is said when something is missing.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { createOnce } from '../../src/core/once.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import { cleanEnvironment, mainFile, makeFolder, onceonly, run } from './program.ts'

const root = join(import.meta.dirname, '..', '..')

test('the version is that of the package', async () => {
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string }
  expect(await onceonly(['--version'])).toEqual({ code: 0, out: `${version}\n`, error: '' })
})

test('help lists the commands, and is what a bare call ends with, as a mistake', async () => {
  const { code, out } = await onceonly(['--help'])
  expect(code).toBe(0)
  for (const name of [
    'gateway',
    'demo',
    'keys',
    'inbox',
    'outbox',
    'webhooks',
    'sessions',
    'sweep',
    'migrate',
    'quarantine',
    'doctor',
  ])
    expect(out).toContain(`  ${name} `)
  expect(await onceonly([])).toMatchObject({ code: 2, out })
})

test.each([
  ['keys'],
  ['keys list'],
  ['keys show'],
  ['keys release'],
  ['keys forget'],
  ['inbox'],
  ['inbox list'],
  ['outbox'],
  ['outbox status'],
  ['webhooks'],
  ['webhooks list'],
  ['sessions'],
  ['sessions list'],
  ['sweep'],
  ['migrate'],
  ['quarantine'],
  ['doctor'],
])('%s --help has its usage and an example, and needs no store', async (command) => {
  const { code, out, error } = await onceonly([...command.split(' '), '--help'])
  expect([code, error]).toEqual([0, ''])
  expect(out).toContain(`Usage: onceonly ${command}`)
  expect(out).toContain('Example')
  expect(out).toContain(`Example`)
})

describe('asked wrongly: exit code 2, one line, nothing on the output', () => {
  test.each<[args: string[], said: string]>([
    [
      ['dcotor'],
      'unknown command "dcotor", expected "gateway" or "demo" or "keys" or "operations" or "inbox" or "outbox" or "webhooks" or "sessions" or "sweep" or "migrate" or "quarantine" or "doctor"',
    ],
    [['dcotor'], 'did you mean "doctor"?'],
    [['constructor'], 'unknown command "constructor"'],
    [['keys', 'shwo'], 'did you mean "show"?'],
    [['sweep', '--limt', '5'], 'onceonly sweep: unknown option "--limt", did you mean "--limit"?'],
    [['sweep', '--limit', '0', '--store', 'memory:'], 'expected --limit to be a positive integer, got "0"'],
    [['sweep'], 'which store? Give --store URL'],
    [['sweep', '--store', 'nosql://me:secret@x'], 'expected a store to be sqlite:FILE'],
    [['sweep', '--store', 'sqlite:/nowhere/x.db'], 'there is no file /nowhere/x.db'],
    [['keys', 'show', 'payments'], 'ID is missing'],
    [['keys', 'show', 'payments', 'a\nb', '--store', 'memory:'], 'no control characters'],
    [['keys', 'forget', 'payments', '1', '--store', 'memory:'], 'why? Give --reason TEXT'],
    [['sessions', 'close', 'tills/sessions', 'till-7', '--store', 'memory:'], 'why? Give --reason TEXT'],
    [['sessions', 'list', '--after', 'x', '--store', 'memory:'], 'the cursor that the last page ended with'],
    [['keys', 'forget', 'payments', '1', '--reason', 'x', '--store', 'memory:'], 'give --yes'],
    [['quarantine', '--end', '--store', 'memory:'], '--end needs --reason TEXT: why is it safe to let new keys in?'],
    [['inbox', 'redrive', '--store', 'memory:'], 'which? Give --scope, --id or --code, or --all'],
    [['outbox', 'redrive', '--store', 'memory:'], 'which? Give --id, --topic, --key, --type or --state, or --all'],
    [['inbox', 'redrive', '--all', '--store', 'memory:'], 'why? Give --reason TEXT'],
    [['outbox', 'discard', '--all', '--store', 'memory:'], 'why? Give --reason TEXT'],
    [
      ['outbox', 'list', '--state', 'deda', '--store', 'memory:'],
      'expected --state to be "waiting" or "parked" or "dead", got "deda"',
    ],
    [['keys', 'list', '--after', 'nonsense', '--store', 'memory:'], 'expected --after to be the cursor'],
  ])('%j', async (args, said) => {
    const ended = await onceonly(args)
    expect(ended).toMatchObject({ code: 2, out: '' })
    expect(ended.error).toContain(said)
    expect(ended.error.trimEnd().split('\n')).toHaveLength(1)
    expect(ended.error).not.toContain('secret')
  })
})

describe('a store that cannot be had: exit code 1 and why, without the password', () => {
  test.each<[url: string, said: RegExp]>([
    ['postgres://me:secret@127.0.0.1:1/app', /STORE_UNAVAILABLE: .*ECONNREFUSED/],
    [
      'redis://:secret@127.0.0.1:1',
      /STORE_UNAVAILABLE: Redis at redis:\/\/127.0.0.1:1 cannot be reached: .*ECONNREFUSED/,
    ],
    ['mysql://me:secret@127.0.0.1:1/app', /STORE_UNAVAILABLE: .*ECONNREFUSED/],
    ['mongodb://me:secret@127.0.0.1:1/app', /STORE_UNAVAILABLE: /],
    ['dynamodb:app?region=local&endpoint=http://127.0.0.1:1', /STORE_UNAVAILABLE: /],
  ])('%s', async (url, said) => {
    for (const command of [['keys', 'list'], ['doctor']]) {
      const ended = await onceonly(command, { env: { ONCEONLY_STORE: url } })
      expect(ended).toMatchObject({ code: 1, out: '' })
      expect(ended.error).toMatch(said)
      expect(ended.error).not.toMatch(/secret|Bug!/)
    }
  })

  test('a cache that is down is told, too, and the command ends', async () => {
    const file = join(root, 'src', 'cli', 'open-store.ts')
    const script = `
      const { openStore } = await import(${JSON.stringify(file)})
      await openStore('postgres://127.0.0.1:1/app', { cache: 'redis://:secret@127.0.0.1:1' }).catch((error) => console.log(error.message))`
    const ended = await run(process.execPath, ['--input-type=module', '-e', script], {})
    expect(ended).toMatchObject({
      code: 0,
      out: expect.stringMatching(/^Redis at redis:\/\/127.0.0.1:1 cannot be reached/) as string,
    })
  })
})

// The sources without any package beside them, as after `npm install -g onceonly` and nothing else.
test('a missing driver is told with its cure; one in the folder of the caller is found', async () => {
  using folder = makeFolder()
  const [bare, project] = [join(folder.path, 'bare'), join(folder.path, 'project')]
  cpSync(join(root, 'src'), join(bare, 'src'), { recursive: true })
  cpSync(join(root, 'package.json'), join(bare, 'package.json'))
  const ask = (cwd: string, url: string): ReturnType<typeof run> =>
    run(process.execPath, [join(bare, 'src', 'cli', 'main.ts'), 'keys', 'list', '--store', url], { cwd })
  mkdirSync(join(project, 'node_modules'), { recursive: true })
  for (const [url, name] of [
    ['postgres://127.0.0.1:1/x', 'pg'],
    ['redis://127.0.0.1:1', 'redis'],
    ['mysql://127.0.0.1:1/x', 'mysql2'],
    ['mongodb://127.0.0.1:1/x', 'mongodb'],
    ['dynamodb:app', '@aws-sdk/client-dynamodb'],
  ] as const) {
    const ended = await ask(project, url)
    const said = `onceonly: UNSUPPORTED: This store needs the driver "${name}", which is not installed here: npm install ${name}\n`
    expect(ended).toEqual({ code: 1, out: '', error: said })
  }
  writeFileSync(join(project, 'package.json'), '{}')
  symlinkSync(join(root, 'node_modules', 'pg'), join(project, 'node_modules', 'pg'))
  expect((await ask(project, 'postgres://127.0.0.1:1/x')).error).toContain('ECONNREFUSED')
  symlinkSync(join(root, 'node_modules', 'mysql2'), join(project, 'node_modules', 'mysql2'))
  expect((await ask(project, 'mysql://127.0.0.1:1/x')).error).toContain('ECONNREFUSED')
})

async function fill(path: string, count: number): Promise<void> {
  const store = sqliteStore({ path, durability: 'relaxed' })
  const instance = createOnce({ store, scope: 'payments' })
  await Promise.all(
    Array.from({ length: count }, (_, index) => instance.run(`order-${index}`, async () => 1, { fingerprint: 1 })),
  )
  await instance.close()
  store.close()
}

describe('output', () => {
  test('is coloured only when it is asked for, and never with NO_COLOR', async () => {
    using folder = makeFolder()
    const path = join(folder.path, 'a.db')
    await fill(path, 1)
    const list = (env: Record<string, string>): ReturnType<typeof run> =>
      onceonly(['keys', 'list', '--store', `sqlite:${path}`], { env })
    expect((await list({})).out).not.toContain('\u001b')
    expect((await list({ FORCE_COLOR: '1' })).out).toContain('\u001b[')
    expect((await list({ NO_COLOR: '1' })).out).not.toContain('\u001b')
  })

  test('that nobody reads any more is an end, not a failure', async () => {
    using folder = makeFolder()
    const path = join(folder.path, 'a.db')
    await fill(path, 2_000)
    const args = [mainFile, 'keys', 'list', '--limit', '2000', '--store', `sqlite:${path}`]
    const child = spawn(process.execPath, args, { env: cleanEnvironment({}), stdio: ['ignore', 'pipe', 'pipe'] })
    child.stdout.destroy()
    let said = ''
    child.stderr.on('data', (chunk: Buffer) => (said += chunk.toString()))
    const [code] = await once(child, 'close')
    expect({ code: code as number, said }).toEqual({ code: 0, said: '' })
  })
})

test('a demo whose port is taken says so and ends, whichever of its ports it is', async () => {
  const taken = createServer()
  await new Promise<void>((resolve) => taken.listen(0, '127.0.0.1', resolve))
  const { port } = taken.address() as AddressInfo
  try {
    for (const which of ['--port', '--admin-port', '--service-port', '--page-port']) {
      const { code, error } = await onceonly(['demo', which, String(port)])
      expect([which, code, error]).toEqual([
        which,
        1,
        `onceonly: cannot listen on 127.0.0.1:${port}: another program has it. End that one, or give another port (0 is any free one) (EADDRINUSE).\n`,
      ])
    }
  } finally {
    await new Promise((resolve) => taken.close(resolve))
  }
})
