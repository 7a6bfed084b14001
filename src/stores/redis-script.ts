// The scripts that decide, one a phase, each for a batch of calls at once. Everything a call depends on (the entry, the
// register of the dataset, the server's clock) is read and written inside, so that nothing can come in between. All names are
// in KEYS. A script answers the state of the register, then one string a call: 'granted …', 'done', 'lost', or the entry as
// it is, from which the caller reads why it was not granted. The mark of the caller counts its writes; see redis-register.ts.

import { hash } from 'node:crypto'

export interface Script {
  readonly source: string
  readonly sha: string
}

export function scriptOf(source: string): Script {
  return { source, sha: hash('sha1', source, 'hex') }
}

export type Field =
  | 'state'
  | 'how'
  | 'lease'
  | 'expires'
  | 'forgotten'
  | 'attempt'
  | 'fence'
  | 'first'
  | 'token'
  | 'fingerprint'
  | 'version'

/**
 * An entry is text in which everything has its place, padded with blanks or zeros: in Lua a pattern costs as much as a write,
 * and times of one width compare as text. Times are in milliseconds, the fence in microseconds. After all that comes a line
 * feed and the input, or in a settled entry the outcome, if that is small.
 */
export const fields: Readonly<Record<Field, readonly [from: number, to: number]>> = {
  state: [1, 7],
  how: [9, 18],
  lease: [20, 35],
  expires: [37, 52],
  forgotten: [54, 69],
  attempt: [71, 80],
  fence: [82, 97],
  first: [99, 114],
  token: [116, 151],
  fingerprint: [153, 195],
  version: [197, 206],
}

/** The length of an entry without what follows the line feed. */
export const entryLength: number = fields.version[1]

const at = (name: Field): string => fields[name].join(', ')

// The same as a pattern. Only where a key would run again because of what an entry says is it worth its price.
const shape = [
  '.'.repeat(7),
  '[%l%- ]'.repeat(10),
  ...[16, 16, 16, 10, 16, 16].map((digits) => '%d'.repeat(digits)),
  '%S'.repeat(36),
  '%S'.repeat(43),
  '%d'.repeat(10),
].join(' ')

// An outcome in a name of its own goes by itself when its entry becomes a tombstone, but costs a second write; a small one is
// not worth it, and stays with its entry until that is forgotten.
const inlineBytesMax = 512

const beginning = `
local call, sub, format = redis.call, string.sub, string.format
local time = call('TIME')
local nowUs = time[1] * 1000000 + time[2]
local now = math.floor(nowUs / 1000)
local nowText = format('%016d', now)
local written = false
local answers = { '' }
`

/**
 * ARGV[1] to [6]: the lineage and the mark that the caller knows, the caller, what to do on evidence of a loss ('-', 'on', or
 * for how long), how long a mark is kept, and when the caller will have given up. The register is the lineage, the lineage
 * before it whose loss is known, until when it is quarantined ('-', 'on', or a time), since when, and the evidence.
 */
const register = `
local found = call('MGET', KEYS[1], KEYS[2])
local lineage, hold, mark, evidence = '-', '-', tonumber(found[2] or 0), 'none'
if found[1] then
  lineage, hold = sub(found[1], 1, 53), sub(found[1], 109, 124)
  if hold ~= '-               ' and hold ~= 'on              ' and hold <= nowText then hold = '-' end
end
if ARGV[1] ~= lineage then
  if lineage == '-' then evidence = 'emptied'
  elseif ARGV[1] ~= '-' and ARGV[1] ~= sub(found[1], 55, 107) then evidence = 'replaced' end
elseif mark < tonumber(ARGV[2]) then
  evidence = 'went-back'
end
if lineage == '-' or evidence ~= 'none' then
  -- A lineage that somebody else began stays: two that replaced each other's would do so for ever.
  if evidence ~= 'replaced' then lineage = ARGV[3] .. format('-%016d', nowUs) end
  if evidence ~= 'none' and ARGV[4] == 'on' then hold = 'on'
  elseif evidence ~= 'none' and ARGV[4] ~= '-' then hold = format('%016d', now + ARGV[4]) end
  call('SET', KEYS[1], format('%s %-53s %-16s %s %s', lineage, ARGV[1], hold, nowText, evidence))
end
local held = sub(hold, 1, 1) ~= '-'
`

const entries = `
-- What is damaged is never taken for absent, expired or abandoned.
local function assertReadable(entry)
  local state = sub(entry, ${at('state')})
  local isState = state == 'running' or state == 'settled' or state == 'open   '
  if not isState or not string.find(entry, '^${shape}') then error('UNREADABLE entry') end
end

-- Nil when there is none, or none any more.
local function read(name)
  local entry = call('GET', name)
  if entry and nowText >= sub(entry, ${at('forgotten')}) then
    assertReadable(entry)
    return nil
  end
  return entry
end

local function isIn(entry, state) return sub(entry, ${at('state')}) == state end

local function isBy(entry, token) return sub(entry, ${at('token')}) == token end

local function isExpired(entry) return nowText >= sub(entry, ${at('expires')}) end

-- The times of an entry whose lease ends then, with the durations it has: for the entry, and for PXAT.
local function timesFrom(entry, lease)
  local expires = lease + sub(entry, ${at('expires')}) - sub(entry, ${at('lease')})
  local forgotten = expires + sub(entry, ${at('forgotten')}) - sub(entry, ${at('expires')})
  return format('%016d %016d %016d', lease, expires, forgotten), format('%d', forgotten)
end

-- The same from durations as text: lease, keep and tombstone. Most calls of a batch have the same.
local worked = {}
local function timesOf(durations)
  local times = worked[durations]
  if times then return times[1], times[2], times[3] end
  local lease = now + sub(durations, 1, 16)
  local expires = lease + sub(durations, 18, 33)
  local forgotten = expires + sub(durations, 35, 50)
  times = { format('%016d %016d %016d', lease, expires, forgotten), format('%d', forgotten), format('%d', expires) }
  worked[durations] = times
  return times[1], times[2], times[3]
end

local function withOutcome(entry, outcomeName)
  if #entry > ${entryLength} or not isIn(entry, 'settled') then return entry end
  local outcome = call('GET', outcomeName)
  return outcome and entry .. '\\n' .. outcome or entry
end

local function renew(name, entry, lease)
  local times, forgotten = timesFrom(entry, now + lease)
  call('SET', name, sub(entry, 1, 19) .. times .. sub(entry, 70), 'PXAT', forgotten)
  written = true
end

local function open(name, entry)
  local times, forgotten = timesFrom(entry, now)
  call('SET', name, 'open    ' .. sub(entry, 9, 19) .. times .. sub(entry, 70), 'PXAT', forgotten)
  written = true
end
`

const ending = `
if written then
  mark = mark + 1
  call('SET', KEYS[2], format('%d', mark), 'PX', ARGV[5])
end
answers[1] = format('%s %d %s %d', lineage, mark, evidence, now)
return answers
`

const beforeCalls = { keys: 2, values: 6 }

/** `answer` is Lua that is given the names and values of a call and returns its answer. */
function phase(locals: string, answer: string, each: { keys: string[]; values: string[] }): Script {
  const taken = [
    ...each.keys.map((_, index) => `KEYS[${beforeCalls.keys + 1 + index} + n * ${each.keys.length}]`),
    ...each.values.map((_, index) => `ARGV[${beforeCalls.values + 1 + index} + n * ${each.values.length}]`),
  ]
  const loop = `
local function answer(${[...each.keys, ...each.values].join(', ')})
${answer}
end
for n = 0, (#KEYS - ${beforeCalls.keys}) / ${each.keys.length} - 1 do
  answers[n + 2] = answer(${taken.join(', ')})
end
`
  return scriptOf([beginning, register, entries, locals, loop, ending].join(''))
}

/** `durations`: lease, keep, tombstone, onTakeover, onExpired. `rest`: token, fingerprint, version, input as in the entry. */
export const claimScript: Script = phase(
  `
local late, grants = now > tonumber(ARGV[6]), 0

-- One more for every grant: two lives of a key that fit into one batch have different fences, too.
local function grant(name, how, attempt, lastFence, first, durations, rest)
  -- Whatever was lost may have been this key, or its outcome: while in doubt, nobody new is let in.
  if held then return 'quarantined' end
  grants = grants + 1
  local fence = format('%016d', math.max(nowUs + grants, lastFence + 1))
  local times, forgotten = timesOf(durations)
  call('SET', name, 'running ' .. how .. times .. attempt .. fence .. ' ' .. first .. ' ' .. rest, 'PXAT', forgotten)
  written = true
  return 'granted ' .. how .. attempt .. fence
end
`,
  `
  if late then return 'late' end
  local entry = read(name)
  if not entry then return grant(name, 'fresh      ', ' 0000000001 ', 0, nowText, durations, rest) end
  if isExpired(entry) then
    if sub(durations, 59) ~= 'execute' then return sub(entry, 1, ${entryLength}) end
    assertReadable(entry)
    return grant(name, 'fresh      ', ' 0000000001 ', sub(entry, ${at('fence')}), nowText, durations, rest)
  end
  if isIn(entry, 'settled') then return withOutcome(entry, outcomeName) end
  if sub(entry, ${at('fingerprint')}) ~= sub(rest, 38, 80) then return entry end
  local isOpen = isIn(entry, 'open   ')
  if isBy(entry, sub(rest, 1, 36)) then
    if isOpen then return entry end
    renew(name, entry, sub(durations, 1, 16))
    return 'granted ' .. sub(entry, ${at('how')}) .. ' ' .. sub(entry, 71, 97)
  end
  if not isOpen and (nowText < sub(entry, ${at('lease')}) or sub(durations, 52, 57) == 'refuse') then return entry end
  assertReadable(entry)
  -- An attempt that brings no input leaves the one that is there: without it, no worker could take the operation up.
  if #rest == ${entryLength - fields.token[0] + 1} then rest = rest .. sub(entry, ${entryLength + 1}) end
  return grant(name, isOpen and 'reopened   ' or 'taken-over ', format(' %010d ', sub(entry, ${at('attempt')}) + 1),
    sub(entry, ${at('fence')}), sub(entry, ${at('first')}), durations, rest)
`,
  { keys: ['name', 'outcomeName'], values: ['durations', 'rest'] },
)

/** `what`: settle, token, 0, keep, tombstone, and the outcome; extend, token, lease; release, token, open or forget. */
export const writeScript: Script = phase(
  `
local function settle(name, outcomeName, entry, durations, outcome)
  local times, forgotten, expires = timesOf(durations)
  -- The input is left out: it was there to finish the operation, and would only fill the memory now.
  local settled = 'settled ' .. sub(entry, 9, 19) .. times .. sub(entry, 70, ${entryLength})
  if #outcome <= ${inlineBytesMax} then
    settled = settled .. '\\n' .. outcome
  else
    call('SET', outcomeName, outcome, 'PXAT', expires)
  end
  call('SET', name, settled, 'PXAT', forgotten)
  written = true
end

local function release(name, entry, how)
  if how == 'open' or sub(entry, ${at('attempt')}) ~= '0000000001' then return open(name, entry) end
  call('DEL', name)
  written = true
end
`,
  `
  local verb, token = sub(what, 1, 7), sub(what, 9, 44)
  local entry = read(name)
  -- The trace is gone already: this is the same release once more, or of a claim that never arrived.
  if not entry then return sub(what, 46) == 'forget' and 'done' or 'lost' end
  if isExpired(entry) or not isBy(entry, token) then return 'lost' end
  -- The lease decides when others may try; only the token decides who may write. Hence abandoned is held, too.
  if isIn(entry, 'running') then
    if verb == 'settle ' then settle(name, outcomeName, entry, sub(what, 46), outcome)
    elseif verb == 'extend ' then renew(name, entry, sub(what, 46))
    else release(name, entry, sub(what, 46)) end
    return 'done'
  end
  -- The same call once more, after its reply was lost.
  if verb == 'settle ' and isIn(entry, 'settled') or verb == 'release' and isIn(entry, 'open   ') then return 'done' end
  return 'lost'
`,
  { keys: ['name', 'outcomeName'], values: ['what', 'outcome'] },
)

/** `what`: look; or release, or forget, how long and how many records of it are kept, and the reason. */
export const inspectScript: Script = phase(
  '',
  `
  local entry, action = read(name), sub(what, 1, 7)
  if not entry then return 'absent' end
  local before = withOutcome(entry, outcomeName)
  if action == 'look   ' then return before end
  if action == 'release' and (isExpired(entry) or not isIn(entry, 'running')) then return before end
  local record = nowText .. ' ' .. action .. ' ' .. sub(entry, 1, ${entryLength}) .. ' ' .. sub(what, 32)
  call('RPUSH', auditName, record)
  call('LTRIM', auditName, format('%d', -sub(what, 26, 30)), -1)
  call('PEXPIRE', auditName, format('%d', sub(what, 9, 24)))
  if action == 'release' then open(name, entry) else call('DEL', name, outcomeName) end
  written = true
  return before
`,
  { keys: ['name', 'outcomeName', 'auditName'], values: ['what'] },
)
