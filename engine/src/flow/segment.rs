//! Segmentation: frames out of one header and a long payload, as cards make them (`IBV_WR_TSO`), and out of frames that the kernel
//! has put together or not cut yet (GSO).

use super::checksum;
use super::frame::{Header, Headers};

/// TCP flags that the last segment alone has.
const FIN_AND_PSH: u8 = 0x09;
/// TCP flag that the first segment alone has (RFC 3168).
const CWR: u8 = 0x80;
const UDP_HEADER: usize = 8;
/// Longest headers that segments begin with: Ethernet with two tags, IPv6 with extensions or IPv4, and TCP.
const MOST_HEADERS: usize = 256;

/// Protocol of segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// A stream: sequence numbers follow one another.
    Tcp,
    /// Datagrams of equal length, except for the last.
    Udp,
}

/// Headers of Ethernet, IP and TCP or UDP that each segment begins with.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    network: usize,
    is_ipv4: bool,
    transport: usize,
    protocol: Protocol,
}

impl Template {
    /// Finds the headers. `None` unless there are IP and TCP, and `header` ends with the latter.
    #[must_use]
    pub fn new(header: &[u8]) -> Option<Self> {
        let (template, length) = Self::find(header, Protocol::Tcp)?;
        (length == header.len()).then_some(template)
    }

    /// Finds the headers that a frame begins with, and their length. Those of a tunnel have no template.
    fn find(frame: &[u8], protocol: Protocol) -> Option<(Self, usize)> {
        let headers = Headers::parse(frame);
        let offset = |header| headers.offset(header, false);
        let (transport, length) = match protocol {
            Protocol::Tcp => {
                let tcp = offset(Header::Tcp)?;
                (tcp, usize::from(frame.get(tcp + 12)? >> 4) * 4)
            }
            Protocol::Udp => (offset(Header::Udp)?, UDP_HEADER),
        };
        let end = transport + length;
        if (protocol == Protocol::Tcp && length < 20) || end > frame.len() {
            return None;
        }
        let ipv4 = offset(Header::Ipv4);
        let network = ipv4.or_else(|| offset(Header::Ipv6))?;
        Some((Self { network, is_ipv4: ipv4.is_some(), transport, protocol }, end))
    }

    /// Makes a segment of a frame that holds the header and a part of the payload: the part from `offset` on, in the frame of
    /// this number, counted from 0.
    pub fn finish(&self, frame: &mut [u8], number: u16, offset: u32, is_last: bool) {
        let short = |length: usize| u16::try_from(length).unwrap_or(u16::MAX);
        let (network, transport) =
            (frame.len().saturating_sub(self.network), frame.len().saturating_sub(self.transport));
        let mut change = |at: usize, to: &dyn Fn(u16) -> u16| {
            if let Some(word) = frame.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
                *word = to(u16::from_be_bytes(*word)).to_be_bytes();
            }
        };
        if self.is_ipv4 {
            change(self.network + 2, &|_| short(network));
            change(self.network + 4, &|id| id.wrapping_add(number));
        } else {
            change(self.network + 4, &|_| short(network.saturating_sub(40)));
        }
        match self.protocol {
            Protocol::Udp => change(self.transport + 4, &|_| short(transport)),
            Protocol::Tcp => {
                if let Some(sequence) = frame.get_mut(self.transport + 4..).and_then(<[u8]>::first_chunk_mut) {
                    *sequence = u32::from_be_bytes(*sequence).wrapping_add(offset).to_be_bytes();
                }
                if let Some(flags) = frame.get_mut(self.transport + 13) {
                    *flags &= !(if is_last { 0 } else { FIN_AND_PSH } | if offset == 0 { 0 } else { CWR });
                }
            }
        }
        checksum::fill(frame);
    }
}

/// Cuts a frame into segments of `size` bytes of payload, and hands each to `each`, the first one first. The bytes of the frame
/// are used for them. False, and no segment, if the frame does not begin with headers of IP and the protocol.
pub fn cut(frame: &mut [u8], protocol: Protocol, size: u16, mut each: impl FnMut(&[u8])) -> bool {
    let Some((template, length)) = Template::find(frame, protocol) else { return false };
    let size = usize::from(size.max(1));
    let mut header = [0; MOST_HEADERS];
    let (Some(header), Some(from)) = (header.get_mut(..length), frame.get(..length)) else { return false };
    header.copy_from_slice(from);
    let (whole, mut offset, mut number) = (frame.len() - length, 0, 0_u16);
    loop {
        let end = whole.min(offset + size);
        let is_last = end == whole;
        // In front of this part of the payload, over the end of the part before, which has been handed on.
        let Some(segment) = frame.get_mut(offset..length + end) else { return false };
        if let Some(to) = segment.get_mut(..length) {
            to.copy_from_slice(header);
        }
        template.finish(segment, number, u32::try_from(offset).unwrap_or(u32::MAX), is_last);
        each(segment);
        if is_last {
            return true;
        }
        (offset, number) = (end, number.wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn header(is_v6: bool) -> Vec<u8> {
        let mut header = Vec::from([2; 12]);
        if is_v6 {
            header.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6, 64]);
            header.extend(1..=32);
        } else {
            header.extend([8, 0, 0x45, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        // Ports, sequence number before its end, acknowledgment, 24 bytes of header, all flags.
        header.extend([0, 1, 0, 2, 0xff, 0xff, 0xff, 0xf0, 0, 0, 0, 9, 0x60, 0xff, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1]);
        header
    }

    #[test]
    fn segments_follow_one_another() {
        for is_v6 in [false, true] {
            let header = header(is_v6);
            let template = Template::new(&header).unwrap();
            for (number, offset, length, is_last, flags) in [(0, 0, 100, false, 0xf6), (1, 100, 30, true, 0x7f)] {
                let mut frame = header.clone();
                frame.resize(header.len() + length, 7);
                template.finish(&mut frame, number, offset, is_last);
                assert!(checksum::is_right(&Headers::parse(&frame), false));
                let tcp = header.len() - 24;
                let sequence = 0xffff_fff0_u32.wrapping_add(offset);
                assert_eq!(frame[tcp + 4..tcp + 8], sequence.to_be_bytes());
                assert_eq!(frame[tcp + 13], flags);
                if is_v6 {
                    assert_eq!(frame[18..20], u16::try_from(24 + length).unwrap().to_be_bytes());
                } else {
                    assert_eq!(frame[16..18], u16::try_from(44 + length).unwrap().to_be_bytes());
                    assert_eq!(frame[18..20], 0xffff_u16.wrapping_add(number).to_be_bytes());
                }
            }
        }
    }

    /// Each segment is what a sender would have made of its part of the payload, though all share one buffer.
    #[test]
    fn a_frame_is_cut_in_place() {
        for is_v6 in [false, true] {
            // Shorter than the headers, and longer; with and without a rest.
            for (size, length) in [(10, 95), (10, 100), (1448, 4000), (1448, 1448), (1448, 0)] {
                let header = header(is_v6);
                let payload: Vec<u8> = (0..length).map(|at: usize| at.to_le_bytes()[0]).collect();
                let mut frame = [&header[..], &payload].concat();
                let template = Template::new(&header).unwrap();
                let mut expected = Vec::new();
                let mut parts: Vec<&[u8]> = payload.chunks(size).collect();
                if parts.is_empty() {
                    parts.push(&[]);
                }
                for (number, part) in parts.iter().enumerate() {
                    let mut segment = [&header[..], part].concat();
                    let offset = u32::try_from(number * size).unwrap();
                    template.finish(&mut segment, u16::try_from(number).unwrap(), offset, number + 1 == parts.len());
                    expected.push(segment);
                }
                let mut found = Vec::new();
                let size = u16::try_from(size).unwrap();
                assert!(cut(&mut frame, Protocol::Tcp, size, |segment| found.push(segment.to_vec())));
                assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn datagrams_are_cut() {
        for is_v6 in [false, true] {
            let tcp = header(is_v6);
            let (network, ip) = (14, if is_v6 { 54 } else { 34 });
            let mut frame = tcp[..ip].to_vec();
            frame[network + if is_v6 { 6 } else { 9 }] = 17;
            frame.extend([0, 1, 0, 2, 0, 0, 0, 0]);
            frame.extend(0..250_u8);
            let mut lengths = Vec::new();
            assert!(cut(&mut frame, Protocol::Udp, 100, |segment| {
                let at = 100 * lengths.len();
                assert!(checksum::is_right(&Headers::parse(segment), false));
                assert_eq!(usize::from(segment[ip + 4]) << 8 | usize::from(segment[ip + 5]), segment.len() - ip);
                assert_eq!(usize::from(segment[ip + 8]), at);
                lengths.push(segment.len() - ip - 8);
            }));
            assert_eq!(lengths, [100, 100, 50]);
        }
    }

    #[test]
    fn frames_of_other_protocols_are_not_cut() {
        let whole = [&header(false)[..], &[7; 100]].concat();
        let refused = |mut frame: Vec<u8>, protocol| !cut(&mut frame, protocol, 10, |_| panic!("a segment"));
        assert!(refused(whole.clone(), Protocol::Udp));
        assert!(refused(Vec::new(), Protocol::Tcp));
        // Inside of a tunnel: VXLAN, whose outer header is of UDP.
        let mut tunnel = whole[..34].to_vec();
        tunnel[23] = 17;
        tunnel.extend([0, 1, 0x12, 0xb5, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 1, 0]);
        tunnel.extend(&whole);
        assert!(refused(tunnel, Protocol::Tcp));
        let mut short = whole;
        short[34 + 12] = 0x40;
        assert!(refused(short, Protocol::Tcp));
    }

    #[test]
    fn malformed_tcp_headers_are_refused() {
        let header = header(false);
        assert!(Template::new(&header[..header.len() - 1]).is_none());
        assert!(Template::new(&[&header[..], &[0]].concat()).is_none());
        let mut udp = header.clone();
        udp[23] = 17;
        assert!(Template::new(&udp).is_none() && Template::new(&[]).is_none());
        let mut short = header;
        short[34 + 12] = 0x40;
        assert!(Template::new(&short).is_none());
    }
}
