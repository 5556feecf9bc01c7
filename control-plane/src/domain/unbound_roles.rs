//! Which roles of an agent an unbound token contains. Its size is limited, and anybody with a service can assign roles to an agent.

use countersign_identity::{MAX_GRANTS, RoleGrant, ServiceId};

/// Maximum number of roles at one service in an unbound token. The token has none of the roles of a service at which the agent holds
/// more: with some of them, the agent would be refused here and there, and nobody could tell why.
pub const MAX_ROLES_PER_SERVICE: usize = 16;

/// A role that an agent holds at a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoleAtService {
    pub service: ServiceId,
    pub grant: RoleGrant,
}

/// Selects the roles for an unbound token: all roles at a service or none, and those of the first services first.
pub fn select_roles(services: &[ServiceId], held: &[RoleAtService]) -> Vec<RoleAtService> {
    let mut selected = Vec::new();
    for service in services {
        let roles = || held.iter().filter(|role| role.service == *service);
        if roles().count() <= MAX_ROLES_PER_SERVICE && selected.len() + roles().count() <= MAX_GRANTS {
            selected.extend(roles().copied());
        }
    }
    selected
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_identity::RoleId;

    fn service(number: u128) -> ServiceId {
        ServiceId::from_bits(number)
    }

    /// This many roles at a service.
    fn roles(number: u128, count: u128) -> impl Iterator<Item = RoleAtService> {
        let role = move |role| RoleGrant { role: RoleId::from_bits(number * 1000 + role), until: None };
        (0..count).map(move |number_of_role| RoleAtService { service: service(number), grant: role(number_of_role) })
    }

    /// The services of the selected roles, with the numbers of their roles.
    fn selected(services: &[u128], held: &[(u128, u128)]) -> Vec<(u128, usize)> {
        let services: Vec<_> = services.iter().map(|number| service(*number)).collect();
        let held: Vec<_> = held.iter().flat_map(|(number, count)| roles(*number, *count)).collect();
        let selected = select_roles(&services, &held);
        selected
            .chunk_by(|one, next| one.service == next.service)
            .map(|roles| (roles[0].service.bits(), roles.len()))
            .collect()
    }

    #[test]
    fn services_have_all_their_roles_in_the_token_or_none() {
        assert_eq!(selected(&[2, 1, 3], &[(1, 16), (2, 1), (3, 17), (4, 1)]), [(2, 1), (1, 16)]);
        assert_eq!(selected(&[], &[(1, 1)]), []);
    }

    #[test]
    fn first_services_come_first() {
        let services: Vec<_> = (1..=11).collect();
        let held: Vec<_> = (1..=7).map(|number| (number, 16)).chain([(8, 15), (9, 16), (10, 1), (11, 1)]).collect();
        let expected: Vec<_> = (1..=7).map(|number| (number, 16)).chain([(8, 15), (10, 1)]).collect();
        assert_eq!(selected(&services, &held), expected, "128 roles, without the service that does not fit");
    }
}
