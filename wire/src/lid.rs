//! Local identifiers: the 16-bit addresses of ports in one InfiniBand subnet.

use core::fmt;

/// A local identifier (IBA 4.1.3).
///
/// | value | meaning |
/// |---|---|
/// | 0x0000 | none |
/// | 0x0001 to 0xBFFF | one port |
/// | 0xC000 to 0xFFFE | a multicast group |
/// | 0xFFFF | permissive: the port at the other end of the link |
///
/// RoCE packets carry none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Lid(pub u16);

impl Lid {
    /// No LID.
    pub const NONE: Self = Self(0);
    /// The permissive LID.
    pub const PERMISSIVE: Self = Self(0xFFFF);

    /// Whether the LID names one port.
    #[must_use]
    pub const fn is_unicast(self) -> bool {
        self.0 != 0 && self.0 < 0xC000
    }
}

impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lid({:#06x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_have_unicast_lids() {
        assert!(Lid(1).is_unicast() && Lid(0xBFFF).is_unicast());
        assert!(![Lid::NONE, Lid(0xC000), Lid::PERMISSIVE].iter().any(|lid| lid.is_unicast()));
    }
}
