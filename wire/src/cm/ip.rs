//! RDMA IP CM service: which ports and addresses a connection is between (IBA annex A11).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A service id of an IP port: a prefix, the port space, the port (IBA A11.3; `rdma_get_service_id` in the kernel).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The port space of connections, `RDMA_PS_TCP`.
    pub const TCP: u16 = 0x0106;
    /// The port space of datagrams, `RDMA_PS_UDP`.
    pub const UDP: u16 = 0x0111;

    /// The service of a port in a port space.
    #[must_use]
    pub const fn new(port_space: u16, port: u16) -> Self {
        Self((port_space as u64) << 16 | port as u64)
    }

    /// Port space and port; `None` if it is no service of an IP port.
    #[must_use]
    pub const fn parts(self) -> Option<(u16, u16)> {
        let [0, 0, 0, 0, s0, s1, p0, p1] = self.0.to_be_bytes() else { return None };
        Some((u16::from_be_bytes([s0, s1]), u16::from_be_bytes([p0, p1])))
    }
}

/// Header before the consumer's private data in REQ and SIDR_REQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpHeader {
    /// The sender's port.
    pub src_port: u16,
    /// Both addresses, sender's first: of one IP version.
    pub addresses: IpPair,
}

/// Two addresses of one IP version: source, destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "named after what they hold")]
pub enum IpPair {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl IpPair {
    /// `None` if they are of different versions.
    #[must_use]
    pub const fn new(src: IpAddr, dst: IpAddr) -> Option<Self> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::V4(src, dst)),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::V6(src, dst)),
            _ => None,
        }
    }

    /// Source.
    #[must_use]
    pub const fn src(&self) -> IpAddr {
        match self {
            Self::V4(src, _) => IpAddr::V4(*src),
            Self::V6(src, _) => IpAddr::V6(*src),
        }
    }

    /// Destination.
    #[must_use]
    pub const fn dst(&self) -> IpAddr {
        match self {
            Self::V4(_, dst) => IpAddr::V4(*dst),
            Self::V6(_, dst) => IpAddr::V6(*dst),
        }
    }
}

impl IpHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 36;

    /// Reads the header; `None` if it is of another major version or no IP version. Reserved bits are ignored.
    #[must_use]
    pub fn parse(b: &[u8; Self::LEN]) -> Option<Self> {
        let field = |offset: usize| -> [u8; 16] { core::array::from_fn(|i| b[offset + i]) };
        if b[0] >> 4 != 0 {
            return None;
        }
        let (src, dst) = (field(4), field(20));
        let v4 = |bytes: [u8; 16]| Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]);
        let addresses = match b[1] >> 4 {
            4 => IpPair::V4(v4(src), v4(dst)),
            6 => IpPair::V6(src.into(), dst.into()),
            _ => return None,
        };
        Some(Self { src_port: u16::from_be_bytes([b[2], b[3]]), addresses })
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        let (version, src, dst) = match self.addresses {
            IpPair::V4(src, dst) => {
                let field = |ip: Ipv4Addr| {
                    let mut field = [0; 16];
                    field[12..].copy_from_slice(&ip.octets());
                    field
                };
                (4, field(src), field(dst))
            }
            IpPair::V6(src, dst) => (6, src.octets(), dst.octets()),
        };
        b[0] = 0;
        b[1] = version << 4;
        b[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        b[4..20].copy_from_slice(&src);
        b[20..36].copy_from_slice(&dst);
    }
}
