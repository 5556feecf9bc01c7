//! Instants as callers write them.

use countersign_identity::Timestamp;

/// What an instant looks like up to its second; `0` stands for any digit.
const SHAPE: &str = "0000-00-00T00:00:00";

/// RFC 3339 with `Z` or an offset, which is normalised to UTC. What lies behind the last instant that we can write, such
/// as 9999-12-31T23:59:59Z, by which many mean never, counts as that one.
pub fn parse(text: &str) -> Option<Timestamp> {
    let (second, rest) = text.split_at_checked(SHAPE.len())?;
    let fits = |(byte, shape): (u8, u8)| {
        if shape == b'0' { byte.is_ascii_digit() } else { byte.eq_ignore_ascii_case(&shape) }
    };
    // The library reads more than RFC 3339 has: other separators, zones, instants without a second.
    if !second.bytes().zip(SHAPE.bytes()).all(fits) || !is_fraction_and_offset(rest) {
        return None;
    }
    let at = text.parse().or_else(|error| {
        let local = second.parse::<jiff::civil::DateTime>()?;
        let last = jiff::tz::Offset::UTC.to_datetime(jiff::Timestamp::MAX);
        if local > last { Ok(jiff::Timestamp::MAX) } else { Err(error) }
    });
    at.ok().map(|at: jiff::Timestamp| Timestamp::from_micros(at.as_microsecond()))
}

fn is_fraction_and_offset(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let begins = text.find(['Z', 'z', '+', '-']).unwrap_or(text.len());
    let (fraction, offset) = text.split_at(begins);
    let of_day = |offset: &str| {
        let two = offset.split_once(':').filter(|(hours, minutes)| digits(hours) && digits(minutes));
        two.is_some_and(|(hours, minutes)| offset.len() == 5 && hours.len() == 2 && hours < "24" && minutes < "60")
    };
    (fraction.is_empty() || fraction.strip_prefix('.').is_some_and(digits))
        && (offset.eq_ignore_ascii_case("Z") || offset.strip_prefix(['+', '-']).is_some_and(of_day))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_what_rfc_3339_says() {
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
        for never in ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59.999999Z", "9999-12-31T00:00:00-23:59"] {
            assert_eq!(parse(never).map(Timestamp::truncated_to_second), parse("9999-12-30T22:00:00Z"), "{never}");
        }
        for bad in [
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
            assert_eq!(micros(bad), None, "{bad}");
        }
    }
}
