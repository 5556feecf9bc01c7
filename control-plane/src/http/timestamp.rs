//! Timestamps in requests and responses, in the format of RFC 3339.

use countersign_identity::Timestamp;
use countersign_process::format_rfc3339;
use serde::{Serialize, Serializer};

/// Serializes a timestamp as RFC 3339 in UTC.
pub struct Rfc3339(pub Timestamp);

impl Serialize for Rfc3339 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_rfc3339(self.0))
    }
}

/// The format of a date and time in whole seconds, in which `0` means any digit.
const DATE_TIME_FORMAT: &str = "0000-00-00T00:00:00";

/// Parses RFC 3339 with `Z` or an offset, and normalises it to UTC. A time that is too late for jiff becomes jiff's latest time
/// ([`latest_if_after`]), because clients send 9999-12-31T23:59:59Z to mean "never".
pub fn parse(text: &str) -> Option<Timestamp> {
    let (date_time, rest) = text.split_at_checked(DATE_TIME_FORMAT.len())?;
    let matches = |(byte, expected): (u8, u8)| {
        if expected == b'0' { byte.is_ascii_digit() } else { byte.eq_ignore_ascii_case(&expected) }
    };
    // jiff accepts more than RFC 3339: other separators, time zone names, times without seconds.
    if !date_time.bytes().zip(DATE_TIME_FORMAT.bytes()).all(matches) || !is_fraction_and_offset(rest) {
        return None;
    }
    let timestamp = text.parse::<jiff::Timestamp>().ok().or_else(|| latest_if_after(date_time))?;
    Some(Timestamp::from_micros(timestamp.as_microsecond()))
}

/// The latest time of jiff, 9999-12-30T22:00:00Z, if `date_time` is valid and later. We ignore the UTC offset of the text, so the
/// caller must first let jiff parse the whole text, and call this only if jiff refuses it.
fn latest_if_after(date_time: &str) -> Option<jiff::Timestamp> {
    let latest = jiff::tz::Offset::UTC.to_datetime(jiff::Timestamp::MAX);
    let is_later = date_time.parse::<jiff::civil::DateTime>().is_ok_and(|date_time| date_time > latest);
    is_later.then_some(jiff::Timestamp::MAX)
}

fn is_fraction_and_offset(text: &str) -> bool {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let offset_start = text.find(['Z', 'z', '+', '-']).unwrap_or(text.len());
    let (fraction, offset) = text.split_at(offset_start);
    // Hours and minutes have two digits each, so they compare as texts like numbers.
    let is_valid_offset = |offset: &str| {
        let parts = offset.split_once(':').filter(|(hours, minutes)| is_digits(hours) && is_digits(minutes));
        parts.is_some_and(|(hours, minutes)| offset.len() == 5 && hours.len() == 2 && hours < "24" && minutes < "60")
    };
    (fraction.is_empty() || fraction.strip_prefix('.').is_some_and(is_digits))
        && (offset.eq_ignore_ascii_case("Z") || offset.strip_prefix(['+', '-']).is_some_and(is_valid_offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_rfc_3339_and_nothing_else() {
        let micros = |text: &str| parse(text).map(Timestamp::micros);
        for (text, seconds) in [
            ("1970-01-01T00:00:01Z", 1),
            ("1970-01-01t00:00:01z", 1),
            ("1970-01-01T02:00:01+02:00", 1),
            ("1969-12-31T23:00:01-01:00", 1),
            ("1970-01-01T00:00:01.000Z", 1),
            ("9999-12-30T22:00:00Z", 253_402_207_200),
        ] {
            assert_eq!(micros(text), Some(seconds * 1_000_000), "{text}");
        }
        assert_eq!(micros("1970-01-01T00:00:00.123456Z"), Some(123_456));
        let latest = parse("9999-12-30T22:00:00Z");
        for later in ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59.999999Z", "9999-12-31T00:00:00-23:59"] {
            assert_eq!(parse(later).map(Timestamp::truncated_to_second), latest, "{later}");
        }
        for invalid in [
            "",
            "soon",
            "2099-01-01",
            "2099-01-01T00:00:00",
            "2099-01-01 00:00:00Z",
            "2099-01-01T00:00Z",
            "20990101T000000Z",
            "2099-01-01T00:00:00,5Z",
            "2099-01-01T00:00:00.Z",
            "2099-01-01T00:00:00+0530",
            "2099-01-01T00:00:00+24:00",
            "2099-01-01T00:00:00+1:000",
            "2099-01-01T00:00:00Z[Europe/Paris]",
            "2099-02-30T00:00:00Z",
            "9999-12-32T00:00:00Z",
            "9999-12-31T25:00:00Z",
            "+99999-01-01T00:00:00Z",
            "２099-01-01T00:00:00Z",
        ] {
            assert_eq!(micros(invalid), None, "{invalid}");
        }
    }
}
