// Sessions on Redis. A session is one hash: its state in words, `r<sequence>` for a request that is in flight or answered, `o<sequence>`
// for its answer. So a script touches one key, and every decision is one script on the server's clock. The rules are those of rules.ts.

const opening = /* lua */ `
local key = KEYS[1]
local call = redis.call
local time = call('TIME')
local nowUs = time[1] * 1000000 + time[2]
local now = math.floor(nowUs / 1000)
-- Lua writes large numbers with an exponent.
local function whole(number) return string.format('%.0f', number) end
local state = call('HMGET', key, 'epoch', 'floor', 'last', 'fence', 'until', 'closed', 'window')
local epoch, floor, last, fence = tonumber(state[1]), tonumber(state[2]), tonumber(state[3]), tonumber(state[4])
local leaseUntil, isClosed = tonumber(state[5]), state[6] == '1'
local function refused(code)
  return { 'refused', code, whole(epoch or 0), whole(floor or 0), whole(last or 0) }
end
local function sessionRefusal(asked)
  if not epoch or isClosed or now >= leaseUntil then return 'SESSION_EXPIRED' end
  if asked < epoch then return 'FENCED' end
  if asked > epoch then return 'SESSION_EXPIRED' end
end
local function keepUntil(untilMs, tombstoneMs)
  call('HSET', key, 'until', whole(untilMs))
  call('PEXPIREAT', key, whole(untilMs + tombstoneMs))
end
-- token, attempt, fence, end of the lease, fingerprint. What is damaged is never taken for absent.
local function readRequest(text)
  local token, attempt, heldFence, heldUntil, fingerprint = string.match(text, '^(%S+) (%d+) (%d+) (%d+) (%S+)$')
  if not token then error('a request of the session ' .. key .. ' cannot be read: ' .. text) end
  return token, attempt, heldFence, heldUntil, fingerprint
end
`

/** ARGV: leaseMs, tombstoneMs, window. */
export const registerScript: string = /* lua */ `${opening}
local nextEpoch = math.max((epoch or 0) + 1, now)
local nextFence = math.max((fence or 0) + 1, nowUs)
call('DEL', key)
call('HSET', key, 'epoch', whole(nextEpoch), 'floor', '0', 'last', '0', 'fence', whole(nextFence), 'closed', '0',
  'window', ARGV[3])
keepUntil(now + tonumber(ARGV[1]), tonumber(ARGV[2]))
return whole(nextEpoch)`

/** ARGV: epoch, leaseMs, tombstoneMs. */
export const keepAliveScript: string = /* lua */ `${opening}
local why = sessionRefusal(tonumber(ARGV[1]))
if why then return refused(why) end
keepUntil(now + tonumber(ARGV[2]), tonumber(ARGV[3]))
return { 'done' }`

/** ARGV: epoch, tombstoneMs. What is in flight finds its request gone. */
export const closeScript: string = /* lua */ `${opening}
local why = sessionRefusal(tonumber(ARGV[1]))
if why then return refused(why) end
call('DEL', key)
call('HSET', key, 'epoch', state[1], 'floor', state[2], 'last', state[3], 'fence', state[4], 'closed', '1',
  'window', state[7])
keepUntil(now, tonumber(ARGV[2]))
return { 'done' }`

/** ARGV: epoch, sequence, acknowledged, fingerprint, token, lease of the attempt, leaseMs, tombstoneMs, window, strict. */
export const claimScript: string = /* lua */ `${opening}
local sequence, acknowledged, window = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[9])
local why = sessionRefusal(tonumber(ARGV[1]))
if why then return refused(why) end
if sequence <= floor then return refused('FORGOTTEN') end
local known = call('HGET', key, 'r' .. ARGV[2])
local token, attempt, heldFence, heldUntil = '-', '0', '0', '0'
if known then
  local fingerprint
  token, attempt, heldFence, heldUntil, fingerprint = readRequest(known)
  if fingerprint ~= ARGV[4] then return refused('MISMATCH') end
else
  if sequence > math.max(floor, acknowledged) + window then return refused('WINDOW_EXCEEDED') end
  if ARGV[10] == '1' and sequence > last + 1 then return refused('GAP') end
end
local nextFloor = math.max(floor, acknowledged)
for number = floor + 1, math.min(nextFloor, last) do
  call('HDEL', key, 'r' .. whole(number), 'o' .. whole(number))
end
local nextFence = math.max(fence + 1, nowUs)
call('HSET', key, 'floor', whole(nextFloor), 'last', whole(math.max(last, sequence)), 'fence', whole(nextFence),
  'window', ARGV[9])
keepUntil(now + tonumber(ARGV[7]), tonumber(ARGV[8]))
local outcome = call('HGET', key, 'o' .. ARGV[2])
if outcome then return { 'settled', attempt, outcome } end
local isOurs = known and token == ARGV[5]
if known and not isOurs and now < tonumber(heldUntil) then
  return { 'busy', whole(tonumber(heldUntil) - now) }
end
local how = 'fresh'
if known and not isOurs then how = token == '-' and 'reopened' or 'taken-over' end
if not isOurs then
  attempt = whole(tonumber(attempt) + 1)
  heldFence = whole(nextFence)
end
local lease = whole(now + tonumber(ARGV[6]))
call('HSET', key, 'r' .. ARGV[2], ARGV[5] .. ' ' .. attempt .. ' ' .. heldFence .. ' ' .. lease .. ' ' .. ARGV[4])
return { 'granted', how, attempt, heldFence }`

/** ARGV: epoch, sequence, token, fence, what, and the lease of the attempt or the outcome. */
export const writeScript: string = /* lua */ `${opening}
if not epoch then return { 'lost' } end
if epoch ~= tonumber(ARGV[1]) then return refused('FENCED') end
if isClosed then return refused('SESSION_EXPIRED') end
local known = call('HGET', key, 'r' .. ARGV[2])
if not known then return { 'lost' } end
local token, attempt, heldFence, heldUntil, fingerprint = readRequest(known)
if token ~= ARGV[3] or (ARGV[4] ~= '0' and heldFence ~= ARGV[4]) then return { 'lost' } end
local function put(holder, untilMs)
  call('HSET', key, 'r' .. ARGV[2], holder .. ' ' .. attempt .. ' ' .. heldFence .. ' ' .. whole(untilMs) .. ' ' .. fingerprint)
end
if ARGV[5] == 'extend' then
  put(token, now + tonumber(ARGV[6]))
elseif ARGV[5] == 'settle' then
  call('HSETNX', key, 'o' .. ARGV[2], ARGV[6])
elseif call('HEXISTS', key, 'o' .. ARGV[2]) == 0 then
  put('-', now)
end
return { 'done' }`

/** ARGV: 'numbers' for those of the requests, too. They come as lists in one text each: let in, and answered. */
export const showScript: string = /* lua */ `${opening}
if not epoch then return false end
local numbers = { r = {}, o = {} }
for _, name in ipairs(call('HKEYS', key)) do
  local kind, number = string.match(name, '^([ro])(%d+)$')
  if kind then table.insert(numbers[kind], number) end
end
local reply = { whole(now), state[1], state[2], state[3], state[5], state[6], state[7], whole(#numbers.r) }
if ARGV[1] == 'numbers' then
  table.insert(reply, table.concat(numbers.r, ' '))
  table.insert(reply, table.concat(numbers.o, ' '))
end
return reply`
