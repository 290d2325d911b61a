//! Enums that are a closed set, written as one table: each variant with its label.

/// Defines an enum with `ALL`, its variants in the order of their discriminants, and, if each variant has a label, with
/// `label()`.
macro_rules! closed_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$about:meta])* $variant:ident => $label:literal,)+ }) => {
        closed_enum! { $(#[$meta])* pub enum $name { $($(#[$about])* $variant,)+ } }

        impl $name {
            /// The value of the label.
            pub fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }
        }
    };
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$about:meta])* $variant:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$about])* $variant,)+ }

        impl $name {
            /// All variants, in the order of their discriminants.
            pub const ALL: [Self; [$(stringify!($variant)),+].len()] = [$(Self::$variant),+];
        }
    };
}

pub(crate) use closed_enum;
