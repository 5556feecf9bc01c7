use super::*;
use crate::domain::audit::Object;
use countersign_identity::{AgentId, RoleId, ServiceId};

fn keys() -> AuditKeys {
    AuditKeys::derive(&[7; 32])
}

/// A chain of a service with four links, and its head.
fn made(keys: &AuditKeys, service: u128) -> (Vec<Link>, Head) {
    let service = ServiceId::from_bits(service);
    let acts = [Act::ServiceCreated, Act::RoleCreated, Act::RoleAssigned, Act::RoleRevoked];
    let mut head = Head::default();
    let link = |(at, act): (i64, Act)| {
        let entry = Entry::at(service, act).to(AgentId::from_bits(2)).with(Object::Role(RoleId::from_bits(3)));
        let (link, after) = keys.append(&head, &entry, &Author::SYSTEM, Timestamp::from_seconds(at));
        head = after;
        link
    };
    ((1..).zip(acts).map(link).collect(), head)
}

fn walk(links: &[Link], head: &Head) -> Result<(), Broken> {
    let keys = keys();
    let chain = links.first().map_or(String::new(), |link| link.chain.clone());
    let mut walk = Walk::new(&keys, &chain);
    for link in links {
        walk.step(link)?;
    }
    walk.end(Some(head))
}

fn broken(sequence: i64, fault: Fault) -> Result<(), Broken> {
    Err(Broken { sequence, fault })
}

#[test]
fn a_chain_as_it_was_made_is_whole() {
    let (links, head) = made(&keys(), 1);
    assert_eq!(walk(&links, &head), Ok(()));
}

#[test]
fn whoever_has_not_the_key_cannot_make_links_or_heads() {
    let (links, head) = made(&keys(), 1);
    let (forged, other) = made(&AuditKeys::derive(&[8; 32]), 1);
    assert_eq!(forged[0].hash, links[0].hash, "the hash needs no key");
    assert_eq!(walk(&forged, &other), broken(1, Fault::Forged));
    assert_eq!(walk(&links, &other), broken(5, Fault::Head));
    let shorter = Head { length: 3, hash: links[2].hash.clone(), mac: links[2].mac.clone() };
    assert_eq!(walk(&links[..3], &shorter), broken(4, Fault::Head), "the MAC of a link is none of a head");
    assert_eq!(walk(&links[..3], &head), broken(4, Fault::Head));
}

#[test]
fn what_is_appended_to_a_false_head_does_not_make_it_right() {
    let keys = keys();
    let (mut links, head) = made(&keys, 1);
    links.truncate(3);
    let cut = Head { length: 3, hash: links[2].hash.clone(), mac: head.mac };
    let entry = Entry::at(ServiceId::from_bits(1), Act::RoleCreated);
    let (link, after) = keys.append(&cut, &entry, &Author::SYSTEM, Timestamp::from_seconds(9));
    links.push(link);
    assert_eq!(walk(&links, &after), broken(5, Fault::Head));
}

#[test]
fn a_chain_begins_with_its_service() {
    let keys = keys();
    let entry = Entry::at(ServiceId::from_bits(1), Act::RoleCreated);
    let (link, head) = keys.append(&Head::default(), &entry, &Author::SYSTEM, Timestamp::from_seconds(1));
    assert_eq!(walk(&[link], &head), broken(1, Fault::Beginning));
    assert_eq!(walk(&[], &Head::default()), broken(1, Fault::Missing));
}

/// Every field counts, and an absent one is not an empty one.
#[test]
fn no_field_can_be_changed() {
    let (links, head) = made(&keys(), 1);
    let change: [fn(&mut Link); 16] = [
        |link| link.chain.push('x'),
        |link| link.sequence += 1,
        |link| link.at = link.at.saturating_add(std::time::Duration::from_micros(1)),
        |link| link.act.push('x'),
        |link| link.actor_kind = "human".into(),
        |link| link.actor_issuer = Some(String::new()),
        |link| link.actor_id = Some("0".into()),
        |link| link.address = Some("127.0.0.1".into()),
        |link| link.request_id = Some(String::new()),
        |link| link.agent = None,
        |link| link.object_kind = None,
        |link| link.object_id = Some(String::new()),
        |link| link.details = "{ }".into(),
        |link| link.previous = String::new(),
        |link| link.hash.replace_range(..1, "g"),
        |link| link.mac.replace_range(..1, "g"),
    ];
    for (number, change) in change.into_iter().enumerate() {
        let mut bent = links.clone();
        change(&mut bent[2]);
        let fault = match number {
            1 => Fault::Missing,
            15 => Fault::Forged,
            _ => Fault::Changed,
        };
        assert_eq!(walk(&bent, &head), broken(3, fault), "change {number}");
    }
}

#[test]
fn links_can_not_be_taken_out_swapped_or_brought_from_elsewhere() {
    let (links, head) = made(&keys(), 1);
    let mut fewer = links.clone();
    fewer.remove(1);
    assert_eq!(walk(&fewer, &head), broken(2, Fault::Missing));
    let mut swapped = links.clone();
    swapped.swap(1, 2);
    (swapped[1].sequence, swapped[2].sequence) = (2, 3);
    assert_eq!(walk(&swapped, &head), broken(2, Fault::Changed));
    let (others, _) = made(&keys(), 9);
    let mut mixed = links.clone();
    mixed[2] = others[2].clone();
    assert_eq!(walk(&mixed, &head), broken(3, Fault::Changed));
    let mut rehashed = links;
    rehashed[1].details = "{}".into();
    rehashed[1].previous = String::new();
    rehashed[1].hash = rehashed[1].digest();
    assert_eq!(walk(&rehashed, &head), broken(2, Fault::Unlinked));
}
