// Runs an example or a snippet of the docs as it is written, in a folder of its own, on the sources instead of the built package.
import { execFile } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { promisify } from 'node:util'

export const root: string = join(import.meta.dirname, '..', '..')

export interface Programs extends Disposable {
  readonly folder: string
  run(name: string, code: string, args?: string[], env?: Record<string, string>): Promise<string>
}

export function openPrograms(): Programs {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-programs-'))
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'))
  writeFileSync(join(folder, 'package.json'), '{"type":"module"}')
  return {
    folder,
    async run(name, code, args = [], env = {}) {
      const file = join(folder, `${name}.ts`)
      writeFileSync(file, onSources(code))
      const options = { cwd: folder, env: { ...process.env, NODE_NO_WARNINGS: '1', ...env } }
      const { stdout } = await promisify(execFile)(process.execPath, [file, ...args], options)
      return stdout.trim()
    },
    [Symbol.dispose]: () => rmSync(folder, { recursive: true, force: true }),
  }
}

const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  exports: Record<string, { default: string }>
}

function onSources(code: string): string {
  return code.replace(/'onceonly((?:\/[a-z-]+)?)'/g, (_, subpath: string) => {
    const source = manifest.exports[`.${subpath}`]!.default.replace('./dist/', 'src/').replace(/\.js$/, '.ts')
    return `'${pathToFileURL(join(root, source)).href}'`
  })
}
