// Pages from files beside the source, read once at the start. A requested path is looked up in this table and never becomes a
// path on the disk.

import { readdirSync, readFileSync } from 'node:fs'
import { extname, join } from 'node:path'

export interface Page {
  readonly type: string
  readonly body: Uint8Array
}

const types: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.svg': 'image/svg+xml',
}

/** Every file of the folder by its path. index.html is `/`. */
export function readPages(folder: string): ReadonlyMap<string, Page> {
  return new Map(
    readdirSync(folder).flatMap((name) => {
      const type = types[extname(name)]
      if (type === undefined) return []
      return [[name === 'index.html' ? '/' : `/${name}`, { type, body: readFileSync(join(folder, name)) }] as const]
    }),
  )
}
