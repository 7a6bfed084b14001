// Runs an example of several files as it is written, in a folder of its own, on the sources instead of the built package.

import { execFile } from 'node:child_process'
import { cpSync, globSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { onSources } from '../docs/programs.ts'

const root = join(import.meta.dirname, '..', '..')

/** A copy that runs on the sources. The caller removes the folder. */
export function copyExample(name: string): string {
  const folder = mkdtempSync(join(tmpdir(), 'onceonly-example-'))
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'))
  writeFileSync(join(folder, 'package.json'), '{"type":"module"}')
  cpSync(join(root, 'examples', name), folder, { recursive: true })
  for (const file of globSync('*.ts', { cwd: folder })) {
    writeFileSync(join(folder, file), onSources(readFileSync(join(folder, file), 'utf8')))
  }
  return folder
}

/** What it prints, in lines. */
export async function runExample(name: string, program: string, env: Record<string, string>): Promise<string[]> {
  const folder = copyExample(name)
  try {
    return await runProgram(join(folder, program), env)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

export async function runProgram(file: string, env: Record<string, string>): Promise<string[]> {
  const compiled = mkdtempSync(join(tmpdir(), 'onceonly-compiled-'))
  try {
    const { stdout } = await promisify(execFile)(process.execPath, [file], {
      // Sooner than a test's time is over: it is ended, and what it said is told.
      timeout: 150_000,
      env: { ...process.env, NODE_NO_WARNINGS: '1', NODE_OPTIONS: '', NODE_COMPILE_CACHE: compiled, ...env },
    })
    return stdout.trim().split('\n')
  } finally {
    rmSync(compiled, { recursive: true, force: true })
  }
}
