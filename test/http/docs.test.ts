// docs/http.md is true: its programs run as they are written, and its tables list every option and every answer.

import { spawn, spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { afterAll, describe, expect, test } from 'vitest'
import { httpOptionRows, withBlock } from '../../scripts/docs.ts'
import { problemKinds } from '../../src/http/exchange.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const text = readFileSync(join(root, 'docs/http.md'), 'utf8')
const folders: string[] = []
afterAll(() => {
  for (const folder of folders) rmSync(folder, { recursive: true, force: true })
})

interface Snippet {
  readonly heading: string
  readonly language: string
  readonly code: string
}

function snippets(): Snippet[] {
  return text
    .split(/^### /m)
    .slice(1)
    .flatMap((section) => {
      const found = /```(js|ts)\n([^]*?)```/.exec(section)
      return found ? [{ heading: section.split('\n', 1)[0]!, language: found[1]!, code: found[2]! }] : []
    })
}

/** Where the package's subpaths are before it is built. */
function sourceOf(subpath: string): string {
  const name = subpath.slice('onceonly'.length + 1)
  const path =
    name === '' ? 'src/index.ts' : ['sqlite', 'memory'].includes(name) ? `src/stores/${name}.ts` : `src/http/${name}.ts`
  return pathToFileURL(join(root, path)).href
}

/** A program in a folder of its own, from which the frameworks can be found. Decorators are compiled, as Node knows none. */
function programOf({ language, code }: Snippet): string {
  mkdirSync(join(root, 'node_modules'), { recursive: true })
  const folder = mkdtempSync(join(root, 'node_modules', '.onceonly-docs-'))
  folders.push(folder)
  const linked = code.replace(/'(onceonly(?:\/[a-z]+)?)'/g, (_, subpath: string) => `'${sourceOf(subpath)}'`)
  const program = join(folder, 'program.mjs')
  if (language === 'js') writeFileSync(program, linked)
  else {
    const source = join(folder, 'program.mts')
    writeFileSync(source, linked)
    const flags = [
      '--target',
      'es2024',
      '--module',
      'nodenext',
      '--experimentalDecorators',
      '--emitDecoratorMetadata',
      '--noCheck',
    ]
    spawnSync(join(root, 'node_modules/.bin/tsc'), ['--ignoreConfig', ...flags, source], { cwd: folder })
  }
  return program
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await new Promise((resolve) => server.on('listening', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  return port
}

async function run<T>(snippet: Snippet, use: (url: string) => Promise<T>): Promise<T> {
  const program = programOf(snippet)
  const port = await freePort()
  const env = { ...process.env, PORT: String(port), NODE_OPTIONS: '', NODE_NO_WARNINGS: '1' }
  const child = spawn(process.execPath, [program], { cwd: join(program, '..'), env })
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

describe.each(snippets().map((snippet) => [snippet.heading, snippet] as const))('%s', (_, snippet) => {
  test('the example runs a request once, for each account', async () => {
    await run(snippet, async (url) => {
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
