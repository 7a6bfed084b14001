// Writes the tables of options into docs/http.md and docs/gateway.md, from the tables that check the options. A test compares them.
// node scripts/docs.ts

import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { kebab, members } from '../src/cli/gateway.ts'
import type { Member } from '../src/cli/gateway.ts'
import { fingerprintTable, httpTable } from '../src/http/exchange.ts'
import type { HttpOption } from '../src/http/exchange.ts'

const docs = join(import.meta.dirname, '..', 'docs')

/** The text with a marked block replaced: everything between `<!-- NAME: … -->` and `<!-- /NAME -->`. */
export function withBlock(text: string, name: string, block: string): string {
  const marked = new RegExp(`(<!-- ${name}:[^>]*-->\n)[^]*?(\n<!-- /${name} -->)`)
  if (!marked.test(text)) throw new Error(`The marks of ${name} are missing.`)
  return text.replace(marked, (_, begin: string, end: string) => `${begin}\n${block}\n${end}`)
}

const head = '| Option | Default | |\n|---|---|---|'

export function httpOptionRows(): string {
  const fingerprint = Object.entries(fingerprintTable).map(([name, each]) => httpRow(`fingerprint.${name}`, each))
  const rows = Object.entries(httpTable).flatMap(([name, each]) =>
    name === 'fingerprint' ? [httpRow(name, each), ...fingerprint] : [httpRow(name, each)],
  )
  return [head, ...rows].join('\n')
}

function httpRow(name: string, { fallback, required, gateway, describe }: HttpOption): string {
  const standard = required
    ? 'none, it must be set'
    : fallback === undefined
      ? gateway
        ? 'that of `createOnce`'
        : 'none'
      : literal(fallback)
  return `| \`${name}\` | ${standard} | ${describe} |`
}

function literal(value: unknown): string {
  if (Array.isArray(value)) return `\`[${value.map((each) => `'${each}'`).join(', ')}]\``
  return typeof value === 'string' ? `\`'${value}'\`` : `\`${JSON.stringify(value)}\``
}

export function gatewayOptionRows(): string {
  return [
    head,
    ...Object.entries(members).map(([name, each]) => gatewayRow(name, each)),
    '| `--admin-token-file` | | Allows changes on the dashboard, or `ONCEONLY_ADMIN_TOKEN`. |',
    '| `--config` | | A file with the same names in JSON, and rules per route. |',
  ].join('\n')
}

function gatewayRow(name: string, { option, fallback, describe }: Member): string {
  const { enum: names } = option.json as { enum?: readonly string[] }
  const usage = names?.length === 1 ? `--${kebab(name)} ${names[0]}` : `--${kebab(name)}`
  const others = names && names.length > 1 ? `${names.map((each) => `\`${each}\``).join(', ')}. ` : ''
  return `| \`${usage}\` |${fallback === undefined ? '' : ` \`${fallback}\``} | ${others}${describe} |`
}

if (import.meta.main) {
  for (const [file, rows] of [
    ['http.md', httpOptionRows()],
    ['gateway.md', gatewayOptionRows()],
  ] as const) {
    const path = join(docs, file)
    writeFileSync(path, withBlock(readFileSync(path, 'utf8'), 'options', rows))
  }
}
