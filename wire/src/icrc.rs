//! The invariant CRC, and what a UDP socket can know of it.
//!
//! The ICRC is the CRC-32 of Ethernet over eight bytes of ones (in place of a local route header), the IP and
//! UDP headers and the packet from the BTH to the pad bytes, where fields that routers may change count as
//! ones: IPv4 TOS, TTL and header checksum; IPv6 traffic class, flow label and hop limit; the UDP checksum; the
//! byte of the BTH that holds FECN and BECN. It goes on the wire in little-endian order.
//! Sources: IBA 7.8.1, annex A17.3.3; `drivers/infiniband/sw/rxe/rxe_icrc.c`.
//!
//! It covers the **IPv4 identification**, which a UDP socket neither sets nor sees. Sending, the kernel's habit
//! helps: an unconnected socket with DF numbers the segments of a send 0, 1, 2… Receiving, algebra does: a CRC
//! is linear, so the difference between the ICRC received and the ICRC computed for identification 0 is the
//! difference of the identifications, shifted by the bytes that follow. [`verify`] undoes the shift; if what
//! comes out fits into an identification and the DF bit, the packet is taken as whole, and the identification
//! is known.
//!
//! That costs strength. A packet damaged at random passes with probability
//!
//! | | |
//! |---|---|
//! | IPv6, or IPv4 with the expected identification ([`Check::Exact`]) | 2^-32 |
//! | IPv4, any identification with DF set | 2^-16 |
//! | IPv4, any identification with or without DF | 2^-15 |
//!
//! One to three flipped bits, which an exact check always finds in a packet of any RoCE length, may pass for
//! another identification as well. A single one does so in two places of a packet of 4096 bytes, and both times
//! looks like a sender without DF; so whoever knows that a peer sets DF, as Linux does, should take
//! `Recovered { df: false, .. }` for damage.
//!
//! The same algebra keeps the headers out of the way: a [`Flow`] is the CRC of all that stays the same from packet
//! to packet, and what does not (lengths, identification, FECN and BECN) is added to it before the packet is
//! read, once and in place.

mod crc32;

use core::net::{IpAddr, SocketAddr};

use crate::{Bth, ICRC_LEN};
use crc32::FEW;

const ONES: usize = 8;
const UDP_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const DONT_FRAGMENT: u8 = 0x40;

/// The masked headers below the BTH of all packets that go one way between two UDP endpoints.
#[derive(Clone, Debug)]
pub struct Flow {
    /// CRC of the addresses, with lengths and identification 0.
    crc: u32,
    is_ipv4: bool,
}

impl Flow {
    /// The flow from `src` to `dst`, which must be of one address family. IPv4-mapped IPv6 addresses, as a
    /// dual-stack socket has them, are IPv4 ones on the wire.
    #[must_use]
    pub fn new(src: SocketAddr, dst: SocketAddr) -> Self {
        let mut crc = crc32::extend(0, &[0xFF; ONES]);
        let mut add = |bytes: &[u8]| crc = crc32::extend(crc, bytes);
        let is_ipv4 = match (src.ip().to_canonical(), dst.ip().to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                // Version and header length, TOS, total length, identification, flags, TTL, protocol, checksum.
                add(&[0x45, 0xFF, 0, 0, 0, 0, DONT_FRAGMENT, 0, 0xFF, 17, 0xFF, 0xFF]);
                add(&src.octets());
                add(&dst.octets());
                true
            }
            (src, dst) => {
                let octets = |ip: IpAddr| match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                    IpAddr::V6(ip) => ip.octets(),
                };
                // Version, traffic class and flow label, payload length, next header, hop limit.
                add(&[0x6F, 0xFF, 0xFF, 0xFF, 0, 0, 17, 0xFF]);
                add(&octets(src));
                add(&octets(dst));
                false
            }
        };
        add(&src.port().to_be_bytes());
        add(&dst.port().to_be_bytes());
        // Length and checksum.
        add(&[0, 0, 0xFF, 0xFF]);
        Self { crc, is_ipv4 }
    }
}

/// Whether a packet's ICRC is right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// Right, with the identification that was expected.
    Exact,
    /// Right for an IPv4 header with this identification and DF bit.
    Recovered {
        /// The identification the sender used.
        id: u16,
        /// Whether "don't fragment" was set.
        df: bool,
    },
    /// Wrong: the packet was damaged, or forged without care.
    Bad,
}

/// The ICRC of `packet`, the bytes from the BTH to the padding, as sent on `flow` with DF set and this IPv4
/// identification (IPv6 has none). Goes behind the packet in little-endian order.
///
/// Lengths are computed modulo 2^16, as they would be on the wire.
#[must_use]
//= spec/packets.md#pkt-009
//# The ICRC MUST cover all of the packet but what routers change, for which ones are put in.
pub fn compute(flow: &Flow, ip_id: u16, packet: &[u8]) -> u32 {
    let headers = if flow.is_ipv4 {
        IPV4_LENGTHS.crc(packet.len()) ^ IPV4_IDENTIFICATION.crc(ip_id)
    } else {
        IPV6_LENGTHS.crc(packet.len())
    };
    // Ones in place of FECN, BECN and the bits beside them.
    let congestion = packet.get(CONGESTION_AT).map_or(0, |byte| CONGESTION[usize::from(!byte)]);
    crc32::extend(flow.crc ^ headers ^ congestion, packet)
}

#[expect(clippy::cast_possible_truncation, reason = "header fields are 16 bits wide")]
const fn low16(len: usize) -> u16 {
    len as u16
}

/// Checks the ICRC at the end of `datagram` (BTH to ICRC) received on `flow`.
///
/// `expected_id` is the IPv4 identification to try first. From an unconnected socket with DF it is 0, or the
/// segment's index in a coalesced run; a peer whose identifications have to be recovered mostly counts up
/// (`ip_select_ident` of Linux does, for each pair of addresses), so that one more than last time is a good guess,
/// and makes the check an exact one.
#[must_use]
#[inline]
pub fn verify(flow: &Flow, expected_id: u16, datagram: &[u8]) -> Check {
    let Some((packet, icrc)) = datagram.split_last_chunk::<ICRC_LEN>() else { return Check::Bad };
    if packet.len() < Bth::LEN {
        return Check::Bad;
    }
    let syndrome = compute(flow, expected_id, packet) ^ u32::from_le_bytes(*icrc);
    if syndrome == 0 {
        return Check::Exact;
    }
    if flow.is_ipv4 { recover(syndrome, expected_id, packet.len()) } else { Check::Bad }
}

/// Interprets the difference between the ICRC of a packet of `len` bytes and the expected one.
#[inline(never)]
fn recover(syndrome: u32, expected_id: u16, len: usize) -> Check {
    // From the identification to the end of what the CRC covers.
    let [first, second, flags, zero] = unshift(syndrome, IPV4_LEN - 4 + UDP_LEN + len).to_le_bytes();
    let df = match (flags, zero) {
        (0, 0) => true,
        (DONT_FRAGMENT, 0) => false,
        _ => return Check::Bad,
    };
    Check::Recovered { id: expected_id ^ u16::from_be_bytes([first, second]), df }
}

/// Contributions of each value of a 16-bit header field to the CRC up to the BTH.
struct Field {
    high: [u32; 256],
    low: [u32; 256],
}

impl Field {
    /// The field that ends this many bytes before the BTH.
    const fn before_bth(bytes: usize) -> Self {
        Self { high: shifted_bytes(BYTE, bytes + 2), low: shifted_bytes(BYTE, bytes + 1) }
    }

    const fn crc(&self, value: u16) -> u32 {
        let [high, low] = value.to_be_bytes();
        self.high[high as usize] ^ self.low[low as usize]
    }
}

/// Contributions of the lengths in the IP and the UDP header to the CRC up to the BTH.
struct Lengths {
    ip: Field,
    /// Bytes that the length in the IP header counts, besides those that the one in the UDP header does.
    more: usize,
    /// Of packets of so few bytes.
    few: [u32; FEW + 1],
}

impl Lengths {
    const fn new(ip: Field, more: usize) -> Self {
        let mut lengths = Self { ip, more, few: [0; FEW + 1] };
        let mut len = 0;
        while len <= FEW {
            lengths.few[len] = lengths.sum(len);
            len += 1;
        }
        lengths
    }

    /// Contribution of the lengths of a packet of `len` bytes.
    fn crc(&self, len: usize) -> u32 {
        self.few.get(len).copied().unwrap_or_else(|| self.sum(len))
    }

    const fn sum(&self, len: usize) -> u32 {
        let udp_len = UDP_LEN + len + ICRC_LEN;
        self.ip.crc(low16(self.more + udp_len)) ^ UDP_LENGTH.crc(low16(udp_len))
    }
}

static IPV4_IDENTIFICATION: Field = Field::before_bth(IPV4_LEN - 6 + UDP_LEN);
static IPV4_LENGTHS: Lengths = Lengths::new(Field::before_bth(IPV4_LEN - 4 + UDP_LEN), IPV4_LEN);
static IPV6_LENGTHS: Lengths = Lengths::new(Field::before_bth(IPV6_LEN - 6 + UDP_LEN), 0);
static UDP_LENGTH: Field = Field::before_bth(UDP_LEN - 6);

/// Where FECN and BECN are in the BTH.
const CONGESTION_AT: usize = 4;

/// Correction of the CRC before the BTH that adds the index to the byte of FECN and BECN.
static CONGESTION: [u32; 256] = shifted_bytes(INVERSE_BYTE, CONGESTION_AT);

/// The CRC-32 polynomial, bits reversed: bit 31 is the constant term.
const POLYNOMIAL: u32 = 0xEDB8_8320;

/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// x^8: a byte passes through the CRC register.
const BYTE: u32 = ONE >> 8;

/// x^-8.
const INVERSE_BYTE: u32 = {
    let mut power = ONE;
    let mut step = 0;
    while step < 8 {
        // Divide by x: the reverse of "shift right, and add the polynomial if a bit fell out".
        power = if power & 1 << 31 != 0 { (power ^ POLYNOMIAL) << 1 | 1 } else { power << 1 };
        step += 1;
    }
    power
};

/// Undoes the effect of `bytes` zero bytes, fewer than 2^16, passing through the CRC register: divides by
/// x^(8 · bytes).
fn unshift(register: u32, bytes: usize) -> u32 {
    let [low, high, ..] = bytes.to_le_bytes();
    let register = multiply(register, INVERSE_POWERS[usize::from(low)]);
    multiply(register, INVERSE_POWERS_OF_256[usize::from(high)])
}

/// x^(-8 · n).
static INVERSE_POWERS: [u32; 256] = powers(INVERSE_BYTE);

/// x^(-8 · 256 · n).
static INVERSE_POWERS_OF_256: [u32; 256] = powers(multiply(powers(INVERSE_BYTE)[255], INVERSE_BYTE));

/// `base` to the powers of 0 to 255.
const fn powers(base: u32) -> [u32; 256] {
    let mut powers = [ONE; 256];
    let mut at = 1;
    while at < powers.len() {
        powers[at] = multiply(powers[at - 1], base);
        at += 1;
    }
    powers
}

/// Each byte, times `base` to the power of `times`.
const fn shifted_bytes(base: u32, times: usize) -> [u32; 256] {
    let power = powers(base)[times];
    let mut shifted = [0; 256];
    let (mut at, mut byte) = (0, 0);
    while at < shifted.len() {
        // A byte enters the register at its low end.
        shifted[at] = multiply(byte, power);
        (at, byte) = (at + 1, byte + 1);
    }
    shifted
}

/// The product of two polynomials modulo the CRC-32 polynomial, all with bits reversed.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        // Masks rather than branches: the bits are as good as random.
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
    }
    product
}

#[cfg(test)]
mod tests;
