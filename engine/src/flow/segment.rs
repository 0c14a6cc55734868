//! TCP segmentation (`IBV_WR_TSO`): frames out of one header and a long payload, as cards make them.

use super::checksum;
use super::frame::{Header, Headers};

/// TCP flags that the last segment alone has.
const FIN_AND_PSH: u8 = 0x09;
/// TCP flag that the first segment alone has (RFC 3168).
const CWR: u8 = 0x80;

/// Headers of Ethernet, IP and TCP that each segment begins with.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    network: usize,
    is_ipv4: bool,
    tcp: usize,
}

impl Template {
    /// Finds the headers. `None` unless there are IP and TCP, and `header` ends with the latter.
    #[must_use]
    pub fn new(header: &[u8]) -> Option<Self> {
        let headers = Headers::parse(header);
        let tcp = headers.offset(Header::Tcp, false)?;
        let length = usize::from(header.get(tcp + 12)? >> 4) * 4;
        if length < 20 || tcp + length != header.len() {
            return None;
        }
        let ipv4 = headers.offset(Header::Ipv4, false);
        let network = ipv4.or_else(|| headers.offset(Header::Ipv6, false))?;
        Some(Self { network, is_ipv4: ipv4.is_some(), tcp })
    }

    /// Makes a segment of a frame that holds the header and a part of the payload: the part from `offset` on, in the frame of
    /// this number, counted from 0.
    pub fn finish(&self, frame: &mut [u8], number: u16, offset: u32, is_last: bool) {
        let length = frame.len().saturating_sub(self.network);
        let mut change = |at: usize, to: &dyn Fn(u16) -> u16| {
            if let Some(word) = frame.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
                *word = to(u16::from_be_bytes(*word)).to_be_bytes();
            }
        };
        let short = |length: usize| u16::try_from(length).unwrap_or(u16::MAX);
        if self.is_ipv4 {
            change(self.network + 2, &|_| short(length));
            change(self.network + 4, &|id| id.wrapping_add(number));
        } else {
            change(self.network + 4, &|_| short(length.saturating_sub(40)));
        }
        if let Some(sequence) = frame.get_mut(self.tcp + 4..).and_then(<[u8]>::first_chunk_mut) {
            *sequence = u32::from_be_bytes(*sequence).wrapping_add(offset).to_be_bytes();
        }
        if let Some(flags) = frame.get_mut(self.tcp + 13) {
            *flags &= !(if is_last { 0 } else { FIN_AND_PSH } | if number == 0 { 0 } else { CWR });
        }
        checksum::fill(frame);
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

    #[test]
    fn what_is_no_header_of_tcp_is_refused() {
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
