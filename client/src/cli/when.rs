//! Instants as people write them: RFC 3339, or a span from now.

use countersign_client::clock;
use jiff::{SignedDuration, Timestamp};

/// An instant, or a span from now into the future.
pub fn ahead(text: &str) -> Result<Timestamp, String> {
    let wrong = "write an instant as 2030-01-31T12:00:00Z, or a span from now as 30m, 8h or 7d";
    instant(text, Timestamp::checked_add).ok_or_else(|| wrong.to_owned())
}

/// An instant, or how long ago it was.
pub fn ago(text: &str) -> Result<Timestamp, String> {
    let wrong = "write an instant as 2030-01-31T12:00:00Z, or how long ago as 30m, 8h or 7d";
    instant(text, Timestamp::checked_sub).ok_or_else(|| wrong.to_owned())
}

fn instant(
    text: &str,
    from_now: impl FnOnce(Timestamp, SignedDuration) -> Result<Timestamp, jiff::Error>,
) -> Option<Timestamp> {
    if let Ok(at) = text.parse() {
        return Some(at);
    }
    let days = text.strip_suffix('d').and_then(|days| days.parse::<i64>().ok());
    let span = match days {
        Some(days) => days.checked_mul(24).and_then(SignedDuration::try_from_hours),
        None => text.parse().ok(),
    };
    let now = Timestamp::from_microsecond(clock::now().micros()).ok()?;
    from_now(now, span?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_written_out_or_as_a_span_from_now() {
        for read in [ahead, ago] {
            assert_eq!(read("2030-01-31T13:00:00+01:00").unwrap().to_string(), "2030-01-31T12:00:00Z");
            assert!(read("90m").is_ok());
            for wrong in ["", "tomorrow", "8", "99999999999999d", "2030-01-31"] {
                assert!(read(wrong).is_err(), "{wrong}");
            }
        }
        let day = ahead("1d").unwrap().duration_since(ahead("0h").unwrap());
        assert!((86_399..=86_400).contains(&day.as_secs()), "{day}");
        let day = ago("0h").unwrap().duration_since(ago("1d").unwrap());
        assert!((86_399..=86_400).contains(&day.as_secs().abs()), "{day}");
    }
}
