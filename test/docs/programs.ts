// Runs a program of the documents or an example as it is written, in a folder of its own, on the sources instead of the built package.
import { execFile } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { promisify } from 'node:util'
import { afterAll, expect, test } from 'vitest'
import { root, take } from './blocks.ts'

export interface Programs extends Disposable {
  readonly folder: string
  /** Writes the file, and returns its path. */
  write(name: string, code: string): string
  /** What the program prints. It must end with 0 and write nothing to stderr. */
  run(name: string, code: string, args?: string[], env?: Record<string, string>): Promise<string>
}

export function openPrograms(): Programs {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-programs-'))
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'))
  writeFileSync(join(folder, 'package.json'), '{"type":"module"}')
  const write = (name: string, code: string): string => {
    const file = join(folder, `${name}.ts`)
    writeFileSync(file, onSources(code))
    return file
  }
  return {
    folder,
    write,
    async run(name, code, args = [], env = {}) {
      const file = write(name, code)
      const options = { cwd: folder, env: { ...process.env, NODE_OPTIONS: '', NODE_NO_WARNINGS: '1', ...env } }
      const { stdout, stderr } = await promisify(execFile)(process.execPath, [file, ...args], options)
      if (stderr !== '') throw new Error(`${name} wrote to stderr: ${stderr}`)
      return stdout.trim()
    },
    [Symbol.dispose]: () => rmSync(folder, { recursive: true, force: true }),
  }
}

/** The sections of a page that say what their program prints: each is a test that runs it. */
export function testPrinting(page: string): void {
  const sections = readFileSync(join(root, page), 'utf8').split(/^### /m).slice(1)
  const programs = sections
    .filter((section) => section.includes('It prints\n'))
    .map((section) => ({
      heading: section.split('\n', 1)[0]!,
      code: /```ts\n([^]*?)```/.exec(section)![1]!,
      prints: /It prints\n\n```\n([^]*?)```/.exec(section)![1]!,
    }))
  const running = openPrograms()
  afterAll(() => running[Symbol.dispose]())
  take(page, (code) => programs.some((program) => program.code === code))
  test.each(programs)('$heading', async ({ heading, code, prints }) => {
    expect(await running.run(heading.replaceAll(/\W+/g, '-'), code)).toBe(prints.trim())
  })
}

const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  exports: Record<string, { default: string }>
}

export function onSources(code: string): string {
  return code.replace(/(?<=from |import )'onceonly((?:\/[a-z-]+)*)'/g, (_, subpath: string) => {
    const source = manifest.exports[`.${subpath}`]!.default.replace('./dist/', 'src/').replace(/\.js$/, '.ts')
    return `'${pathToFileURL(join(root, source)).href}'`
  })
}
