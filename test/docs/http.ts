// docs/http.md is true: its programs run as they are written, and its tables list every option and every answer.

import { spawn, spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync } from 'node:fs'
import { createServer } from 'node:net'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { httpOptionRows, withBlock } from '../../scripts/docs.ts'
import { problemKinds } from '../../src/http/exchange.ts'
import { root, take } from './blocks.ts'
import { openPrograms } from './programs.ts'

const text = readFileSync(join(root, 'docs/http.md'), 'utf8')
const programs = openPrograms()
let written = 0
afterAll(() => programs[Symbol.dispose]())

/** The program under each heading of a framework. */
function snippets(): { readonly heading: string; readonly code: string }[] {
  return text
    .split(/^### /m)
    .slice(1)
    .flatMap((section) => {
      const code = /```ts\n([^]*?)```/.exec(section)?.[1]
      return code ? [{ heading: section.split('\n', 1)[0]!, code }] : []
    })
}

/** Decorators are compiled, as Node knows none. */
function programOf(code: string): string {
  const source = programs.write(`program-${++written}`, code)
  if (!/^@\w/m.test(code)) return source
  const flags = ['--target', 'es2024', '--module', 'nodenext', '--experimentalDecorators', '--emitDecoratorMetadata']
  spawnSync(join(root, 'node_modules/.bin/tsc'), ['--ignoreConfig', ...flags, '--noCheck', source], {
    cwd: programs.folder,
  })
  return source.replace(/\.ts$/, '.js')
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await new Promise((resolve) => server.on('listening', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  return port
}

async function run<T>(code: string, use: (url: string) => Promise<T>): Promise<T> {
  const program = programOf(code)
  const port = await freePort()
  const env = { ...process.env, PORT: String(port), NODE_OPTIONS: '', NODE_NO_WARNINGS: '1' }
  const child = spawn(process.execPath, [program], { cwd: mkdtempSync(join(programs.folder, 'of-')), env })
  let said = ''
  child.stderr.on('data', (chunk: Buffer) => (said += chunk.toString()))
  const ended = new Promise<void>((resolve) => child.on('exit', () => resolve()))
  const url = `http://localhost:${port}`
  try {
    await expect
      .poll(
        () =>
          child.exitCode === null
            ? fetch(url).then(
                () => 'up',
                () => 'down',
              )
            : `it ended: ${said}`,
        { timeout: 30_000 },
      )
      .toBe('up')
    return await use(url)
  } finally {
    child.kill()
    await ended
  }
}

take('docs/http.md')

describe.each(snippets())('$heading', ({ code }) => {
  test('the example runs a request once, for each account', async () => {
    await run(code, async (url) => {
      const post = (account: string | undefined, amount = 5): Promise<Response> =>
        fetch(`${url}/orders`, {
          method: 'POST',
          headers: {
            'Content-Type': 'application/json',
            'Idempotency-Key': 'k',
            ...(account && { Authorization: `Bearer ${account}` }),
          },
          body: JSON.stringify({ amount }),
        })
      const first = await post('acme')
      const answer = await first.text()
      expect([first.status, first.headers.get('idempotency-window')]).toEqual([201, '86400'])
      expect(JSON.parse(answer)).toMatchObject({ amount: 5, charge: expect.stringMatching(/^[0-9a-f-]{36}$/) })
      const again = await post('acme')
      expect([again.status, again.headers.get('idempotent-replayed'), await again.text()]).toEqual([
        201,
        'true',
        answer,
      ])
      expect((await post('acme', 6)).status).toBe(422)
      expect(await (await post('other')).text()).not.toBe(answer)
      expect([401, 403]).toContain((await post(undefined)).status)
    })
  })
})

test('the program with a typed tx runs as written', async () => {
  const [block] = take('docs/http.md', (code) => code.includes('keyed.of(req)'))
  expect(await programs.run('typed-tx', block!.code)).toBe('')
})

test('there is an example for every adapter', () => {
  const adapters = ['express', 'fastify', 'fetch', 'hono', 'koa', 'nest', 'node']
  const imported = snippets().map(({ code }) => /'onceonly\/(?!sqlite)([a-z]+)'/.exec(code)?.[1])
  expect(new Set(imported)).toEqual(new Set(adapters))
})

test('every answer of our own is listed with its status, and no other', () => {
  const listed = [...text.matchAll(/^\| (\d{3}) \| `(idempotency-[a-z-]+)` \|/gm)].map(
    ([, status, code]) => `${status} ${code}`,
  )
  const kinds = Object.values(problemKinds).map(({ status, code }) => `${status} ${code}`)
  expect(listed.sort()).toEqual(kinds.sort())
})

test('every option is listed as its table has it, and no other', () => {
  expect(withBlock(text, 'options', httpOptionRows())).toBe(text)
  const listed = [...httpOptionRows().matchAll(/^\| `(\w+)` \|/gm)].map(([, name]) => name!)
  const source = readFileSync(join(root, 'src/http/exchange/options.ts'), 'utf8')
  const declared = /export interface HttpOptions[^]*?\n}/.exec(source)![0].match(/readonly (\w+)\??:/g)!
  expect(listed.toSorted()).toEqual(declared.map((each) => /readonly (\w+)/.exec(each)![1]!).sort())
})
