import { describe, expect, test } from 'vitest'
import { readRedisUrl } from './redis.ts'

describe('the URL of a Redis', () => {
  test.each<[url: string, place: object]>([
    ['redis://:p@host:1/2', { is: 'one', url: 'redis://:p@host:1/2' }],
    [
      'redis-cluster://one,two:7001',
      {
        is: 'cluster',
        nodes: [
          { host: 'one', port: 6379 },
          { host: 'two', port: 7001 },
        ],
        login: {},
        tls: false,
      },
    ],
    [
      'REDISS-cluster://me:se%2Fcr@et@[::1]:7000/0',
      {
        is: 'cluster',
        nodes: [{ host: '::1', port: 7000 }],
        login: { username: 'me', password: 'se/cr@et' },
        tls: true,
      },
    ],
    [
      'redis-sentinel://:100%@one,two:5/main/3?sentinelUser=watch&sentinelPassword=a%26b',
      {
        is: 'sentinel',
        nodes: [
          { host: 'one', port: 26_379 },
          { host: 'two', port: 5 },
        ],
        login: { password: '100%' },
        tls: false,
        name: 'main',
        database: 3,
        sentinelLogin: { username: 'watch', password: 'a&b' },
      },
    ],
  ])('%s', (url, place) => {
    expect(readRedisUrl(url)).toEqual(place)
  })
})
