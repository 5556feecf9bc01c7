//! Times and durations on the command line: RFC 3339, a date (midnight UTC), or a duration from now.

use countersign_client::clock;
use countersign_identity as identity;
use jiff::{SignedDuration, Timestamp, civil::Date, tz::TimeZone};
use std::time::Duration;

/// Parses a time, or a duration from now into the future. The result is in whole seconds, as the control plane stores it.
pub fn parse_future_time(text: &str) -> Result<Timestamp, String> {
    let expected = "write a time as 2030-01-31T12:00:00Z or 2030-01-31, or a duration from now, such as 30m, 8h or 7d";
    let time = parse_time(text, Timestamp::checked_add);
    time.and_then(|time| Timestamp::from_second(time.as_second()).ok()).ok_or_else(|| expected.to_owned())
}

/// Parses a time, or a duration before now.
pub fn parse_past_time(text: &str) -> Result<Timestamp, String> {
    let expected =
        "write a time as 2030-01-31T12:00:00Z or 2030-01-31, or a duration before now, such as 30m, 8h or 7d";
    parse_time(text, Timestamp::checked_sub).ok_or_else(|| expected.to_owned())
}

/// Parses a duration that is not zero.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).and_then(|duration| Duration::try_from(duration).ok());
    let expected = "write a duration with a unit, such as 500ms, 5s or 1m";
    duration.filter(|duration| !duration.is_zero()).ok_or_else(|| expected.to_owned())
}

/// The time in the form of RFC 3339, in UTC, to the second.
pub fn rfc3339(time: identity::Timestamp) -> String {
    Timestamp::from_second(time.seconds()).map(|time| time.to_string()).unwrap_or_default()
}

/// A time in RFC 3339 relative to now, such as `5m ago` or `in 3h`. Text that is not a time is returned unchanged.
pub fn relative(text: &str) -> String {
    let Ok(time) = text.parse::<Timestamp>() else { return text.to_owned() };
    let seconds = time.as_second() - clock::now().seconds();
    let span = rounded_duration(seconds.unsigned_abs());
    if seconds > 0 { format!("in {span}") } else { format!("{span} ago") }
}

/// Formats a duration in the largest unit that it contains at least twice, as `kubectl` shows ages: 119m, then 2h.
fn rounded_duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn parse_time(
    text: &str,
    from_now: impl FnOnce(Timestamp, SignedDuration) -> Result<Timestamp, jiff::Error>,
) -> Option<Timestamp> {
    if let Ok(time) = text.parse() {
        return Some(time);
    }
    // The parser of dates would accept a time after the date and ignore it, so we check the length.
    if text.len() == "2030-01-31".len()
        && let Ok(date) = text.parse::<Date>()
    {
        return date.to_zoned(TimeZone::UTC).ok().map(|midnight| midnight.timestamp());
    }
    let now = Timestamp::from_microsecond(clock::now().micros()).ok()?;
    from_now(now, parse_duration(text)?).ok()
}

/// Parses a duration with a unit. Days and weeks have 24 hours and seven days.
fn parse_duration(text: &str) -> Option<SignedDuration> {
    let in_hours = |suffix, hours: i64| {
        let count = text.strip_suffix(suffix)?.parse::<i64>().ok()?;
        count.checked_mul(hours).and_then(SignedDuration::try_from_hours)
    };
    in_hours('d', 24).or_else(|| in_hours('w', 7 * 24)).or_else(|| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_or_durations() {
        for parse in [parse_future_time, parse_past_time] {
            assert_eq!(parse("2030-01-31T13:00:00+01:00").unwrap().to_string(), "2030-01-31T12:00:00Z");
            assert_eq!(parse("2030-01-31").unwrap().to_string(), "2030-01-31T00:00:00Z");
            assert!(parse("90m").is_ok());
            for wrong in ["", "tomorrow", "8", "99999999999999d", "2030-13-01", "2030-01-31T12:00"] {
                assert!(parse(wrong).is_err(), "{wrong}");
            }
        }
        let day = parse_future_time("1d").unwrap().duration_since(parse_future_time("0h").unwrap());
        assert!((86_399..=86_400).contains(&day.as_secs()), "{day}");
        let day = parse_past_time("0h").unwrap().duration_since(parse_past_time("1d").unwrap());
        assert!((86_399..=86_400).contains(&day.as_secs().abs()), "{day}");
        assert_eq!(parse_future_time("5m").unwrap().subsec_nanosecond(), 0);
        let week = parse_future_time("1w").unwrap().duration_since(parse_future_time("7d").unwrap());
        assert!(week.as_secs().abs() <= 1, "{week}");
    }

    #[test]
    fn positive_duration_requires_a_unit_and_more_than_zero() {
        assert_eq!(positive_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(positive_duration("1m30s"), Ok(Duration::from_secs(90)));
        for wrong in ["", "5", "0s", "-5s", "soon"] {
            assert!(positive_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn relative_rounds_down_to_one_unit() {
        let expected = [(0, "0s"), (119, "119s"), (120, "2m"), (7_199, "119m"), (7_200, "2h"), (172_800, "2d")];
        for (seconds, text) in expected {
            assert_eq!(rounded_duration(seconds), text);
        }
        assert_eq!(relative("-"), "-");
    }
}
