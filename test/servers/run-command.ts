// Runs a program to its end inside a guarded folder, so that it cannot outlive the folder. Invariant: it resolves only
// when the program ended with 0; otherwise the error carries what the program said.
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { closeSync, openSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { type Owner, spawnIn } from './guarded-folder.ts'

export async function runCommand(folder: string, file: string, args: string[], owner?: Owner): Promise<string> {
  const outputFile = join(folder, `output-${randomBytes(6).toString('hex')}`)
  const output = openSync(outputFile, 'w')
  try {
    const child = spawnIn(folder, file, args, { owner, log: output })
    const [code, signal] = await once(child, 'exit')
    const said = readFileSync(outputFile, 'utf8')
    if (code !== 0) throw new Error(`${file} ended with ${code ?? signal}:\n${said.slice(-4_000)}`)
    return said
  } finally {
    closeSync(output)
    rmSync(outputFile, { force: true })
  }
}
