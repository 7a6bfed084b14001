// The options of `onceonly keys resolve` that say what a person found out. Exactly one of them is given.

import { readFileSync } from 'node:fs'
import type { FoundText } from '../../gateway/found-outcome.ts'
import { flag, text, wrong } from '../arguments.ts'
import type { Option, Values } from '../arguments.ts'

type FromText = 'value' | 'value-file' | 'failure' | 'failure-file' | 'response-file'

export const foundOptions: Readonly<Record<FromText, Option<string>>> & { readonly done: Option<true> } = {
  value: text,
  'value-file': text,
  failure: text,
  'failure-file': text,
  'response-file': text,
  done: flag,
}

export const foundHelp = `  --value JSON          the value that the effect returned, such as '{"receipt":"r1"}'
  --value-file FILE     the same from a file
  --failure TEXT        it failed for good: the message of the FinalError that every retry throws
  --failure-file FILE   the same from a file, as JSON: { "message": TEXT, "data": … }
  --response-file FILE  of an HTTP key (every key of a gateway is one): the response as curl -i prints it, that is a status line
                        such as HTTP/1.1 201 Created, header lines, an empty line, and the body to the last byte
  --done                it took place, and returns no value
`

const sources: Readonly<Record<keyof typeof foundOptions, (given: string) => FoundText>> = {
  value: (value) => ({ value }),
  'value-file': (file) => ({ value: read(file).toString('utf8') }),
  failure: (failure) => ({ failure }),
  'failure-file': (file) => ({ failureJson: read(file).toString('utf8') }),
  'response-file': (file) => ({ response: read(file) }),
  done: () => ({ done: true }),
}

export function readFound(given: Values<typeof foundOptions>): FoundText {
  const names = (Object.keys(sources) as (keyof typeof sources)[]).filter((name) => given[name] !== undefined)
  const [name] = names
  if (name === undefined || names.length > 1) {
    const all = Object.keys(sources).map((each) => `--${each}`)
    throw wrong('keys resolve', `what did it come to? Give one of ${all.join(', ')}, got ${names.length} of them`)
  }
  return sources[name](String(given[name]))
}

function read(file: string): Buffer {
  try {
    return readFileSync(file)
  } catch (error) {
    throw wrong('keys resolve', `the file cannot be read: ${error instanceof Error ? error.message : String(error)}`)
  }
}
