// The project as tidy reads it: its files, who imports whom, and what each file exports.

import { existsSync, globSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'

const root = join(import.meta.dirname, '..', '..')

export const read = (path: string): string => readFileSync(join(root, path), 'utf8')

export const exists = (path: string): boolean => existsSync(join(root, path))

export const files = (pattern: string): string[] =>
  globSync(pattern, { cwd: root, exclude: (name) => name === 'node_modules' || name === 'dist' }).toSorted()

export const everyFile: readonly string[] = files('{src,test,examples,scripts,bench}/**/*.ts')

export const sources: readonly string[] = files('src/**/*.ts').filter((path) => !path.endsWith('.test.ts'))

/** Tidy itself names what it forbids. */
export const isTidy = (path: string): boolean => path === 'test/tidy.test.ts' || path.startsWith('test/tidy/')

export interface Manifest {
  readonly bin: Readonly<Record<string, string>>
  readonly exports: Readonly<Record<string, { readonly default: string } | string>>
}

export const manifest: Manifest = JSON.parse(read('package.json')) as Manifest

const sourceOf = (built: string): string => built.replace(/^(\.\/)?dist\//, 'src/').replace(/\.js$/, '.ts')

export interface Subpath {
  readonly name: string
  readonly source: string
}

export const subpaths: readonly Subpath[] = Object.entries(manifest.exports).flatMap(([name, target]) =>
  typeof target === 'string' ? [] : [{ name, source: sourceOf(target.default) }],
)

export const programs: readonly string[] = Object.values(manifest.bin).map(sourceOf)

/** Without doc comments: their examples import the package, and print. */
export const codeIn = (path: string): string => read(path).replaceAll(/^ *\/\*\*[^]*?\*\/$/gm, '')

export function importsOf(path: string): string[] {
  const found = codeIn(path).matchAll(/(?:^(?:import|export)\s(?:[^'";]*?\sfrom\s+)?|\bimport\()['"]([^'"]+)['"]/gm)
  return Array.from(found, (match) => match[1]!)
}

/** The files of the project that a file imports, as paths from the root. */
export function importedFiles(path: string): string[] {
  const own = importsOf(path).filter((each) => each.startsWith('.'))
  return own.map((each) => relative(root, join(root, dirname(path), each)))
}

/** The room of a source file: the folder of `src` it is in. */
export const roomOf = (path: string): string => (dirname(path) === 'src' ? 'src' : path.split('/')[1]!)

/** Every file that is reached by following imports. */
export function reachedFrom(starts: readonly string[]): Set<string> {
  const reached = new Set<string>()
  const waiting = [...starts]
  for (let path = waiting.pop(); path !== undefined; path = waiting.pop()) {
    if (reached.has(path) || !exists(path)) continue
    reached.add(path)
    waiting.push(...importedFiles(path).filter((each) => each.endsWith('.ts')))
  }
  return reached
}

export interface ExportedFunction {
  readonly file: string
  readonly name: string
  /** The doc comment that stands directly before it; empty where there is none. */
  readonly comment: string
}

/** The functions that a file exports, also those that it passes on from other files. */
export function exportedFunctions(path: string): ExportedFunction[] {
  const text = read(path)
  const own = Array.from(
    text.matchAll(/(\/\*\*(?:(?!\*\/)[^])*\*\/\n)?^export (?:async )?function\*? (\w+)/gm),
    ([, comment, name]) => ({ file: path, name: name!, comment: comment ?? '' }),
  )
  const arrows = Array.from(
    text.matchAll(/(\/\*\*(?:(?!\*\/)[^])*\*\/\n)?^export const (\w+)[^=\n]*= (?:async )?(?:<[^>]*>)?\(/gm),
    ([, comment, name]) => ({ file: path, name: name!, comment: comment ?? '' }),
  )
  const passedOn = Array.from(text.matchAll(/^export \{([^}]+)\} from '([^']+)'/gm)).flatMap(([, names, from]) => {
    const wanted = names!.split(',').map((each) => each.trim().split(' as ')[0]!)
    const target = relative(root, join(root, dirname(path), from!))
    return exportedFunctions(target).filter(({ name }) => wanted.includes(name))
  })
  const all = Array.from(text.matchAll(/^export \* from '([^']+)'/gm)).flatMap(([, from]) =>
    exportedFunctions(relative(root, join(root, dirname(path), from!))),
  )
  const seen = new Map([...own, ...arrows, ...passedOn, ...all].map((each) => [`${each.file} ${each.name}`, each]))
  // Of an overloaded function the first signature carries the comment.
  for (const each of own.toReversed()) seen.set(`${each.file} ${each.name}`, each)
  return [...seen.values()]
}

/** TypeScript without the text of its template literals and without comments: what runs here and not on a server. */
export function withoutText(source: string): string {
  let out = ''
  // One number for each template literal that is open: the open braces in its current ${…}, or -1 while in its text.
  const open: number[] = []
  const setLast = (braces: number): void => void open.splice(-1, 1, braces)
  for (let at = 0; at < source.length; at++) {
    const last = open.at(-1)
    const two = source.slice(at, at + 2)
    if (last === -1) {
      if (source[at] === '`') open.pop()
      else if (two === '${') setLast(0)
      if (source[at] === '\\' || two === '${') at++
    } else if (source[at] === '`') open.push(-1)
    else if (two === '//') at = source.indexOf('\n', at)
    else if (two === '/*') at = source.indexOf('*/', at) + 1
    else if (last === 0 && source[at] === '}') setLast(-1)
    else {
      if (last !== undefined && source[at] === '{') setLast(last + 1)
      if (last !== undefined && source[at] === '}') setLast(last - 1)
      out += source[at]
    }
  }
  return out
}

/** The comments of a TypeScript file. */
export function commentsOf(path: string): string {
  return Array.from(read(path).matchAll(/(?<=^|\s)\/\/ .*$|\/\*(?:(?!\*\/)[^])*\*\//gm), ([comment]) => comment).join(
    '\n',
  )
}
