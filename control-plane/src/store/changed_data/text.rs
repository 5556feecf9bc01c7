//! The text of entries of the change feed, as one statement returns them.
//!
//! An entry ends with `;`, and each field with `|`: revision, position, facet, subject, recipient (`*` for all services), and the
//! state of the agent. The state has three fields, trust score, status and cutoff, which are empty if the entry has no state.

use super::ChangedData;
use crate::{
    domain::agent::parse_status,
    store::{StoreError, agents::AgentState, feed},
};
use countersign_identity::{AgentId, Revision, StatusWithCutoff, TrustScore};
use std::{
    str::{FromStr, Split},
    sync::Arc,
};

/// Joins selected entries to one text. The column `agent_state` already is the text `trust|status|cutoff`, or NULL.
macro_rules! as_text {
    ($($entries:expr),+) => {
        concat!(
            "SELECT COALESCE(string_agg(line, ''), '') AS entries FROM (\
             SELECT c.revision || '|' || c.position || '|' || c.facet || '|' || c.subject || '|' || COALESCE(c.recipient, '*') \
             || '|' || COALESCE(c.agent_state, '||') || '|;' AS line FROM (", $($entries,)+ ") c) lines"
        )
    };
}
pub(super) use as_text;

/// Parses the entries, each with its position among the entries of its revision.
pub(super) fn parse_entries(text: &str) -> Result<Vec<(i64, ChangedData)>, StoreError> {
    text.split_terminator(';').map(|entry| parse_entry(entry.split('|'))).collect()
}

fn parse_entry(mut fields: Split<'_, char>) -> Result<(i64, ChangedData), StoreError> {
    let mut next = |column: &'static str| fields.next().ok_or(StoreError::Corrupt(column));
    let revision = Revision::new(parse_field("revision", next("revision")?)?);
    let position = parse_field("position", next("position")?)?;
    let (facet, subject, recipient) = (next("facet")?, next("subject")?, next("recipient")?);
    let recipient = if recipient == "*" { None } else { Some(recipient) };
    let entry = feed::parse_entry(revision, facet, subject, recipient)?;
    let (trust, status, cutoff) = (next("trust")?, next("status")?, next("cutoff")?);
    let agent = if status.is_empty() { None } else { Some(parse_state(subject, [trust, status, cutoff])?) };
    Ok((position, ChangedData { entry, agent, grants: Arc::default() }))
}

fn parse_state(agent: &str, [trust, status, cutoff]: [&str; 3]) -> Result<AgentState, StoreError> {
    Ok(AgentState {
        agent: parse_field::<AgentId>("subject", agent)?,
        trust: TrustScore::from_hundredths(parse_field("trust", trust)?).map_err(|_| StoreError::Corrupt("trust"))?,
        status: StatusWithCutoff {
            status: parse_status(status).ok_or(StoreError::Corrupt("status"))?,
            cutoff: Revision::new(parse_field("cutoff", cutoff)?),
        },
    })
}

pub(in crate::store) fn parse_field<T: FromStr>(column: &'static str, text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| StoreError::Corrupt(column))
}
