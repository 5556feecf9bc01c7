-- Takes one call out of each window, or, if any has none left, out of none; or only looks.
--
-- KEYS: a window each, a list of the instants of its calls, in microseconds, the oldest first.
-- ARGV: '1' to take or '0' to look; then for each window how many calls it has and how long it is in microseconds.
-- Answers: 1 if granted, else 0; then for each window what is left and after how long one more comes free.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local take = ARGV[1] == '1'

-- As a number is written: without an exponent.
local function text(number)
    return string.format('%.0f', number)
end

-- How many of the first calls are at most as late as an instant. They are in their order, so half of them is spared
-- with each question.
local function until_instant(key, count, instant)
    local low, high = 0, count
    while low < high do
        local middle = math.floor((low + high) / 2)
        if (tonumber(redis.call('LINDEX', key, middle)) or 0) <= instant then
            low = middle + 1
        else
            high = middle
        end
    end
    return low
end

-- How many calls there are. What is no list of instants was written by nobody of ours, and stands in nobody's way.
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

-- Forgets what is over. Where a clock went back, as after a failover, calls lie in the future: when they were is not
-- known, so they count from now. So no more pass than may, and nobody waits for longer than a window.
local function tidy(key, window)
    local count = length(key)
    if count == 0 then
        return 0
    end
    if tonumber(redis.call('LINDEX', key, 0)) <= now - window then
        local over = until_instant(key, count, now - window)
        redis.call('LTRIM', key, over, -1)
        count = count - over
    end
    if count > 0 and tonumber(redis.call('LINDEX', key, -1)) > now then
        local past = until_instant(key, count, now)
        if past == 0 then
            redis.call('DEL', key)
        else
            redis.call('LTRIM', key, 0, past - 1)
        end
        for _ = past + 1, count do
            redis.call('RPUSH', key, text(now))
        end
        redis.call('PEXPIRE', key, math.ceil(window / 1000))
    end
    return count
end

local function reading(key, count, most, window)
    local left = math.max(most - count, 0)
    local wait = 0
    if count > 0 then
        -- Where a limit was lowered there are more than may be: one comes free when all but one of those are over.
        wait = math.max((tonumber(redis.call('LINDEX', key, math.max(count - most, 0))) or now) + window - now, 0)
    end
    return left, wait
end

local counts, granted = {}, true
for place, key in ipairs(KEYS) do
    local most, window = tonumber(ARGV[2 * place]), tonumber(ARGV[2 * place + 1])
    counts[place] = tidy(key, window)
    granted = granted and counts[place] < most
end

local answer = { granted and 1 or 0 }
for place, key in ipairs(KEYS) do
    local most, window = tonumber(ARGV[2 * place]), tonumber(ARGV[2 * place + 1])
    if take and granted then
        counts[place] = redis.call('RPUSH', key, text(now))
        redis.call('PEXPIRE', key, math.ceil(window / 1000))
    end
    local left, wait = reading(key, counts[place], most, window)
    answer[#answer + 1] = left
    answer[#answer + 1] = wait
end
return answer
