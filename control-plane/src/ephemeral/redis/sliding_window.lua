-- A sliding-window rate limiter. Counts one call against each limit, or against none if any limit is exhausted. Can also
-- report the status without counting a call.
--
-- KEYS: one list per limit, with the times of its calls in microseconds, oldest first.
-- ARGV: '1' to count the call or '0' to report only; then for each limit its number of calls and its window in microseconds.
-- Returns: 1 if the call is allowed, else 0; then for each limit the remaining calls and the time until one more is available.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local count_call = ARGV[1] == '1'

-- Formats a number without an exponent, which Lua would use for large numbers.
local function format_number(number)
    return string.format('%.0f', number)
end

-- The number of calls at or before a time, by binary search in the sorted list.
local function count_until(key, count, time)
    local low, high = 0, count
    while low < high do
        local middle = math.floor((low + high) / 2)
        if (tonumber(redis.call('LINDEX', key, middle)) or 0) <= time then
            low = middle + 1
        else
            high = middle
        end
    end
    return low
end

-- The number of calls in a list. A key with other content was not written by this script; it is deleted, so that it does not
-- block the caller.
local function length(key)
    local count = redis.pcall('LLEN', key)
    if type(count) == 'number' then
        if count == 0 or (tonumber(redis.call('LINDEX', key, 0)) and tonumber(redis.call('LINDEX', key, -1))) then
            return count
        end
    elseif not string.find(count.err, 'WRONGTYPE') then
        error(count.err)
    end
    redis.call('DEL', key)
    return 0
end

-- Removes expired calls and returns the number of the remaining ones. If the clock went back, for example after a failover,
-- recorded calls lie in the future. Their true time is unknown, so it is set to now: no extra call is allowed, and no caller
-- waits longer than one window.
local function remove_expired(key, window)
    local count = length(key)
    if count == 0 then
        return 0
    end
    if tonumber(redis.call('LINDEX', key, 0)) <= now - window then
        local expired = count_until(key, count, now - window)
        redis.call('LTRIM', key, expired, -1)
        count = count - expired
    end
    if count > 0 and tonumber(redis.call('LINDEX', key, -1)) > now then
        local past = count_until(key, count, now)
        if past == 0 then
            redis.call('DEL', key)
        else
            redis.call('LTRIM', key, 0, past - 1)
        end
        for _ = past + 1, count do
            redis.call('RPUSH', key, format_number(now))
        end
        redis.call('PEXPIRE', key, math.ceil(window / 1000))
    end
    return count
end

local function status(key, count, max_calls, window)
    local remaining = math.max(max_calls - count, 0)
    local reset_after = 0
    if count > 0 then
        -- After a limit was lowered, the list may contain more calls than it allows. A call becomes available when the
        -- surplus and one more call have expired.
        reset_after = math.max((tonumber(redis.call('LINDEX', key, math.max(count - max_calls, 0))) or now) + window - now, 0)
    end
    return remaining, reset_after
end

local counts, allowed = {}, true
for index, key in ipairs(KEYS) do
    local max_calls, window = tonumber(ARGV[2 * index]), tonumber(ARGV[2 * index + 1])
    counts[index] = remove_expired(key, window)
    allowed = allowed and counts[index] < max_calls
end

local reply = { allowed and 1 or 0 }
for index, key in ipairs(KEYS) do
    local max_calls, window = tonumber(ARGV[2 * index]), tonumber(ARGV[2 * index + 1])
    if count_call and allowed then
        counts[index] = redis.call('RPUSH', key, format_number(now))
        redis.call('PEXPIRE', key, math.ceil(window / 1000))
    end
    local remaining, reset_after = status(key, counts[index], max_calls, window)
    reply[#reply + 1] = remaining
    reply[#reply + 1] = reset_after
end
return reply
