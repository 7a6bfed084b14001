// What docs/operating.md says of the command line can be typed as it stands there.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { expect, test } from 'vitest'
import { InDoubtError } from '../../src/core/errors.ts'
import { createOnce } from '../../src/core/once.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import { mainFile, makeFolder, run } from '../cli/program.ts'
import { root, take } from './blocks.ts'
import { openPrograms } from './programs.ts'

test('every command of "The command line" and "doctor" runs, in order', async () => {
  const page = readFileSync(join(root, 'docs', 'operating.md'), 'utf8')
  const sections = page.split(/^## /m).filter((each) => /^(The command line|doctor)\n/.test(each))
  const lines = sections.flatMap((each) => Array.from(each.matchAll(/^```sh\n(.*?)^```$/gms), (match) => match[1]!))
  expect(lines.join('').match(/^onceonly /gm)!.length).toBeGreaterThanOrEqual(7)
  using folder = makeFolder()
  mkdirSync(join(folder.path, 'bin'))
  await leaveInDoubt(`${folder.path}/app.db`)
  const [, response] = /^```http\n(.*?)\n```$/ms.exec(page)!
  writeFileSync(join(folder.path, 'answer.http'), response!)
  // As npm would link it, and as a person who says yes. A command that was asked wrongly (2) is what the page must not have.
  const link = `#!/bin/sh\ncase $2 in resolve|release|keep|forget) yes=--yes;; esac\n'${process.execPath}' '${mainFile}' "$@" $yes\ncode=$?\n[ $code = 2 ] && echo "asked wrongly: $*" >&2\nexit $code\n`
  writeFileSync(join(folder.path, 'bin', 'onceonly'), link, { mode: 0o755 })
  const path = [join(folder.path, 'bin'), process.env['PATH']].join(delimiter)
  const ended = await run('sh', ['-c', lines.join('\n')], { cwd: folder.path, env: { PATH: path } })
  expect(ended.error).toBe('')
  expect(ended.out).toContain('The schema is in place: sqlite:app.db')
  expect(ended.out).toMatch(
    /payments \/ order-42\n +State +abandoned[^]*onceonly keys resolve payments order-42 --value/,
  )
  expect(ended.out.match(/^\S+ \/ \S+: (resolved|released|kept) ?\S*/gm)).toEqual([
    'payments / order-42: resolved.',
    'payments / order-43: resolved.',
    'gateway:default/acme / order-44: resolved.',
    'payments / order-45: released.',
    'payments / order-46: kept until',
  ])
  expect(ended.out).toMatch(/^ok +sqlite-journal +wal$/m)
})

/** The keys that the page speaks of: their attempts began and never reported. */
async function leaveInDoubt(path: string): Promise<void> {
  const store = sqliteStore({ path })
  for (const [scope, ids] of [
    ['payments', ['order-42', 'order-43', 'order-45', 'order-46']],
    ['gateway:default/acme', ['order-44']],
  ] as const) {
    const once = createOnce({ store, scope, leaseMs: 1 })
    for (const id of ids) {
      await once.run(id, () => Promise.reject(new InDoubtError('no answer'))).catch(() => undefined)
    }
    await once.close()
  }
  store.close()
}

const [reconciling] = take('docs/operating.md', (code) => code.includes('reconcileKeys'))
const [subscribing] = take('docs/events.md')

test('the program that reconciles keys resolves those of its scope that are in doubt', async () => {
  using programs = openPrograms()
  await leaveInDoubt(join(programs.folder, 'app.db'))
  const found = `async function findCharge(id: string, _tenant?: string) { return { receipt: id } }`
  const said = await programs.run('reconcile', reconciling!.code.replace(/^declare function findCharge.*$/m, found))
  expect(said).toMatch(/resolved: 4,\s+released: 0,/)
})

test('the program of docs/events.md hears of a store that failed', async () => {
  using programs = openPrograms()
  const fails = `
import { createOnce } from 'onceonly'
const fail = () => Promise.reject(new Error('no route'))
const store = { name: 'broken', claim: fail, extend: fail, settle: fail, release: fail }
await createOnce({ store, scope: 'shop' }).run('order-1', () => 1).catch(() => {})`
  await expect(programs.run('events', `${subscribing!.code}${fails}`)).rejects.toThrow(/the store failed claim/)
})
