//! The texts of receipts: where a change is in force, and the errors if it is not in force everywhere, or if nobody knows.

use crate::cli::{
    context::Context,
    error::{Cause, CliError},
    hints::next_step,
};
use countersign_client::{
    ApiError,
    api::{Enforcement, Sidecar},
};
use std::time::Duration;

/// How many unconfirmed sidecars an error names; others are only counted.
const NAMED_SIDECARS: usize = 10;

/// The next step after a wait in which the change did not come into force at every sidecar.
pub fn next(revision: u64) -> String {
    format!("countersign sidecar wait {revision}")
}

/// Says at how many sidecars the change is in force. `without_sidecars` is the text if no sidecar is connected.
pub fn enforcement_text(enforcement: &Enforcement, without_sidecars: &str) -> String {
    let Enforcement { enforced, sidecars, enforced_sidecars, expired_sidecars, milliseconds, .. } = enforcement;
    let of_all = self::sidecars(*sidecars);
    let expired = match expired_sidecars {
        0 => String::new(),
        1 => "; 1 more refuses all requests by itself".to_owned(),
        more => format!("; {more} more refuse all requests by themselves"),
    };
    match (enforced, sidecars + expired_sidecars, milliseconds) {
        (true, 0, _) => format!("no sidecar is connected; {without_sidecars}"),
        (true, _, Some(milliseconds)) => {
            format!("at {enforced_sidecars} of {of_all} within {milliseconds} ms{expired}")
        }
        (true, _, None) => format!("at {enforced_sidecars} of {of_all}{expired}"),
        (false, _, _) => format!("not yet: at {enforced_sidecars} of {of_all}{expired}"),
    }
}

/// A number of sidecars, as text.
pub fn sidecars(count: u64) -> String {
    format!("{count} {}", if count == 1 { "sidecar" } else { "sidecars" })
}

/// The error for a change that is not in force everywhere after the wait.
pub fn not_enforced(enforcement: &Enforcement, waited: Duration) -> CliError {
    let Enforcement { revision, sidecars, enforced_sidecars, unconfirmed, refuses_by, .. } = enforcement;
    let sidecar_texts: Vec<_> = unconfirmed.iter().take(NAMED_SIDECARS).map(sidecar_text).collect();
    let missing = sidecars.saturating_sub(*enforced_sidecars);
    let unnamed = missing.saturating_sub(u64::try_from(sidecar_texts.len()).unwrap_or(u64::MAX));
    let names = (!sidecar_texts.is_empty()).then(|| format!("not confirmed by {}", sidecar_texts.join("; ")));
    let others = (!sidecar_texts.is_empty() && unnamed > 0).then(|| format!("and {unnamed} more"));
    let end = refuses_by.as_ref().filter(|_| missing > 1);
    let end = end.map(|time| format!("all of these refuse all requests no later than {time}"));
    let of_all = self::sidecars(*sidecars);
    let seconds = waited.as_secs();
    let result = format!(
        "the change is done and committed, but not in force everywhere after {seconds} s: in force at {enforced_sidecars} \
         of {of_all}"
    );
    let text = [Some(result), names, others, end].into_iter().flatten().collect::<Vec<_>>().join("; ");
    let error = CliError::from(Cause::NotEnforced { code: "NOT_ENFORCED", message: text });
    error.with_next(format!("{} --timeout {seconds}s", next(*revision)))
}

fn sidecar_text(sidecar: &Sidecar) -> String {
    let Sidecar { instance, address, refuses_by, .. } = sidecar;
    let (name, refuse) = if sidecar.is_several() {
        ("sidecars that the control plane does not know one by one".to_owned(), "refuse")
    } else {
        (format!("{instance} at {address}"), "refuses")
    };
    let end = refuses_by.as_ref().map(|time| format!(", which {refuse} all requests no later than {time}"));
    name + &end.unwrap_or_default()
}

/// The error if the control plane did not say whether the change is in force.
pub fn unknown(problem: &str, next: &str) -> CliError {
    let text = format!("the change is done and committed, but it is unknown whether it is in force: {problem}");
    CliError::from(Cause::NotEnforced { code: "ENFORCEMENT_UNKNOWN", message: text }).with_next(next)
}

/// The error if the request about the enforcement failed. `otherwise` is the next step if the error has none.
pub fn unknown_because(context: &Context, error: ApiError, otherwise: &str) -> CliError {
    // After an outage, the hint would say to try the command again, although its change is done and must not be repeated.
    let is_outage = error.is_outage();
    let error = context.with_context_hint(error.into());
    let next = next_step(&error).filter(|_| !is_outage);
    unknown(&error.to_string(), next.as_deref().unwrap_or(otherwise))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::enforcement::{API_ALLOWS_AT_ONCE, API_REFUSES_AT_ONCE};
    use serde_json::json;

    fn enforcement(sidecars: u64, enforced_sidecars: u64) -> Enforcement {
        let enforced = sidecars == enforced_sidecars;
        let unconfirmed = (enforced_sidecars..sidecars).map(|number| {
            json!({
                "instance": format!("{number:032x}"), "keyId": "key_00000000000000000000000001",
                "address": format!("10.0.3.{number}:41822"), "status": "silent",
                "connectedAt": "2026-11-24T08:00:00Z", "refusesBy": "2026-11-24T09:10:00Z",
            })
        });
        let mut answer = json!({
            "revision": 7, "enforced": enforced, "sidecars": sidecars, "enforcedSidecars": enforced_sidecars,
            "expiredSidecars": 0, "unconfirmed": unconfirmed.collect::<Vec<_>>(),
        });
        if enforced && sidecars > 0 {
            answer["milliseconds"] = json!(38);
        }
        if !enforced {
            answer["refusesBy"] = json!("2026-11-24T09:10:07Z");
        }
        serde_json::from_value(answer).unwrap()
    }

    #[test]
    fn receipt_states_where_the_change_is_in_force() {
        for (answer, without_sidecars, expected) in [
            (enforcement(214, 214), API_REFUSES_AT_ONCE, "at 214 of 214 sidecars within 38 ms"),
            (Enforcement { milliseconds: None, ..enforcement(2, 2) }, API_REFUSES_AT_ONCE, "at 2 of 2 sidecars"),
            (enforcement(0, 0), API_REFUSES_AT_ONCE, "no sidecar is connected; the API refuses at once"),
            (enforcement(0, 0), API_ALLOWS_AT_ONCE, "no sidecar is connected; the API allows at once"),
            (enforcement(214, 213), API_REFUSES_AT_ONCE, "not yet: at 213 of 214 sidecars"),
        ] {
            assert_eq!(enforcement_text(&answer, without_sidecars), expected);
        }
    }

    #[test]
    fn error_begins_with_what_is_done_and_names_unconfirmed_sidecars() {
        let error = not_enforced(&enforcement(214, 213), Duration::from_secs(30));
        let next = error.next.as_deref();
        let expected = "the change is done and committed, but not in force everywhere after 30 s: in force at 213 of 214 \
                        sidecars; not confirmed by 000000000000000000000000000000d5 at 10.0.3.213:41822, which refuses all \
                        requests no later than 2026-11-24T09:10:00Z";
        assert_eq!((error.to_string().as_str(), next), (expected, Some("countersign sidecar wait 7 --timeout 30s")));
    }

    #[test]
    fn error_names_ten_sidecars_and_counts_the_others() {
        let message = not_enforced(&enforcement(151, 1), Duration::from_secs(30)).to_string();
        assert_eq!(message.matches(" at 10.0.3.").count(), NAMED_SIDECARS);
        let end = "; and 140 more; all of these refuse all requests no later than 2026-11-24T09:10:07Z";
        assert!(message.ends_with(end), "{message}");
        let message = not_enforced(&enforcement(11, 1), Duration::from_secs(30)).to_string();
        assert!(!message.contains(" more"), "{message}");
    }

    #[test]
    fn error_says_that_unknown_sidecars_may_be_several() {
        let message = not_enforced(&enforcement(1, 0), Duration::from_secs(30)).to_string();
        let end = "; not confirmed by sidecars that the control plane does not know one by one, which refuse all requests no later \
                   than 2026-11-24T09:10:00Z";
        assert!(message.ends_with(end), "{message}");
    }

    #[test]
    fn unknown_enforcement_has_its_own_code() {
        let error = unknown("the control plane does not answer", &next(7));
        assert!(error.to_string().starts_with("the change is done and committed, but it is unknown"), "{error}");
        assert!(matches!(error.cause, Cause::NotEnforced { code: "ENFORCEMENT_UNKNOWN", .. }), "{error:?}");
    }
}
