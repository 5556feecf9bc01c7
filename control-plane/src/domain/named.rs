//! Closed lists of things that have a name, in JSON and in the database. The names are stable.

/// An enum whose cases have names: `as_str` writes them, `parse` reads them, `ALL` has each.
macro_rules! named {
    ($($(#[$about:meta])+ $list:ident { $($(#[$doc:meta])+ $name:ident = $text:literal;)+ })+) => {$(
        $(#[$about])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $list {
            $($(#[$doc])+ $name,)+
        }

        impl $list {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Its name.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }

            /// Reads its name.
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.as_str() == text)
            }
        }
    )+};
}

pub(crate) use named;

#[cfg(test)]
mod tests {
    named! {
        /// Two of them.
        Two {
            /// The first.
            First = "the.first";
            /// The second.
            Second = "the.second";
        }
    }

    #[test]
    fn names_read_back_and_nothing_else_does() {
        for one in Two::ALL {
            assert_eq!(Two::parse(one.as_str()), Some(*one));
        }
        assert_eq!((Two::ALL.len(), Two::parse("the.third"), Two::parse("")), (2, None, None));
    }
}
