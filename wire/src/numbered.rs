//! Enums of numbers that a specification assigns.

/// Makes an enum, and the way back from a number.
macro_rules! numbered {
    (
        $(#[$doc:meta])*
        pub enum $name:ident: $number:ident {
            $($(#[$variant_doc:meta])* $variant:ident = $value:literal,)+
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr($number)]
        pub enum $name {
            $($(#[$variant_doc])* $variant = $value,)+
        }

        impl $name {
            /// Returns the one with this number; `None` for an unknown number.
            #[must_use]
            pub const fn new(number: $number) -> Option<Self> {
                match number {
                    $($value => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use numbered;
