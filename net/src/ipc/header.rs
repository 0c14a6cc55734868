//! The header that a datagram travels with between processes of one host: what UDP knew of it.

use std::net::{IpAddr, SocketAddr};

use urxe_wire::Gid;

use crate::sys::{scope_id, socket_address};

/// Bytes of a [`Header`] before the payload.
pub(crate) const HEADER_LEN: usize = 64;

const MAGIC: [u8; 4] = *b"uRxE";

/// UDP and IP headers of a forwarded datagram. All numbers are little-endian in the mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Address it was sent to; the port is implied.
    pub(crate) local: (IpAddr, u32),
    /// Address and source port it came from.
    pub(crate) peer: SocketAddr,
    pub(crate) tclass: u8,
    pub(crate) hop_limit: u8,
    /// Length of each packet but the last.
    pub(crate) segment: u16,
    /// Index in its GRO run of the first packet.
    pub(crate) first: u16,
    /// Whether the datagram came through the unconnected socket: the receiver should open a flow socket.
    pub(crate) learn: bool,
}

impl Header {
    pub(crate) fn emit(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let mut rest = bytes.as_mut_slice();
        let mut put = |field: &[u8]| {
            let (to, after) = core::mem::take(&mut rest).split_at_mut(field.len());
            to.copy_from_slice(field);
            rest = after;
        };
        put(&MAGIC);
        put(&[u8::from(self.learn), self.tclass, self.hop_limit, 0]);
        put(&self.segment.to_le_bytes());
        put(&self.first.to_le_bytes());
        put(&Gid::from(self.local.0).octets());
        put(&self.local.1.to_le_bytes());
        put(&Gid::from(self.peer.ip()).octets());
        put(&scope_id(self.peer).to_le_bytes());
        put(&self.peer.port().to_le_bytes());
        bytes
    }

    /// `None`: no header of this version.
    pub(crate) fn parse(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        let mut rest = bytes.as_slice();
        let magic: [u8; 4] = take(&mut rest)?;
        let [learn, tclass, hop_limit, _] = take(&mut rest)?;
        let segment = u16::from_le_bytes(take(&mut rest)?);
        let first = u16::from_le_bytes(take(&mut rest)?);
        let local = (Gid::new(take(&mut rest)?).ip(), u32::from_le_bytes(take(&mut rest)?));
        let peer_ip = Gid::new(take(&mut rest)?).ip();
        let peer_scope = u32::from_le_bytes(take(&mut rest)?);
        let peer_port = u16::from_le_bytes(take(&mut rest)?);
        if magic != MAGIC || learn > 1 || segment == 0 || peer_ip.is_ipv4() != local.0.is_ipv4() {
            return None;
        }
        let peer = socket_address(peer_ip, peer_port, peer_scope);
        Some(Self { local, peer, tclass, hop_limit, segment, first, learn: learn == 1 })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (field, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*field)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn header() -> Header {
        Header {
            local: ("127.0.0.1".parse().unwrap(), 0),
            peer: "127.0.0.1:50000".parse().unwrap(),
            tclass: 0x2A,
            hop_limit: 63,
            segment: 4112,
            first: 3,
            learn: true,
        }
    }

    #[test]
    fn headers_survive() {
        let v6 = Header {
            local: ("fe80::1".parse().unwrap(), 9),
            peer: "[fe80::2%9]:65535".parse().unwrap(),
            learn: false,
            ..header()
        };
        for header in [header(), v6] {
            assert_eq!(Header::parse(&header.emit()), Some(header));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes: [u8; HEADER_LEN]) {
            prop_assert_eq!(Header::parse(&bytes), None, "random bytes carry no magic");
        }

        #[test]
        fn any_damaged_header_is_parsed_or_refused(at in 4..HEADER_LEN, value: u8) {
            let mut bytes = header().emit();
            bytes[at] = value;
            if let Some(parsed) = Header::parse(&bytes) {
                prop_assert!(parsed.segment > 0);
                prop_assert_eq!(Header::parse(&parsed.emit()), Some(parsed));
            }
        }
    }
}
