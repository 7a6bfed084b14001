// The register of a dataset, as Lua. It holds the lineage (which dataset this is), the lineage before it whose loss is known,
// until when new claims are refused, since when, and the evidence. Beside it, each instance has a mark that counts its writes.

import { headingPlaces, keyAt, registerPlaces, valueAt } from '../places.ts'
import type { Place } from '../places.ts'
import { scriptOf } from '../scripts.ts'
import type { Script } from '../scripts.ts'

const at = ({ from, to }: Place): string => `${from}, ${to}`
const { lineage, before, hold, since, evidence } = registerPlaces

/**
 * Stands at the beginning of every script, and leaves `held`: new claims are refused. It needs the names' values in `found`,
 * `now` in milliseconds, `nowUs` in microseconds, and `nowText` as wide as a place.
 */
export const registerCheck: string = `
local lineage, hold, mark, evidence = '-', '-', tonumber(found[${keyAt.mark}] or 0), 'none'
local register, known = found[${keyAt.register}], ARGV[${valueAt.lineage}]
if register then
  lineage, hold = sub(register, ${at(lineage)}), sub(register, ${at(hold)})
  if hold ~= '${'-'.padEnd(hold.width)}' and hold ~= '${'on'.padEnd(hold.width)}' and hold <= nowText then hold = '-' end
end
if known ~= lineage then
  if lineage == '-' then evidence = 'emptied'
  elseif known ~= '-' and known ~= sub(register, ${at(before)}) then evidence = 'replaced' end
elseif mark < tonumber(ARGV[${valueAt.mark}]) then
  evidence = 'went-back'
end
if lineage == '-' or evidence ~= 'none' then
  -- A lineage that another instance began stays. Two instances would otherwise replace each other's for ever.
  if evidence ~= 'replaced' then lineage = ARGV[${valueAt.instance}] .. format('-%016d', nowUs) end
  local onLoss = ARGV[${valueAt.onLoss}]
  if evidence ~= 'none' and onLoss == 'on' then hold = 'on'
  elseif evidence ~= 'none' and onLoss ~= '-' then hold = format('%0${hold.width}d', now + onLoss) end
  call('SET', KEYS[${keyAt.register}],
    format('%s %-${before.width}s %-${hold.width}s %s %-${evidence.width}s', lineage, known, hold, nowText, evidence))
end
local held = sub(hold, 1, 1) ~= '-'
`

/** Stands at the end of every script: counts what was written, and returns what the caller has to know of the dataset. */
export const markKeeping: string = `
if written then
  mark = mark + 1
  call('SET', KEYS[${keyAt.mark}], format('%d', mark), 'PX', ARGV[${valueAt.markKeepMs}])
end
answers[1] = format('%s %s %0${headingPlaces.mark.width}d %s', nowText, lineage, mark, evidence)
`

// KEYS: the register. ARGV[1]: the instance, for a dataset without a register.
const reading = `
local call, sub, format = redis.call, string.sub, string.format
local time = call('TIME')
local nowText = format('%0${hold.width}d', math.floor((time[1] * 1000000 + time[2]) / 1000))
local register = call('GET', KEYS[1]) or
  format('%s-%016d %-${before.width}s %-${hold.width}s', ARGV[1], 0, '-', '-')
local hold = sub(register, ${at(hold)})
local held = sub(hold, 1, 1) ~= '-' and hold > nowText
`

/** Returns until when, since when and the evidence, from there on as the register has them. */
export const lookScript: Script = scriptOf(`${reading}
return held and sub(register, ${hold.from}) or false
`)

/** ARGV[2]: 'on', or for how long. ARGV[3]: the evidence. */
export const holdScript: Script = scriptOf(`${reading}
if held then return 0 end
local untilMs = ARGV[2] == 'on' and 'on' or format('%0${hold.width}d', nowText + ARGV[2])
call('SET', KEYS[1], sub(register, 1, ${before.to}) .. format(' %-${hold.width}s %s %s', untilMs, nowText, ARGV[3]))
return 1
`)

/** KEYS[2]: the log. ARGV[2] to [4]: the reason, how long the log is kept, and how many records it has. */
export const endScript: Script = scriptOf(`${reading}
if not held then return 0 end
call('RPUSH', KEYS[2], nowText .. ' ' .. sub(register, ${since.from}) .. ' ' .. ARGV[2])
call('LTRIM', KEYS[2], '-' .. ARGV[4], -1)
call('PEXPIRE', KEYS[2], ARGV[3])
call('SET', KEYS[1], sub(register, 1, ${before.to}) .. format(' %-${hold.width}s ', '-') .. sub(register, ${since.from}))
return 1
`)
