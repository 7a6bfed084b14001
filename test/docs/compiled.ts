// Every TypeScript block of README and docs, and every @example of a doc comment, compiles against the package as it is, under
// "strict". All of them are one program, so that it takes seconds.

import { spawnSync } from 'node:child_process'
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type Block, blocksOfDocuments, examplesOfSource, root } from './blocks.ts'

const blocks = [...blocksOfDocuments(), ...examplesOfSource()]
const fileOf = ({ where }: Block): string => `${where.replaceAll(/[^\w]+/g, '-')}.ts`
let folder: string
let said = ''

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'onceonly-docs-'))
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'))
  writeFileSync(join(folder, 'package.json'), '{"type":"module"}')
  const { compilerOptions } = JSON.parse(readFileSync(join(root, 'tsconfig.json'), 'utf8')) as {
    compilerOptions: { paths: Record<string, string[]> }
  }
  const paths = Object.entries(compilerOptions.paths).map(([name, [path]]) => [name, [join(root, path!)]])
  const config = {
    compilerOptions: {
      ...compilerOptions,
      paths: Object.fromEntries(paths) as object,
      typeRoots: [join(root, 'node_modules/@types')],
      moduleDetection: 'force',
      experimentalDecorators: true,
      emitDecoratorMetadata: true,
      // An example shows what it is about, and not what comes of it.
      noUnusedLocals: false,
      noUnusedParameters: false,
      // What "strict" alone does not ask of a user's program.
      exactOptionalPropertyTypes: false,
      noPropertyAccessFromIndexSignature: false,
      erasableSyntaxOnly: false,
    },
    include: ['*.ts'],
  }
  writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify(config))
  cpSync(join(root, 'test/docs/shop.ts'), join(folder, 'shop.ts'))
  for (const block of blocks) writeFileSync(join(folder, fileOf(block)), block.code)
  const ran = spawnSync(join(root, 'node_modules/.bin/tsc'), ['-p', '.', '--pretty', 'false'], {
    cwd: folder,
    encoding: 'utf8',
  })
  said = ran.stdout + ran.stderr
})

afterAll(() => rmSync(folder, { recursive: true, force: true }))

test('there is something to compile', () => {
  expect(blocksOfDocuments().length).toBeGreaterThanOrEqual(20)
  expect(examplesOfSource().length).toBeGreaterThanOrEqual(20)
  expect(new Set(blocks.map(fileOf)).size).toBe(blocks.length)
})

test.each(blocks)('$where compiles', (block) => {
  expect(said.split('\n').filter((line) => line.startsWith(`${fileOf(block)}(`))).toEqual([])
})

test('the compiler itself ran, and had nothing to say of its configuration', () => {
  // The package's own source is checked with its own, stricter configuration.
  const others = said.split('\n').filter((line) => /^(error|tsconfig|shop)|cannot find the path/i.test(line))
  expect(others).toEqual([])
})

test('a block that is wrong is seen', () => {
  const wrong = join(folder, 'wrong.ts')
  writeFileSync(wrong, `import { createOnce } from 'onceonly'\ncreateOnce({ shop: 1 })\n`)
  const ran = spawnSync(join(root, 'node_modules/.bin/tsc'), ['-p', '.', '--pretty', 'false'], {
    cwd: folder,
    encoding: 'utf8',
  })
  expect(ran.stdout).toMatch(/^wrong\.ts\(2,/m)
})
