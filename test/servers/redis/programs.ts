// Which Redis or Valkey the tests take. Unless a run of `npm run test:versions` names one, it is the installed one.
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { findProgram } from '../find-program.ts'
import { suiteCommand, suiteFolder, type SuitePackages } from '../suite-folder.ts'

/** Names one of `otherRedis`. */
export const redisVariable = 'ONCEONLY_REDIS'

export interface OtherRedis {
  readonly suitePackages: SuitePackages
  readonly program: string
}

export const otherRedis: Readonly<Record<string, OtherRedis>> = {
  redis: { suitePackages: { suite: 'trixie', packages: ['redis-server'] }, program: 'usr/bin/redis-server' },
  valkey: { suitePackages: { suite: 'trixie', packages: ['valkey-server'] }, program: 'usr/bin/valkey-server' },
}

/** How to start it with these arguments. Undefined where there is none. */
export function redisProgram(
  args: string[],
  named = process.env[redisVariable],
): { file: string; args: string[] } | undefined {
  if (named !== undefined) {
    const other = otherRedis[named]
    if (!other) throw new Error(`expected ${redisVariable} to be ${Object.keys(otherRedis).join(' or ')}, got ${named}`)
    const folder = suiteFolder(other.suitePackages)
    return existsSync(folder) ? suiteCommand(folder, other.program, args) : undefined
  }
  const file = findProgram('redis-server', 'valkey-server')
  return file === undefined ? undefined : { file, args }
}

/** Where it is, for people. */
export function redisPlace(named = process.env[redisVariable]): string | undefined {
  if (named === undefined) return findProgram('redis-server', 'valkey-server')
  const other = otherRedis[named]
  return other && existsSync(suiteFolder(other.suitePackages))
    ? join(suiteFolder(other.suitePackages), other.program)
    : undefined
}
