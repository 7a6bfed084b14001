// examples/sessions/story.ts tells what it promises.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { root } from '../docs/blocks.ts'
import { openPrograms } from '../docs/programs.ts'

test('each sale is booked once, and a window of answers is kept', async () => {
  using programs = openPrograms()
  const story = readFileSync(join(root, 'examples', 'sessions', 'story.ts'), 'utf8')
  const told = await programs.run('story', story, ['tills.db'])
  expect(told.split('\n')).toEqual([
    '300 sales, 100 answers were lost and given again',
    '42 of 42 late duplicates were refused',
    'rows that the server keeps of them: 1',
    'coffee 1, thank you',
    'a request of before: FENCED',
  ])
  const counting = `import { DatabaseSync } from 'node:sqlite'
    console.log(new DatabaseSync('tills.db').prepare('select count(*) || \\' \\' || count(distinct article) as n from sales').get().n)`
  expect(await programs.run('count', counting)).toBe('301 301')
})
