// examples/welcome-mail.ts against a mail server that loses its answers: what is promised with keys, and what without.
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, afterEach, describe, expect, test } from 'vitest'
import { root } from '../docs/blocks.ts'
import { openPrograms } from '../docs/programs.ts'

const programs = openPrograms()
const example = readFileSync(join(root, 'examples', 'welcome-mail.ts'), 'utf8')
let server: ChildProcess | undefined
let files = 0
afterAll(() => programs[Symbol.dispose]())
afterEach(async () => {
  if (!server) return
  const ended = once(server, 'exit')
  server.disconnect()
  await ended
  server = undefined
})

// A busy machine must not look like a mail server that hangs; one that does hang costs this long.
const patientMs = 60_000
const hangMs = 3_000

interface World {
  welcome(policy: 'run' | 'refuse', mailTimeoutMs?: number): Promise<Record<string, unknown>>
  mails(): Promise<number>
}

async function world(keys: 'keys' | 'no keys', ...faults: string[]): Promise<World> {
  server = fork(join(import.meta.dirname, 'mail-server.ts'), [keys, ...faults])
  const [port] = (await once(server, 'message')) as [number]
  const url = `http://127.0.0.1:${port}/mails`
  const file = join(programs.folder, `welcome-${files++}.db`)
  return {
    async welcome(policy, mailTimeoutMs = patientMs) {
      const name = `welcome-mail-${files++}`
      const env = { MAIL_URL: url, MAIL_TIMEOUT_MS: String(mailTimeoutMs) }
      const said = await programs.run(name, example, [file, 'ada@example.org', policy], env)
      return JSON.parse(said) as Record<string, unknown>
    },
    mails: async () => ((await (await fetch(url)).json()) as unknown[]).length,
  }
}

describe('a mail server that knows keys', () => {
  test.each(['cut', 'take and hang', 'hang'])('"%s": told that nobody knows; asked again, one mail', async (fault) => {
    const { welcome, mails } = await world('keys', fault)
    expect(await welcome('run', hangMs)).toEqual({ signedUp: 'applied', told: 'InDoubtError' })
    expect(await mails()).toBe(fault === 'hang' ? 0 : 1)
    expect(await welcome('run')).toMatchObject({ signedUp: 'already', replayed: false })
    expect(await welcome('run')).toMatchObject({ signedUp: 'already', replayed: true })
    expect(await mails()).toBe(1)
  })

  test('it refuses: nothing is in doubt, and the next attempt need not wait', async () => {
    const { welcome, mails } = await world('keys', 'refuse')
    expect(await welcome('run')).toEqual({ signedUp: 'applied', told: 'Error' })
    expect(await welcome('run')).toMatchObject({ replayed: false })
    expect(await mails()).toBe(1)
  })

  test('five processes at once: one mail, and the same answer for all', async () => {
    const { welcome, mails } = await world('keys')
    const answers = await Promise.all(Array.from({ length: 5 }, () => welcome('run')))
    expect(new Set(answers.map(({ messageId }) => messageId)).size).toBe(1)
    expect(answers.filter(({ replayed }) => replayed === false)).toHaveLength(1)
    expect(answers.filter(({ signedUp }) => signedUp === 'applied')).toHaveLength(1)
    expect(await mails()).toBe(1)
  })
})

describe('a mail server that knows no keys', () => {
  test.each(['cut', 'hang'])(
    '"%s", and told to refuse: at most one mail, and it is said to be in doubt',
    async (fault) => {
      const { welcome, mails } = await world('no keys', fault)
      expect(await welcome('refuse', hangMs)).toMatchObject({ told: 'InDoubtError' })
      expect(await welcome('refuse')).toMatchObject({ told: 'IN_DOUBT' })
      expect(await mails()).toBe(fault === 'hang' ? 0 : 1)
    },
  )

  test('told to rerun: at least one mail, and here two, which is why there is a choice', async () => {
    const { welcome, mails } = await world('no keys', 'cut')
    expect(await welcome('run')).toMatchObject({ told: 'InDoubtError' })
    expect(await welcome('run')).toMatchObject({ replayed: false })
    expect(await mails()).toBe(2)
  })
})
