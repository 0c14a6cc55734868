//! Port spaces, and the Q_Key of datagrams.

use urxe_wire::cm::ServiceId;

/// `RDMA_UDP_QKEY` of `rdma/rdma_cma.h`.
pub(super) const UDP_QKEY: u32 = 0x0123_4567;

/// `enum rdma_ucm_port_space`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PortSpace {
    Ipoib,
    Tcp,
    Udp,
    Ib,
}

impl PortSpace {
    pub(crate) const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            0x0002 => Self::Ipoib,
            ServiceId::TCP => Self::Tcp,
            ServiceId::UDP => Self::Udp,
            0x013F => Self::Ib,
            _ => return None,
        })
    }

    pub(crate) const fn number(self) -> u16 {
        match self {
            Self::Ipoib => 0x0002,
            Self::Tcp => ServiceId::TCP,
            Self::Udp => ServiceId::UDP,
            Self::Ib => 0x013F,
        }
    }
}
