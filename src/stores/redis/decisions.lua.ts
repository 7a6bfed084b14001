// The three scripts that decide: claims, writes, and inspection. Each carries out a batch of calls. Everything that a call
// depends on (the entry, the register of the dataset, the server's clock) is read and written inside, so that nothing can come
// in between. A script returns a heading, then a reply to each call: 1 for done and 0 for lost, 'granted …', or the entry as
// it is, from which the caller reads why the key was not granted.
//
// KEYS: the register, the mark, and the name of each call's entry. ARGV: see `valueAt`. `records` has a record for each call,
// all of one width: its words and its tail. `bytes` has the bytes of all calls (outcomes, inputs) one after the other. The
// durations that occur follow it.
//
// Every string that Lua makes is hashed, and a command costs as much as a dozen of them. Hence one MGET for all.

import { markKeeping, registerCheck } from './data-loss.ts'
import {
  auditPlaces,
  claimWords,
  durationPlaces,
  entryLength,
  entryPlaces,
  firstDigit,
  inspectWords,
  keyAt,
  lengthOf,
  mendingPlaces,
  recordTail,
  valueAt,
  writeWords,
} from './places.ts'
import type { Place, Places } from './places.ts'
import { scriptOf } from './scripts.ts'
import type { Script } from './scripts.ts'

/** The words of its calls have one width. */
export interface PhaseScript extends Script {
  readonly wordsLength: number
}

const at = ({ from, to }: Place): string => `${from}, ${to}`
/** The same in `records`, where the record of a call comes after `start`. */
const inRecord = ({ from, to }: Place): string => `start + ${from}, start + ${to}`
/** The first letter as a number: comparing it makes no string. */
const letter = (word: string): number => word.charCodeAt(0)
const number = ({ width }: Place): string => `%0${width}d`
const digits = (place: Place): string => firstDigit(place) + '%d'.repeat(place.width - 1)

const entry = entryPlaces
const times = [entry.lease, entry.expires, entry.forgotten].map(number).join(' ')
const firstAttempt = '1'.padStart(entry.attempt.width, '0')
/** In the place of a fence: the release of a claim whose reply was never heard. */
const unheard = '0'.repeat(entry.fence.width)
const keysBefore = Object.keys(keyAt).length
const tailLength = lengthOf(recordTail)

// An entry as a pattern. It costs as much as a write, so only what would let a key run again looks at it.
const shape = [
  '.'.repeat(entry.state.width),
  '[%l%- ]'.repeat(entry.how.width),
  ...[entry.lease, entry.expires, entry.forgotten, entry.attempt, entry.fence, entry.first].map(digits),
  '%S'.repeat(entry.token.width),
  '%S'.repeat(entry.fingerprint.width),
  digits(entry.version),
].join(' ')

/** In the place of an entry that was damaged when a person had it forgotten. */
export const damagedText = 'damaged'

/**
 * An outcome under its own name goes by itself when its entry becomes a tombstone, but costs a second write. A small one is not
 * worth it, and stays with its entry until that is forgotten.
 */
export const inlineBytesMax = 512

/**
 * An entry that is forgotten sooner than this leaves its fence in the floor, as one does that is removed. A native claim is stamped
 * before it is sent, and believed for a second at the most: one that was stamped before a longer life began is not believed after it.
 */
export const shortLifeMs = 5_000
// Longer than any claim is believed.
const floorKeepMs = 60_000
const registerWord = 'register'

const opening = /* lua */ `
local call, sub, byte, find, format = redis.call, string.sub, string.byte, string.find, string.format
local time = call('TIME')
local nowUs = time[1] * 1000000 + time[2]
local now = math.floor(nowUs / 1000)
local nowText = format('${number(entry.lease)}', now)
local written = false
local found = call('MGET', unpack(KEYS))
local answers = { '' }
${registerCheck}
local function isReadable(entry)
  local state = sub(entry, ${at(entry.state)})
  local isState = state == 'running' or state == 'settled' or state == 'open   '
  return isState and find(entry, '^${shape}')
end

-- What is damaged is never taken for absent, expired or abandoned.
local function assertReadable(entry)
  if not isReadable(entry) then error('UNREADABLE entry') end
end

-- What this script has written already: a key can be in one batch twice.
local latest = {}

-- The highest fence of what is gone, or will be gone soon. A native claim that was stamped earlier and arrives later looks at it.
local function raiseFloor(entry)
  local floor, fence = sub(KEYS[${keyAt.register}], 1, -${registerWord.length + 1}) .. 'floor', sub(entry, ${at(entry.fence)})
  local raised, gone = call('GET', floor), fence .. ' ' .. sub(entry, ${at(entry.token)})
  if find(fence, '^%d+$') and (not raised or raised < gone) then call('SET', floor, gone, 'PX', ${floorKeepMs}) end
end

-- As wide as what it is compared with.
local soon = format('%d', now + ${shortLifeMs})
local function write(name, entry, forgotten)
  if forgotten < soon then raiseFloor(entry) end
  call('SET', name, entry, 'PXAT', forgotten)
  latest[name] = entry
  written = true
end

-- MGET returns nothing for a list or a hash, and SET would overwrite it.
local function create(name, entry, forgotten)
  if forgotten < soon then raiseFloor(entry) end
  if not call('SET', name, entry, 'NX', 'PXAT', forgotten) then error('WRONGTYPE this name holds no entry') end
  latest[name] = entry
  written = true
end

-- The removal first: a server without memory takes it, and what a script writes after its first write.
local function remove(name, entry)
  call('DEL', name)
  raiseFloor(entry)
  latest[name] = false
  written = true
end

local function isExpired(entry) return nowText >= sub(entry, ${at(entry.expires)}) end

-- Nil when there is none, or none any more. Nothing is forgotten before it expires.
local function read(name, entry)
  if latest[name] ~= nil then entry = latest[name] end
  if not entry then return nil end
  if isExpired(entry) and nowText >= sub(entry, ${at(entry.forgotten)}) then
    assertReadable(entry)
    return nil
  end
  return entry
end

-- By their first letters, which make no string.
local states = { settled = ${letter('settled')}, running = ${letter('running')}, open = ${letter('open')} }
local function isIn(entry, state) return byte(entry) == states[state] end

local function isBy(entry, token) return find(entry, token, ${entry.token.from}, true) == ${entry.token.from} end

-- The times of an entry whose lease ends then, with the durations that it has: for the entry, and for PXAT.
local function timesFrom(entry, lease)
  local expires = lease + sub(entry, ${at(entry.expires)}) - sub(entry, ${at(entry.lease)})
  local forgotten = expires + sub(entry, ${at(entry.forgotten)}) - sub(entry, ${at(entry.expires)})
  return format('${times}', lease, expires, forgotten), format('%d', forgotten)
end

-- The same from durations as text. Most calls of a batch have the same.
local worked = {}
local function timesOf(durations)
  local times = worked[durations]
  if times then return times[1], times[2], times[3] end
  local lease = now + sub(durations, ${at(durationPlaces.lease)})
  local expires = lease + sub(durations, ${at(durationPlaces.keep)})
  local forgotten = expires + sub(durations, ${at(durationPlaces.tombstone)})
  times = { format('${times}', lease, expires, forgotten), format('%d', forgotten), format('%d', expires) }
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

-- The same entry in this state (as wide as its place, with the blank) and with these times.
local function changed(entry, state, times)
  return state .. sub(entry, ${entry.how.from}, ${entry.lease.from - 1}) .. times .. sub(entry, ${entry.forgotten.to + 1})
end

local function renew(name, entry, lease)
  local times, forgotten = timesFrom(entry, now + lease)
  write(name, changed(entry, 'running ', times), forgotten)
end

local function open(name, entry)
  local times, forgotten = timesFrom(entry, now)
  write(name, changed(entry, 'open    ', times), forgotten)
end

-- The input is left out: it was there to finish the operation, and would only fill the memory now.
local function settle(name, entry, outcome, times, forgotten, expires)
  local how, rest = sub(entry, ${entry.how.from}, ${entry.lease.from - 1}), sub(entry, ${entry.forgotten.to + 1}, ${entryLength})
  local settled = 'settled ' .. how .. times .. rest
  if #outcome <= ${inlineBytesMax} then
    settled = settled .. '\\n' .. outcome
  else
    call('SET', nameOf('outcome', name), outcome, 'PXAT', expires)
  end
  write(name, settled, forgotten)
end
`

/** Needs `reply`, which is given what belongs to one call, its words by where they start in the records. */
const everyCall = (words: Places<string>): string => /* lua */ `
local tails, from = {}, 1
for n = 1, #KEYS - ${keysBefore} do
  local start = (n - 1) * ${lengthOf(words) + tailLength}
  local tail = sub(records, start + ${lengthOf(words) + 1}, start + ${lengthOf(words) + tailLength})
  local known = tails[tail]
  if not known then
    known = { ARGV[${valueAt.bytes} + sub(tail, ${at(recordTail.durations)})], tonumber(sub(tail, ${at(recordTail.bytes)})) }
    tails[tail] = known
  end
  local bytes, length = nil, known[2]
  if length then
    bytes = sub(ARGV[${valueAt.bytes}], from, from + length - 1)
    from = from + length
  end
  answers[n + 1] = reply(KEYS[n + ${keysBefore}], found[n + ${keysBefore}], start, known[1], bytes)
end
${markKeeping}
return answers
`

function phase(words: Places<string>, source: string): PhaseScript {
  return { wordsLength: lengthOf(words), ...scriptOf(`${opening}${source}${everyCall(words)}`) }
}

/** Words: `claimWords`. Durations: `durationPlaces`. Bytes: the input. */
export const claimScript: PhaseScript = phase(
  claimWords,
  /* lua */ `
local records = ARGV[${valueAt.records}]
local late, grants = now > tonumber(ARGV[${valueAt.notAfterMs}]), 0

-- One more for every grant: two lives of a key that fit into one batch have different fences, too.
local function grant(put, name, how, attempt, lastFence, first, durations, rest)
  -- What was lost may have been this key, or its outcome: while in doubt, no new claim is let in.
  if held then return 'quarantined' end
  grants = grants + 1
  local fence = format('${number(entry.fence)}', math.max(nowUs + grants, lastFence + 1))
  local times, forgotten = timesOf(durations)
  local granted = how .. times .. attempt .. fence
  put(name, 'running ' .. granted .. ' ' .. first .. ' ' .. rest, forgotten)
  return 'granted ' .. granted
end

local function reply(name, entry, start, durations, bytes)
  if late then return 'late' end
  local words = sub(records, start + 1, start + ${lengthOf(claimWords)})
  local rest = bytes and words .. '\\n' .. bytes or words
  local put = (entry or latest[name] ~= nil) and write or create
  entry = read(name, entry)
  if not entry then return grant(put, name, 'fresh      ', ' ${firstAttempt} ', 0, nowText, durations, rest) end
  if isExpired(entry) then
    if sub(durations, ${at(durationPlaces.onExpired)}) ~= 'run   ' then return sub(entry, 1, ${entryLength}) end
    assertReadable(entry)
    return grant(put, name, 'fresh      ', ' ${firstAttempt} ', sub(entry, ${at(entry.fence)}), nowText, durations, rest)
  end
  if isIn(entry, 'settled') then return withOutcome(entry, name) end
  if sub(entry, ${at(entry.fingerprint)}) ~= sub(rest, ${at(claimWords.fingerprint)}) then return entry end
  local isOpen = isIn(entry, 'open')
  if isBy(entry, sub(rest, ${at(claimWords.token)})) then
    if isOpen then return entry end
    renew(name, entry, sub(durations, ${at(durationPlaces.lease)}))
    return 'granted ' .. sub(latest[name], ${entry.how.from}, ${entry.fence.to})
  end
  local isLeased = nowText < sub(entry, ${at(entry.lease)})
  if not isOpen and (isLeased or sub(durations, ${at(durationPlaces.onTakeover)}) == 'refuse') then return entry end
  assertReadable(entry)
  -- An attempt that brings no input leaves the one that is there: without it, no worker could resume the operation.
  if not bytes then rest = rest .. sub(entry, ${entryLength + 1}) end
  local attempt = format(' ${number(entry.attempt)} ', sub(entry, ${at(entry.attempt)}) + 1)
  return grant(put, name, isOpen and 'reopened   ' or 'taken-over ', attempt, sub(entry, ${at(entry.fence)}),
    sub(entry, ${at(entry.first)}), durations, rest)
end
`,
)

/** Words: `writeWords`. Durations: an extend has its lease, a settle 0, keep and tombstone. Bytes: the outcome. */
export const writeScript: PhaseScript = phase(
  writeWords,
  /* lua */ `
local records = ARGV[${valueAt.records}]
-- By their first letters, which make no string.
local verbs = { settle = ${letter('settle')}, extend = ${letter('extend')}, open = ${letter('open')}, forget = ${letter('forget')} }

-- The fence, too: a claim that the network delivers again after its entry was forgotten begins a new life with an old token.
local function isHeldBy(entry, verb, fence, token)
  if not isBy(entry, token) then return false end
  if find(entry, fence, ${entry.fence.from}, true) == ${entry.fence.from} then return true end
  return fence == '${unheard}' and (verb == verbs.open or verb == verbs.forget)
end

local function release(name, entry, verb)
  if verb == verbs.open or sub(entry, ${at(entry.attempt)}) ~= '${firstAttempt}' then return open(name, entry) end
  remove(name, entry)
end

local function reply(name, entry, start, durations, bytes)
  local verb = byte(records, start + ${writeWords.verb.from})
  local fence, token = sub(records, ${inRecord(writeWords.fence)}), sub(records, ${inRecord(writeWords.token)})
  entry = read(name, entry)
  -- The trace is gone already: this is the same release again, or the release of a claim that never arrived.
  if not entry then return verb == verbs.forget and 1 or 0 end
  if isExpired(entry) or not isHeldBy(entry, verb, fence, token) then return 0 end
  -- The lease decides when others may try. Token and fence decide who may write, so an abandoned entry is still held.
  if isIn(entry, 'running') then
    if verb == verbs.settle then settle(name, entry, bytes, timesOf(durations))
    elseif verb == verbs.extend then renew(name, entry, sub(durations, ${at(durationPlaces.lease)}))
    else release(name, entry, verb) end
    return 1
  end
  -- The same call again, after its reply was lost.
  if verb == verbs.settle and isIn(entry, 'settled') then return 1 end
  if (verb == verbs.open or verb == verbs.forget) and isIn(entry, 'open') then return 1 end
  return 0
end
`,
)

/** Words: `inspectWords`. Durations: `mendingPlaces`. Bytes: the reason, and after it the outcome of a resolve. */
export const inspectScript: PhaseScript = phase(
  inspectWords,
  /* lua */ `
local records = ARGV[${valueAt.records}]

-- Whether this action changes an entry in this state.
local function isFor(action, entry)
  if action == 'forget ' then return true end
  if isExpired(entry) then return false end
  if action == 'release' then return isIn(entry, 'running') end
  if action == 'resolve' then return not isIn(entry, 'settled') end
  return not isIn(entry, 'running') or nowText >= sub(entry, ${at(entry.lease)})
end

local function audit(name, action, entry, durations, reason)
  local auditName = nameOf('audit', name)
  call('RPUSH', auditName, nowText .. ' ' .. action .. ' ' .. sub(entry, 1, ${auditPlaces.before.width}) .. ' ' .. reason)
  call('LTRIM', auditName, format('%d', -sub(durations, ${at(mendingPlaces.auditRecords)})), -1)
  call('PEXPIRE', auditName, format('%d', sub(durations, ${at(mendingPlaces.auditKeep)})))
end

-- Another fence: to the holder that is pushed out, this must not look like a settle of its own.
local function resolve(name, entry, outcome, durations)
  local expires = now + sub(durations, ${at(mendingPlaces.keep)})
  local forgotten = expires + sub(durations, ${at(mendingPlaces.tombstone)})
  local fence = format('${number(entry.fence)}', math.max(nowUs, sub(entry, ${at(entry.fence)}) + 1))
  local fenced = sub(entry, 1, ${entry.fence.from - 1}) .. fence .. sub(entry, ${entry.fence.to + 1})
  settle(name, fenced, outcome, format('${times}', now, expires, forgotten), format('%d', forgotten), format('%d', expires))
end

local function keep(name, entry, durations)
  local lease, expires, forgotten = sub(entry, ${at(entry.lease)}), sub(entry, ${at(entry.expires)}), sub(entry, ${at(entry.forgotten)})
  local kept = math.max(expires, now + sub(durations, ${at(mendingPlaces.keep)}))
  local gone = kept + forgotten - expires
  local state = sub(entry, 1, ${entry.how.from - 1})
  write(name, changed(entry, state, format('${times}', lease, kept, gone)), format('%d', gone))
  call('PEXPIREAT', nameOf('outcome', name), format('%d', kept))
end

local function reply(name, entry, start, durations, bytes)
  local action = sub(records, ${inRecord(inspectWords.action)})
  -- MGET returns nothing for what is no string, and that is not absent.
  if not entry then call('STRLEN', name) end
  -- What is damaged can be forgotten, and nothing else.
  if action == 'forget ' and latest[name] == nil and entry and not isReadable(entry) then
    local damaged = '${damagedText}' .. string.rep(' ', ${auditPlaces.before.width - damagedText.length})
    audit(name, action, damaged, durations, sub(bytes, 1, tonumber(sub(durations, ${at(mendingPlaces.reason)}))))
    call('DEL', name, nameOf('outcome', name))
    latest[name] = false
    written = true
    return '${damagedText}'
  end
  entry = read(name, entry)
  if not entry then return 'absent' end
  local before = withOutcome(entry, name)
  if action == 'look   ' or not isFor(action, entry) then return before end
  if action ~= 'forget ' then assertReadable(entry) end
  local reasonLength = tonumber(sub(durations, ${at(mendingPlaces.reason)}))
  audit(name, action, entry, durations, sub(bytes, 1, reasonLength))
  if action == 'release' then open(name, entry)
  elseif action == 'resolve' then resolve(name, entry, sub(bytes, reasonLength + 1), durations)
  elseif action == 'keep   ' then keep(name, entry, durations)
  else
    call('DEL', nameOf('outcome', name))
    remove(name, entry)
  end
  return before
end
`,
)
