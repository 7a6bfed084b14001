// What docs/operating.md says of the command line can be typed as it stands there.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { expect, test } from 'vitest'
import { mainFile, makeFolder, run } from './program.ts'

const root = join(import.meta.dirname, '..', '..')

test('every command of "The command line" and "doctor" runs, in order', async () => {
  const page = readFileSync(join(root, 'docs', 'operating.md'), 'utf8')
  const sections = page.split(/^## /m).filter((each) => /^(The command line|doctor)\n/.test(each))
  const lines = sections.flatMap((each) => Array.from(each.matchAll(/^```sh\n(.*?)^```$/gms), (match) => match[1]!))
  expect(lines.join('').match(/^onceonly /gm)!.length).toBeGreaterThanOrEqual(7)
  using folder = makeFolder()
  mkdirSync(join(folder.path, 'bin'))
  // As npm would link it. A command that was asked wrongly (2) is what the page must not have.
  const link = `#!/bin/sh\n'${process.execPath}' '${mainFile}' "$@"\ncode=$?\n[ $code = 2 ] && echo "asked wrongly: $*" >&2\nexit $code\n`
  writeFileSync(join(folder.path, 'bin', 'onceonly'), link, { mode: 0o755 })
  const path = [join(folder.path, 'bin'), process.env['PATH']].join(delimiter)
  const ended = await run('sh', ['-c', lines.join('\n')], { cwd: folder.path, env: { PATH: path } })
  expect(ended.error).toBe('')
  expect(ended.out).toContain('The schema is in place: sqlite:app.db')
  expect(ended.out).toContain('There is no entry payments / order-42.')
  expect(ended.out).toMatch(/^ok +sqlite-journal +wal$/m)
})
