//! A macro for enums whose variants have a stable name in JSON and in the database.

/// Defines an enum with `as_str`, its inverse `parse`, and `ALL`.
macro_rules! string_enum {
    ($($(#[$enum_doc:meta])+ $enum_name:ident { $($(#[$variant_doc:meta])+ $variant:ident = $text:literal;)+ })+) => {$(
        $(#[$enum_doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $enum_name {
            $($(#[$variant_doc])+ $variant,)+
        }

        impl $enum_name {
            /// All variants.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The stable name.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            /// The inverse of `as_str`.
            #[allow(dead_code, reason = "some enums are only written, never read")]
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|variant| variant.as_str() == text)
            }
        }
    )+};
}

pub(crate) use string_enum;

#[cfg(test)]
mod tests {
    string_enum! {
        /// An enum with two variants.
        Example {
            /// The first variant.
            First = "the.first";
            /// The second variant.
            Second = "the.second";
        }
    }

    #[test]
    fn parses_only_the_names_of_variants() {
        for variant in Example::ALL {
            assert_eq!(Example::parse(variant.as_str()), Some(*variant));
        }
        assert_eq!((Example::ALL.len(), Example::parse("the.third"), Example::parse("")), (2, None, None));
    }
}
