//! Receive side scaling: the Toeplitz hash, and the queue that it picks.

use super::frame::{Header, Headers};

/// Bytes of a key.
pub const KEY: usize = 40;

/// Longest input: two IPv6 addresses and two ports.
const INPUT: usize = 36;

/// Fields that a hash is over: bits of `enum ibv_rx_hash_fields`, header, offset and length, in the order in which they are
/// hashed.
const FIELDS: [(u64, Header, usize, usize); 8] = [
    (1 << 0, Header::Ipv4, 12, 4),
    (1 << 1, Header::Ipv4, 16, 4),
    (1 << 2, Header::Ipv6, 8, 16),
    (1 << 3, Header::Ipv6, 24, 16),
    (1 << 4, Header::Tcp, 0, 2),
    (1 << 5, Header::Tcp, 2, 2),
    (1 << 6, Header::Udp, 0, 2),
    (1 << 7, Header::Udp, 2, 2),
];

/// Mask of the fields that can be hashed.
pub const ALL_FIELDS: u64 = 0xff;

/// A hash function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Toeplitz {
    /// Key.
    pub key: [u8; KEY],
    /// Fields (`enum ibv_rx_hash_fields`).
    pub fields: u64,
}

impl Toeplitz {
    /// Returns the hash of a frame: over those of the fields that it has, and 0 if it has none.
    #[must_use]
    pub fn hash(&self, headers: &Headers<'_>) -> u32 {
        let (mut input, mut length) = ([0; INPUT], 0);
        for (_, header, offset, width) in FIELDS.into_iter().filter(|(bit, ..)| self.fields & bit != 0) {
            let field = headers.at(header, false).and_then(|header| header.get(offset..offset + width));
            if let (Some(field), Some(place)) = (field, input.get_mut(length..length + width)) {
                place.copy_from_slice(field);
                length += width;
            }
        }
        input.get(..length).map_or(0, |input| self.hash_bytes(input))
    }

    /// Returns the hash of bytes: the exclusive or of the key's 32 bits from each bit on that is set.
    fn hash_bytes(&self, input: &[u8]) -> u32 {
        let word = |at: usize| {
            (at..at + 5).fold(0, |sum: u64, at| sum << 8 | u64::from(self.key.get(at).copied().unwrap_or(0)))
        };
        let mut hash = 0;
        for (at, byte) in input.iter().enumerate() {
            // Forty bits of the key: a window of 32 for each bit of the byte.
            let window = word(at);
            for bit in 0..8 {
                if byte & (0x80 >> bit) != 0 {
                    hash ^= window >> (8 - bit);
                }
            }
        }
        u32::try_from(hash & u64::from(u32::MAX)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// Key and vectors of Microsoft's "Verifying the RSS Hash Calculation".
    const MICROSOFT: [u8; KEY] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
        0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
        0xbe, 0xac, 0x01, 0xfa,
    ];
    /// Source and destination, their ports, the hash of addresses, and that of both.
    type Ipv4 = ([u8; 4], [u8; 4], u16, u16, u32, u32);
    const VECTORS: [Ipv4; 5] = [
        ([66, 9, 149, 187], [161, 142, 100, 80], 2794, 1766, 0x323e_8fc2, 0x51cc_c178),
        ([199, 92, 111, 2], [65, 69, 140, 83], 14230, 4739, 0xd718_262a, 0xc626_b0ea),
        ([24, 19, 198, 95], [12, 22, 207, 184], 12898, 38024, 0xd2d0_a5de, 0x5c2b_394a),
        ([38, 27, 205, 30], [209, 142, 163, 6], 48228, 2217, 0x8298_9176, 0xafc7_327f),
        ([153, 39, 163, 191], [202, 188, 127, 2], 44251, 1303, 0x5d18_09c5, 0x10e8_28a2),
    ];

    type Ipv6 = (u128, u128, u16, u16, u32, u32);
    const VECTORS_OF_IPV6: [Ipv6; 3] = [
        (
            0x3ffe_2501_0200_1fff_0000_0000_0000_0007,
            0x3ffe_2501_0200_0003_0000_0000_0000_0001,
            2794,
            1766,
            0x2cc1_8cd5,
            0x4020_7d3d,
        ),
        (
            0x3ffe_0501_0008_0000_0260_97ff_fe40_efab,
            0xff02_0000_0000_0000_0000_0000_0000_0001,
            14230,
            4739,
            0x0f0c_461c,
            0xdde5_1bbf,
        ),
        (
            0x3ffe_1900_4545_0003_0200_f8ff_fe21_67cf,
            0xfe80_0000_0000_0000_0200_f8ff_fe21_67cf,
            44251,
            38024,
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];

    fn tcp(src: [u8; 4], dst: [u8; 4], src_port: u16, dst_port: u16) -> Vec<u8> {
        let mut frame = Vec::from([0; 12]);
        frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0]);
        frame.extend([src, dst].concat());
        frame.extend(src_port.to_be_bytes());
        frame.extend(dst_port.to_be_bytes());
        frame.extend([0; 16]);
        frame
    }

    #[test]
    fn vectors_of_microsoft_over_ipv4() {
        for (src, dst, src_port, dst_port, addresses, both) in VECTORS {
            let frame = tcp(src, dst, src_port, dst_port);
            let hash = |fields| Toeplitz { key: MICROSOFT, fields }.hash(&Headers::parse(&frame));
            assert_eq!((hash(0x3), hash(0x33)), (addresses, both));
            // Fields that the packet does not have.
            assert_eq!((hash(0xc3), hash(0xff), hash(0xcc), hash(0)), (addresses, both, 0, 0));
        }
    }

    #[test]
    fn vectors_of_microsoft_over_ipv6() {
        for (src, dst, src_port, dst_port, addresses, both) in VECTORS_OF_IPV6 {
            let mut frame = Vec::from([0; 12]);
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
            frame.extend([src.to_be_bytes(), dst.to_be_bytes()].concat());
            frame.extend([src_port.to_be_bytes(), dst_port.to_be_bytes()].concat());
            frame.extend([0; 16]);
            let hash = |fields| Toeplitz { key: MICROSOFT, fields }.hash(&Headers::parse(&frame));
            assert_eq!((hash(0xc), hash(0x3c)), (addresses, both));
        }
    }
}
