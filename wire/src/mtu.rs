//! The path MTU of a connection.

/// Bytes of payload in a full packet (IBA 4.3.1.1): one of five sizes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256,
    /// 512 bytes.
    Mtu512,
    /// 1024 bytes.
    Mtu1024,
    /// 2048 bytes.
    Mtu2048,
    /// 4096 bytes.
    Mtu4096,
}

impl Mtu {
    /// MTUs, smallest first.
    pub const ALL: [Self; 5] = [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// Size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        256 << self as usize
    }

    /// Returns the code of verbs and management datagrams: 1 for 256 up to 5 for 4096 (`enum ibv_mtu`).
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// The MTU encoded by `code`, if it is one.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Mtu256),
            2 => Some(Self::Mtu512),
            3 => Some(Self::Mtu1024),
            4 => Some(Self::Mtu2048),
            5 => Some(Self::Mtu4096),
            _ => None,
        }
    }

    /// The largest that is no longer than `bytes`; the smallest if none is.
    #[must_use]
    pub fn within(bytes: usize) -> Self {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= bytes).unwrap_or(Self::Mtu256)
    }

    /// Number of packets of a message of `len` bytes: at least one.
    #[must_use]
    pub const fn packets(self, len: u32) -> u32 {
        if len == 0 { 1 } else { len.div_ceil(256 << self as u32) }
    }
}

#[cfg(test)]
mod tests {
    use super::Mtu;

    #[test]
    fn codes_and_sizes() {
        for (mtu, (code, bytes)) in Mtu::ALL.iter().zip([(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)]) {
            assert_eq!((mtu.code(), mtu.bytes()), (code, bytes));
            assert_eq!(Mtu::from_code(code), Some(*mtu));
        }
        assert_eq!((Mtu::from_code(0), Mtu::from_code(6)), (None, None));
    }

    #[test]
    fn the_largest_within_a_limit() {
        for (bytes, mtu) in [(0, Mtu::Mtu256), (511, Mtu::Mtu256), (512, Mtu::Mtu512), (9000, Mtu::Mtu4096)] {
            assert_eq!(Mtu::within(bytes), mtu);
        }
    }

    #[test]
    fn packets_of_a_message() {
        let mtu = Mtu::Mtu1024;
        assert_eq!([0, 1, 1024, 1025, 2048, u32::MAX].map(|n| mtu.packets(n)), [1, 1, 1, 2, 2, 1 << 22]);
    }
}
