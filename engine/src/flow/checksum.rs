//! Checksums of IPv4, TCP and UDP inside of frames (RFC 1071): looked at, and filled in.

use urxe_wire::checksum::{fold, sum};

use super::frame::{Header, Headers};

const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;

/// A checksum of a frame: its place, and the bytes that it is over.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: usize,
    start: usize,
    end: usize,
    /// Sum of the pseudo header.
    pseudo: u64,
    is_udp: bool,
}

impl Place {
    fn of_ipv4(headers: &Headers<'_>, is_inner: bool) -> Option<Self> {
        let start = headers.offset(Header::Ipv4, is_inner)?;
        let header = headers.frame().get(start..)?;
        let length = usize::from(header.first()? & 0xf) * 4;
        Some(Self { at: start + 10, start, end: start + length, pseudo: 0, is_udp: false })
    }

    /// Of TCP or UDP. `None` for later fragments, first ones, and packets that are cut off.
    fn of_transport(headers: &Headers<'_>, is_inner: bool) -> Option<Self> {
        if headers.is_first_fragment(is_inner) {
            return None;
        }
        let offset = |header| headers.offset(header, is_inner);
        let (start, protocol, at) = match (offset(Header::Tcp), offset(Header::Udp)) {
            (Some(start), _) => (start, IPPROTO_TCP, start + 16),
            (None, Some(start)) => (start, IPPROTO_UDP, start + 6),
            (None, None) => return None,
        };
        let frame = headers.frame();
        let word = |at: usize| Some(usize::from(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?)));
        let (addresses, end) = if let Some(ip) = offset(Header::Ipv4) {
            (frame.get(ip + 12..ip + 20)?, ip + word(ip + 2)?)
        } else {
            let ip = offset(Header::Ipv6)?;
            (frame.get(ip + 8..ip + 40)?, ip + 40 + word(ip + 4)?)
        };
        let length = frame.get(start..end)?.len();
        let pseudo = sum(addresses) + u64::from(protocol) + length as u64;
        (at + 2 <= end).then_some(Self { at, start, end, pseudo, is_udp: protocol == IPPROTO_UDP })
    }

    fn is_right(&self, frame: &[u8]) -> bool {
        let has_none = self.is_udp && frame.get(self.at..self.at + 2) == Some(&[0, 0]);
        has_none || frame.get(self.start..self.end).is_some_and(|bytes| fold(sum(bytes) + self.pseudo) == 0xffff)
    }

    /// Whether the field holds what the kernel leaves there for a card to go on from: the sum of the pseudo header.
    fn is_partial(&self, frame: &[u8]) -> bool {
        frame.get(self.at..self.at + 2) == Some(&fold(self.pseudo).to_be_bytes())
    }

    fn fill(&self, frame: &mut [u8]) {
        if let Some(field) = frame.get_mut(self.at..self.at + 2) {
            field.fill(0);
        }
        let Some(bytes) = frame.get(self.start..self.end) else { return };
        let checksum = match !fold(sum(bytes) + self.pseudo) {
            // Zero would say that there is none.
            0 if self.is_udp => 0xffff,
            checksum => checksum,
        };
        if let Some(field) = frame.get_mut(self.at..self.at + 2) {
            field.copy_from_slice(&checksum.to_be_bytes());
        }
    }
}

/// Whether a frame of TCP or UDP over IP has the right checksums (`IBV_WC_IP_CSUM_OK`). `is_trusted`: whoever has handed the
/// frame on answers for that of TCP or UDP.
#[must_use]
pub fn is_right(headers: &Headers<'_>, is_trusted: bool) -> bool {
    let frame = headers.frame();
    let network = Place::of_ipv4(headers, false).is_none_or(|place| place.is_right(frame));
    network && Place::of_transport(headers, false).is_some_and(|place| is_trusted || place.is_right(frame))
}

/// Fills in the checksums of IPv4 and of TCP or UDP.
pub fn fill(frame: &mut [u8]) {
    let headers = Headers::parse(frame);
    let places = [Place::of_ipv4(&headers, false), Place::of_transport(&headers, false)];
    for place in places.into_iter().flatten() {
        place.fill(frame);
    }
}

/// Completes the checksum of TCP or UDP that the kernel has left to a card. Of a tunnelled frame it is the inner one, if that is
/// begun: the outer one is right then, or 0.
pub fn complete(frame: &mut [u8]) {
    let headers = Headers::parse(frame);
    let inner = Place::of_transport(&headers, true).filter(|place| place.is_partial(frame));
    if let Some(place) = inner.or_else(|| Place::of_transport(&headers, false)) {
        place.fill(frame);
    }
}

/// Completes the checksum of TCP or UDP if it is begun: the field holds the sum of the pseudo header. Returns whether it was.
///
/// A checksum that is right stays what it is, also where it looks as if it were begun.
pub fn complete_begun(frame: &mut [u8]) -> bool {
    let headers = Headers::parse(frame);
    let places = [true, false].into_iter().filter_map(|is_inner| Place::of_transport(&headers, is_inner));
    let begun = places.into_iter().find(|place| place.is_partial(frame));
    if let Some(place) = begun {
        place.fill(frame);
    }
    begun.is_some()
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn packet(is_v6: bool, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::from([0; 12]);
        let header = if protocol == IPPROTO_TCP { 20 } else { 8 };
        let length = u16::try_from(header + payload.len()).unwrap();
        if is_v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(length.to_be_bytes());
            frame.extend([protocol, 64]);
            frame.extend(1..=32);
        } else {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((length + 20).to_be_bytes());
            frame.extend([0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        let start = frame.len();
        frame.extend([0x12, 0x34, 0x56, 0x78]);
        frame.extend(length.to_be_bytes());
        frame.resize(start + header, 0);
        frame.extend(payload);
        frame
    }

    #[test]
    fn filled_checksums_are_right_and_flipped_bits_make_them_wrong() {
        for is_v6 in [false, true] {
            for protocol in [IPPROTO_TCP, IPPROTO_UDP] {
                for payload in [&[][..], &[1], &[1, 2, 3, 4]] {
                    let mut frame = packet(is_v6, protocol, payload);
                    fill(&mut frame);
                    // Padding is none of the packet's.
                    frame.extend([7; 9]);
                    assert!(is_right(&Headers::parse(&frame), false));
                    let last = frame.len() - 10;
                    frame[last] ^= 1;
                    assert!(!is_right(&Headers::parse(&frame), false) && is_right(&Headers::parse(&frame), true));
                    complete(&mut frame);
                    assert!(is_right(&Headers::parse(&frame), false));
                }
            }
        }
    }

    #[test]
    fn of_a_tunnelled_frame_the_checksum_that_is_begun_is_completed() {
        let mut inner = packet(false, IPPROTO_TCP, &[1, 2, 3]);
        fill(&mut inner);
        let whole = inner.clone();
        // As the kernel leaves it: the sum of the pseudo header.
        let pseudo = Place::of_transport(&Headers::parse(&inner), false).unwrap().pseudo;
        inner[14 + 20 + 16..][..2].copy_from_slice(&fold(pseudo).to_be_bytes());
        let tunnelled = |inner: &[u8]| {
            let mut frame = packet(false, IPPROTO_UDP, &[&[8, 0, 0, 0, 0, 0, 1, 0][..], inner].concat());
            frame[34 + 2..][..2].copy_from_slice(&4789_u16.to_be_bytes());
            frame
        };
        let (mut begun, outer) = (tunnelled(&inner), tunnelled(&whole));
        complete(&mut begun);
        assert_eq!(begun, outer, "the inner one, and the outer one stays 0");
        let mut frame = outer.clone();
        complete(&mut frame);
        assert_ne!(frame[34 + 6..][..2], [0, 0], "the outer one, as the inner one is not begun");
        assert_eq!(frame[34 + 8..], outer[34 + 8..]);
    }

    #[test]
    fn only_checksums_that_are_begun_are_completed() {
        for is_v6 in [false, true] {
            for protocol in [IPPROTO_TCP, IPPROTO_UDP] {
                let mut frame = packet(is_v6, protocol, &[1, 2, 3]);
                fill(&mut frame);
                let whole = frame.clone();
                assert!(!complete_begun(&mut frame) && frame == whole);
                let place = Place::of_transport(&Headers::parse(&frame), false).unwrap();
                frame[place.at..place.at + 2].copy_from_slice(&fold(place.pseudo).to_be_bytes());
                assert!(complete_begun(&mut frame) && frame == whole);
                frame[place.at] ^= 1;
                let wrong = frame.clone();
                assert!(!complete_begun(&mut frame) && frame == wrong, "a checksum that is wrong stays so");
            }
        }
    }

    #[test]
    fn packets_that_are_cut_off_are_left_alone() {
        let mut frame = packet(false, IPPROTO_UDP, &[1, 2, 3]);
        frame.pop();
        let before = frame.clone();
        assert!(!is_right(&Headers::parse(&frame), true));
        complete(&mut frame);
        assert_eq!(frame, before);
    }

    #[test]
    fn first_fragments_are_left_alone() {
        let mut frame = packet(true, IPPROTO_UDP, &[1, 2, 3]);
        let length = u16::from_be_bytes([frame[18], frame[19]]) + 8;
        frame[18..20].copy_from_slice(&length.to_be_bytes());
        frame[20] = 44;
        for more in [1, 0] {
            let mut frame = frame.clone();
            frame.splice(54..54, [IPPROTO_UDP, 0, 0, more, 0, 0, 0, 1]);
            let before = frame.clone();
            complete(&mut frame);
            assert_eq!((frame == before, is_right(&Headers::parse(&frame), true)), (more == 1, more == 0));
        }
    }
}
