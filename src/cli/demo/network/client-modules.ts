// The modules of `onceonly/client` for the page, as they are in the package: no bundler is needed, as they import nothing of Node. From
// source their types are taken out on the way.

import { readFileSync } from 'node:fs'
import { stripTypeScriptTypes } from 'node:module'
import { extname, join, posix } from 'node:path'
import type { Page } from '../../../gateway/admin.ts'

const root = join(import.meta.dirname, '..', '..', '..')

/** `.js` in the package, `.ts` from source. */
const extension = extname(import.meta.filename)

/** `/onceonly.js`, and each module that it imports under `/onceonly/`. */
export function clientModules(): ReadonlyMap<string, Page> {
  const entry = `client/client${extension}`
  const pages = new Map([['/onceonly.js', script(`export * from '/onceonly/${entry}'\n`)]])
  const add = (path: string): void => {
    if (pages.has(`/onceonly/${path}`)) return
    const text = readFileSync(join(root, path), 'utf8')
    const code = extension === '.ts' ? stripTypeScriptTypes(text) : text
    pages.set(`/onceonly/${path}`, script(code))
    for (const [, found] of code.matchAll(/\bfrom '(\.[^']+)'/g)) add(posix.join(posix.dirname(path), found!))
  }
  add(entry)
  return pages
}

function script(code: string): Page {
  return { type: 'text/javascript; charset=utf-8', body: Buffer.from(code) }
}
