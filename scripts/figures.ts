// npm run figures: writes what `npm run bench` measured (bench/results/latest.json) into the docs, between their markers. No figure of
// the bench is typed: test/figures.test.ts compares the pages with the results.

import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { aimOf, amountOf, readResults } from '../bench/report.ts'
import type { Results } from '../bench/report.ts'

const docs = join(import.meta.dirname, '..', 'docs')

/** Which parts of the bench stand on which page. */
export const measuredPages: Readonly<Record<string, readonly string[]>> = {
  'stores.md': ['postgres', 'redis', 'sqlite'],
  'operating.md': ['retention'],
  'http.md': ['http'],
  'messaging.md': ['outbox', 'messages'],
  'client.md': ['client'],
  'sessions.md': ['sessions'],
  'webhooks.md': ['webhooks'],
}

/** The page with its figures as the results have them. */
export function withFigures(page: string, text: string, results: Results = readResults()): string {
  return measuredPages[page]!.reduce((sofar, part) => rewritten(sofar, part, blockOf(part, results)), text)
}

/** The page without what a program writes. */
export function withoutFigures(text: string): string {
  return text.replaceAll(/<!-- figures: [^>]*-->[^]*?<!-- \/figures: [^>]*-->/g, '')
}

function blockOf(part: string, results: Results): string {
  const command = `\`npm run bench -- ${part}\``
  const found = results[part]
  if (!found) return `Not recorded yet: ${command}, then \`npm run figures\`.`
  const rows = found.figures.map((each) => `| ${each.what} | ${amountOf(each)} | ${aimOf(each)} |`)
  const runs = found.runs === 1 ? 'one run' : `${found.runs} runs`
  const head = `${command} on ${found.day}, ${runs} on a shared machine:`
  return [head, '', '| | measured | aimed at |', '|---|---:|---:|', ...rows].join('\n')
}

function rewritten(text: string, part: string, block: string): string {
  const [begin, end] = [`<!-- figures: bench ${part} -->`, `<!-- /figures: bench ${part} -->`]
  const [from, to] = [text.indexOf(begin), text.indexOf(end)]
  if (from < 0 || to < from) throw new Error(`expected the markers ${begin} … ${end}, found none`)
  return `${text.slice(0, from + begin.length)}\n\n${block}\n\n${text.slice(to)}`
}

function main(): void {
  for (const page of Object.keys(measuredPages)) {
    const path = join(docs, page)
    writeFileSync(path, withFigures(page, readFileSync(path, 'utf8')))
  }
}

if (import.meta.main) main()
