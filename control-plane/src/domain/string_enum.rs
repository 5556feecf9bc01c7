//! A macro for enums whose variants have a stable name in JSON and in the database.

/// Defines an enum with `as_str`, its inverse `parse`, and `ALL`.
macro_rules! string_enum {
    ($($(#[$about:meta])+ $list:ident { $($(#[$doc:meta])+ $name:ident = $text:literal;)+ })+) => {$(
        $(#[$about])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $list {
            $($(#[$doc])+ $name,)+
        }

        impl $list {
            /// All variants.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The stable name.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }

            /// The inverse of `as_str`.
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.as_str() == text)
            }
        }
    )+};
}

pub(crate) use string_enum;

#[cfg(test)]
mod tests {
    string_enum! {
        /// An example.
        Example {
            /// The first.
            First = "the.first";
            /// The second.
            Second = "the.second";
        }
    }

    #[test]
    fn parses_only_the_names_of_variants() {
        for one in Example::ALL {
            assert_eq!(Example::parse(one.as_str()), Some(*one));
        }
        assert_eq!((Example::ALL.len(), Example::parse("the.third"), Example::parse("")), (2, None, None));
    }
}
