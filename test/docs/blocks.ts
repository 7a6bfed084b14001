// The TypeScript of README and docs, and the examples of doc comments: where each stands, and what it says.

import { globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

export const root: string = join(import.meta.dirname, '..', '..')

export interface Block {
  /** `docs/http.md:42`, `src/core/key.ts:17`. */
  readonly where: string
  readonly code: string
}

const claimed = new Set<string>()

/** The TypeScript blocks of a page. Whoever takes them runs them: what no test takes is found by `notTaken`. */
export function take(page: string, says: (code: string) => boolean = () => true): Block[] {
  const taken = blocksOfDocuments().filter(({ where, code }) => where.startsWith(`${page}:`) && says(code))
  for (const { where } of taken) claimed.add(where)
  return taken
}

export function notTaken(): string[] {
  return blocksOfDocuments().flatMap(({ where }) => (claimed.has(where) ? [] : where))
}

export function blocksOfDocuments(): Block[] {
  return documents().flatMap((path) => found(path, /^```ts\n([^]*?)^```$/gm, (code) => code))
}

export function javascriptBlocks(): string[] {
  return documents().flatMap((path) => found(path, /^```js\n([^]*?)^```$/gm, (code) => code).map(({ where }) => where))
}

/** Of a doc comment, what follows @example, without the stars and without the fence where there is one. */
export function examplesOfSource(): Block[] {
  const sources = globSync('src/**/*.ts', { cwd: root }).filter((path) => !path.endsWith('.test.ts'))
  const codeOf = (text: string): string => text.replaceAll(/^ *\* ?/gm, '').replaceAll(/^```.*$/gm, '')
  return sources.toSorted().flatMap((path) => found(path, /^ *\* @example.*\n([^]*?)(?=^ *\*\/|^ *\* @)/gm, codeOf))
}

function documents(): string[] {
  return ['README.md', ...globSync('docs/*.md', { cwd: root }).toSorted()]
}

function found(path: string, pattern: RegExp, read: (code: string) => string): Block[] {
  const text = readFileSync(join(root, path), 'utf8')
  return Array.from(text.matchAll(pattern), (match) => ({
    where: `${path}:${text.slice(0, match.index).split('\n').length}`,
    code: read(match[1]!),
  }))
}
