//! The headers of a request, by name.

/// A header of a request.
#[derive(Debug, Clone, Copy)]
pub struct Header<'a> {
    /// The name, as the client spelled it.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Whether a later entry with the same name replaces it.
    pub is_in_map: bool,
}

/// The first two headers with a name, in any case.
pub fn first_two<'a>(headers: impl Iterator<Item = Header<'a>>, name: &str) -> [Option<Header<'a>>; 2] {
    let mut found = [None; 2];
    for header in headers.filter(|header| header.name.eq_ignore_ascii_case(name.as_bytes())) {
        let replaces = |earlier: Header<'_>| earlier.is_in_map && header.is_in_map && earlier.name == header.name;
        if let Some(place) = found.iter_mut().find(|place| place.is_none_or(replaces)) {
            *place = Some(header);
        }
    }
    found
}
