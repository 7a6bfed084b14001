// The scripts that decide, one a phase, each for a batch of calls at once. Everything a call depends on (the entry, the
// register of the dataset, the server's clock) is read and written inside, so that nothing can come in between. A script
// answers the state of the register, then of each call: 1 for done and 0 for lost, 'granted …', or the entry as it is, from which
// the caller reads why it was not granted. The mark of the caller counts its writes; see redis/register.ts.
//
// Every string that Lua makes is hashed and every command it calls costs as much as a dozen of them: hence one MGET for all.

import { hash } from 'node:crypto'

export interface Script {
  readonly source: string
  readonly sha: string
}

/** The script of a phase: the words of its calls have one width. */
export interface PhaseScript extends Script {
  readonly wordsLength: number
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
local call, sub, byte, find, format = redis.call, string.sub, string.byte, string.find, string.format
local time = call('TIME')
local nowUs = time[1] * 1000000 + time[2]
local now = math.floor(nowUs / 1000)
local nowText = format('%016d', now)
local written = false
local found = call('MGET', unpack(KEYS))
local answers = { '' }
`

/**
 * ARGV[1] to [6]: the lineage and the mark that the caller knows, the caller, what to do on evidence of a loss ('-', 'on', or
 * for how long), how long a mark is kept, and when the caller will have given up. The register is the lineage, the lineage
 * before it whose loss is known, until when it is quarantined ('-', 'on', or a time), since when, and the evidence.
 */
const register = `
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
  if not isState or not find(entry, '^${shape}') then error('UNREADABLE entry') end
end

-- What was written here already: a key can be in one batch twice.
local latest = {}
local function write(name, entry, forgotten)
  call('SET', name, entry, 'PXAT', forgotten)
  latest[name] = entry
  written = true
end

-- MGET has nothing to say of a list or a hash, and SET would overwrite it.
local function create(name, entry, forgotten)
  if not call('SET', name, entry, 'NX', 'PXAT', forgotten) then error('WRONGTYPE this name holds no entry') end
  latest[name] = entry
  written = true
end

local function remove(name)
  call('DEL', name)
  latest[name] = false
  written = true
end

local function isExpired(entry) return nowText >= sub(entry, ${at('expires')}) end

-- Nil when there is none, or none any more. Nothing is forgotten before it expires.
local function read(name, entry)
  if latest[name] ~= nil then entry = latest[name] end
  if not entry then return nil end
  if isExpired(entry) and nowText >= sub(entry, ${at('forgotten')}) then
    assertReadable(entry)
    return nil
  end
  return entry
end

-- By their first letters, which make no string.
local states = { settled = ${'settled'.charCodeAt(0)}, running = ${'running'.charCodeAt(0)}, open = ${'open'.charCodeAt(0)} }
local function isIn(entry, state) return byte(entry) == states[state] end

local function isBy(entry, token) return find(entry, token, ${fields.token[0]}, true) == ${fields.token[0]} end

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

-- Other names of the entry: they have its braces, and with them its slot. No prefix has braces.
local function nameOf(what, name)
  local from, to = find(name, '}:entry:', 1, true)
  return sub(name, 1, from) .. ':' .. what .. sub(name, to)
end

local function withOutcome(entry, name)
  if #entry > ${entryLength} or not isIn(entry, 'settled') then return entry end
  local outcome = call('GET', nameOf('outcome', name))
  return outcome and entry .. '\\n' .. outcome or entry
end

local function renew(name, entry, lease)
  local times, forgotten = timesFrom(entry, now + lease)
  write(name, sub(entry, 1, 19) .. times .. sub(entry, 70), forgotten)
end

local function open(name, entry)
  local times, forgotten = timesFrom(entry, now)
  write(name, 'open    ' .. sub(entry, 9, 19) .. times .. sub(entry, 70), forgotten)
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

/** What stands in a record after the words: which of the durations, and how many of the bytes. */
export const tailLength = 14
/** In the place of a number of bytes. */
export const noBytes: string = '-'.repeat(10)

/**
 * KEYS: the register, the mark, and the name of the entry of each call. ARGV[7] has a record for each call, all of one width: its words and
 * its tail. ARGV[8] has the bytes of all calls (outcomes, inputs), one after the other, and ARGV[9] and on the durations that occur.
 * `answer` is Lua that is given what belongs to one call, its words by where they start in the records, and returns its answer.
 */
function phase(wordsLength: number, locals: string, answer: string): PhaseScript {
  const recordLength = wordsLength + tailLength
  const loop = `
local records = ARGV[7]
local function answer(name, entry, start, durations, bytes)
${answer}
end
local tails, from = {}, 1
for n = 1, #KEYS - 2 do
  local start = (n - 1) * ${recordLength}
  local tail = sub(records, start + ${wordsLength + 1}, start + ${recordLength})
  local known = tails[tail]
  if not known then
    known = { ARGV[8 + sub(tail, 1, 3)], tonumber(sub(tail, 5)) }
    tails[tail] = known
  end
  local bytes, length = nil, known[2]
  if length then
    bytes = sub(ARGV[8], from, from + length - 1)
    from = from + length
  end
  answers[n + 1] = answer(KEYS[n + 2], found[n + 2], start, known[1], bytes)
end
`
  return { wordsLength, ...scriptOf([beginning, register, entries, locals, loop, ending].join('')) }
}

const claimWordsLength = entryLength - fields.token[0] + 1

/** Words: token, fingerprint and version as in the entry. Durations: lease, keep, tombstone, onTakeover, onExpired. Bytes: input. */
export const claimScript: PhaseScript = phase(
  claimWordsLength,
  `
local late, grants = now > tonumber(ARGV[6]), 0

-- One more for every grant: two lives of a key that fit into one batch have different fences, too.
local function grant(put, name, how, attempt, lastFence, first, durations, rest)
  -- Whatever was lost may have been this key, or its outcome: while in doubt, nobody new is let in.
  if held then return 'quarantined' end
  grants = grants + 1
  local fence = format('%016d', math.max(nowUs + grants, lastFence + 1))
  local times, forgotten = timesOf(durations)
  local granted = how .. times .. attempt .. fence
  put(name, 'running ' .. granted .. ' ' .. first .. ' ' .. rest, forgotten)
  return 'granted ' .. granted
end
`,
  `
  if late then return 'late' end
  local words = sub(records, start + 1, start + ${claimWordsLength})
  local rest = bytes and words .. '\\n' .. bytes or words
  local put = (entry or latest[name] ~= nil) and write or create
  entry = read(name, entry)
  if not entry then return grant(put, name, 'fresh      ', ' 0000000001 ', 0, nowText, durations, rest) end
  if isExpired(entry) then
    if sub(durations, 59) ~= 'run' then return sub(entry, 1, ${entryLength}) end
    assertReadable(entry)
    return grant(put, name, 'fresh      ', ' 0000000001 ', sub(entry, ${at('fence')}), nowText, durations, rest)
  end
  if isIn(entry, 'settled') then return withOutcome(entry, name) end
  if sub(entry, ${at('fingerprint')}) ~= sub(rest, 38, 80) then return entry end
  local isOpen = isIn(entry, 'open')
  if isBy(entry, sub(rest, 1, 36)) then
    if isOpen then return entry end
    renew(name, entry, sub(durations, 1, 16))
    return 'granted ' .. sub(latest[name], 9, ${fields.fence[1]})
  end
  if not isOpen and (nowText < sub(entry, ${at('lease')}) or sub(durations, 52, 57) == 'refuse') then return entry end
  assertReadable(entry)
  -- An attempt that brings no input leaves the one that is there: without it, no worker could take the operation up.
  if not bytes then rest = rest .. sub(entry, ${entryLength + 1}) end
  return grant(put, name, isOpen and 'reopened   ' or 'taken-over ', format(' %010d ', sub(entry, ${at('attempt')}) + 1),
    sub(entry, ${at('fence')}), sub(entry, ${at('first')}), durations, rest)
`,
)

/** In the place of a fence: the release of a claim whose answer was never heard. */
const unheard = '0'.repeat(16)

/**
 * Words: settle, extend, open or forget by its first letter, the fence and the token. Durations: lease, and for a settle (whose
 * lease is over) keep and tombstone. Bytes: outcome.
 */
export const writeScript: PhaseScript = phase(
  55,
  `
-- By their first letters, which make no string.
local verbs = { settle = ${'settle'.charCodeAt(0)}, extend = ${'extend'.charCodeAt(0)}, open = ${'open'.charCodeAt(0)}, forget = ${'forget'.charCodeAt(0)} }

-- The fence, too: a claim that the network delivers once more, when its entry is forgotten, begins a new life with an old token.
local function isHeldBy(entry, verb, fence, token)
  if not isBy(entry, token) then return false end
  if find(entry, fence, ${fields.fence[0]}, true) == ${fields.fence[0]} then return true end
  return fence == '${unheard}' and (verb == verbs.open or verb == verbs.forget)
end

local function settle(name, entry, durations, outcome)
  local times, forgotten, expires = timesOf(durations)
  -- The input is left out: it was there to finish the operation, and would only fill the memory now.
  local settled = 'settled ' .. sub(entry, 9, 19) .. times .. sub(entry, 70, ${entryLength})
  if #outcome <= ${inlineBytesMax} then
    settled = settled .. '\\n' .. outcome
  else
    call('SET', nameOf('outcome', name), outcome, 'PXAT', expires)
  end
  write(name, settled, forgotten)
end

local function release(name, entry, verb)
  if verb == verbs.open or sub(entry, ${at('attempt')}) ~= '0000000001' then return open(name, entry) end
  remove(name)
end
`,
  `
  local verb = byte(records, start + 1)
  local fence, token = sub(records, start + 3, start + 18), sub(records, start + 20, start + 55)
  entry = read(name, entry)
  -- The trace is gone already: this is the same release once more, or of a claim that never arrived.
  if not entry then return verb == verbs.forget and 1 or 0 end
  if isExpired(entry) or not isHeldBy(entry, verb, fence, token) then return 0 end
  -- The lease decides when others may try; token and fence decide who may write. Hence abandoned is held, too.
  if isIn(entry, 'running') then
    if verb == verbs.settle then settle(name, entry, durations, bytes)
    elseif verb == verbs.extend then renew(name, entry, sub(durations, 1, 16))
    else release(name, entry, verb) end
    return 1
  end
  -- The same call once more, after its reply was lost.
  if verb == verbs.settle and isIn(entry, 'settled') then return 1 end
  if (verb == verbs.open or verb == verbs.forget) and isIn(entry, 'open') then return 1 end
  return 0
`,
)

/** Words: look, release or forget. Durations: how long and how many records of it are kept. Bytes: the reason. */
export const inspectScript: PhaseScript = phase(
  7,
  '',
  `
  local words = sub(records, start + 1, start + 7)
  -- MGET has nothing to say of what is no string, and that is not absent.
  if not entry then call('STRLEN', name) end
  entry = read(name, entry)
  if not entry then return 'absent' end
  local before = withOutcome(entry, name)
  if words == 'look   ' then return before end
  if words == 'release' and (isExpired(entry) or not isIn(entry, 'running')) then return before end
  local auditName = nameOf('audit', name)
  call('RPUSH', auditName, nowText .. ' ' .. words .. ' ' .. sub(entry, 1, ${entryLength}) .. ' ' .. bytes)
  call('LTRIM', auditName, format('%d', -sub(durations, 18, 22)), -1)
  call('PEXPIRE', auditName, format('%d', sub(durations, 1, 16)))
  if words == 'release' then
    open(name, entry)
  else
    call('DEL', nameOf('outcome', name))
    remove(name)
  end
  return before
`,
)
