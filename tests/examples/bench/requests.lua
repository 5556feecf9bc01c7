-- Requests of wrk that differ, one for each line of a file, in turn.
-- The first argument is the file. With a second one, the lines are values of this header; without, they are bodies of forms.

local requests, place = {}, 0

function init(arguments)
    local file, header = arguments[1], arguments[2]
    for line in io.lines(file) do
        if header then
            wrk.headers[header] = line
            table.insert(requests, wrk.format("GET"))
        else
            wrk.headers["Content-Type"] = "application/x-www-form-urlencoded"
            table.insert(requests, wrk.format("POST", nil, nil, line))
        end
    end
end

function request()
    place = place % #requests + 1
    return requests[place]
end
