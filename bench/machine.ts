// What a result was measured on, so that a reader knows whether it speaks for his own machine.

import { spawnSync } from 'node:child_process'
import { arch, availableParallelism, cpus, release, totalmem, type } from 'node:os'
import { serverVersions } from './server-calls.ts'

export interface Machine {
  readonly cores: number
  readonly processor: string
  readonly memoryGb: number
  readonly system: string
  readonly node: string
  /** Servers that were measured, with their versions. */
  readonly servers: readonly string[]
}

export function machine(): Machine {
  return {
    cores: availableParallelism(),
    processor: cpus()[0]?.model.trim() ?? arch(),
    memoryGb: Math.round(totalmem() / 2 ** 30),
    system: `${type()} ${release()}`,
    node: process.version,
    servers: serverVersions(),
  }
}

/** The commit that was measured, with a + when files were changed since. */
export function commit(): string {
  const git = (...words: string[]): string => spawnSync('git', words, { encoding: 'utf8' }).stdout?.trim() ?? ''
  const changed = git('status', '--porcelain', '--', 'src', 'bench/*.ts') === '' ? '' : '+'
  return `${git('rev-parse', '--short', 'HEAD')}${changed}`
}

/** One line for people. */
export function described({ cores, processor, memoryGb, system, node, servers }: Machine): string {
  return [`${cores} × ${processor}`, `${memoryGb} GB`, system, `Node ${node}`, ...servers].join(', ')
}
