#!/usr/bin/env node
// The program `onceonly`: finds the command, and ends with 0 when it did what it was asked, 1 when it failed, 2 when it was
// asked wrongly.

import { demo } from './demo.ts'

interface Command {
  readonly summary: string
  run(args: readonly string[]): Promise<number>
}

const commands: Readonly<Record<string, Command>> = {
  demo: { summary: 'watch a payment survive a lost response and a killed process, on SQLite', run: demo },
}

const help = `onceonly: run an effect once, however often it is asked for

Usage: onceonly <command> [options]

${Object.entries(commands)
  .map(([name, { summary }]) => `  ${name.padEnd(10)} ${summary}`)
  .join('\n')}

  onceonly <command> --help says more of each.
`

async function main(args: readonly string[]): Promise<number> {
  const [name, ...rest] = args
  if (name === undefined || name === '--help' || name === '-h' || name === 'help') {
    console.log(help)
    return name === undefined ? 2 : 0
  }
  const command = Object.hasOwn(commands, name) ? commands[name] : undefined
  if (!command) {
    console.error(`onceonly: unknown command "${name}". onceonly --help lists the commands.`)
    return 2
  }
  return command.run(rest)
}

function askedWrongly(error: unknown): boolean {
  return error instanceof Error && 'code' in error && String(error.code).startsWith('ERR_PARSE_ARGS')
}

process.exitCode = await main(process.argv.slice(2)).catch((error: unknown) => {
  console.error(`onceonly: ${error instanceof Error ? error.message : String(error)}`)
  return askedWrongly(error) ? 2 : 1
})
