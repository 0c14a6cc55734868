//! Numbers that must not be mixed up: queue pairs, keys, message sequence numbers.

use core::fmt;

macro_rules! number24 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
        pub struct $name(u32);

        impl $name {
            /// Made of the low 24 bits of `value`.
            #[must_use]
            pub const fn new(value: u32) -> Self {
                Self(value & 0x00FF_FFFF)
            }

            /// The number, below 2^24.
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#08x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#08x}", self.0)
            }
        }
    };
}

number24! {
    /// A queue pair number (IBA 9.2 "DestQP"): 0 and 1 are the management QPs, [`Qpn::MULTICAST`] is multicast.
    Qpn
}

impl Qpn {
    /// QP1, the general services interface.
    pub const GSI: Self = Self(1);
    /// QP0, the subnet management interface.
    pub const SMI: Self = Self(0);
    /// The destination QP of multicast packets.
    pub const MULTICAST: Self = Self(0x00FF_FFFF);
}

/// A message sequence number: 24 bits, wrapping, counts the requests a responder completed (IBA 9.7.5.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Msn(u32);

impl Msn {
    /// Made of the low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & 0x00FF_FFFF)
    }

    /// The number, below 2^24.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }
}

/// A remote key: names a memory region or window to a peer (IBA 10.6.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RKey(pub u32);

impl fmt::Debug for RKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RKey({:#010x})", self.0)
    }
}

/// A queue key: lets a datagram into a QP (IBA 10.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QKey(pub u32);

impl QKey {
    /// The well-known Q_Key of QP1 (`IB_QP1_QKEY` in `include/rdma/ib_mad.h`).
    pub const GSI: Self = Self(0x8001_0000);
}

impl fmt::Debug for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QKey({:#010x})", self.0)
    }
}

/// A partition key: a 15-bit partition and the full-member bit (IBA 10.9).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PKey(pub u16);

impl PKey {
    /// The default partition with full membership, the one P_Key of a RoCE port.
    pub const DEFAULT: Self = Self(0xFFFF);

    /// Whether a packet with this P_Key may enter a port or QP that has `other`: the same partition, and at
    /// least one of the two a full member (IBA 10.9.3).
    ///
    /// ```
    /// use urxe_wire::PKey;
    /// assert!(PKey(0x7FFF).matches(PKey::DEFAULT));
    /// assert!(!PKey(0x7FFF).matches(PKey(0x7FFF)));
    /// assert!(!PKey(0x8001).matches(PKey::DEFAULT));
    /// ```
    #[must_use]
    pub const fn matches(self, other: Self) -> bool {
        self.0 & 0x7FFF == other.0 & 0x7FFF && (self.0 | other.0) & 0x8000 != 0
    }
}

impl fmt::Debug for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PKey({:#06x})", self.0)
    }
}
