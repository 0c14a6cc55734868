//! Claims of management datagrams: which process of this host takes the unsolicited ones of a class.
//!
//! The process of an agent holds an abstract name for each method that the agent takes, and its socket is the mailbox for
//! such datagrams; an agent that takes all methods of a class holds one name. Names belong to an interface, as agents of
//! the kernel do. Responses need none: the upper half of their transaction id is a QPN of the requester's process.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use urxe_wire::Qpn;
use urxe_wire::mad::{self, Mad, smp, subnet_vendor};

use crate::cm_service::{Service, Services};
use crate::mailbox::{MadName, Mailbox};
use crate::qpn_registry::block_of;
use crate::sys::cancellation::CancelGuard;
use crate::sys::fd::FdSet;

/// Unsolicited datagrams that a process takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadClaim {
    /// Management class.
    pub class: u8,
    /// Version of the class.
    pub version: u8,
    /// Vendor, zero for classes that name none.
    pub oui: [u8; 3],
    /// A bit for each method.
    pub methods: u128,
}

/// Ways of a management datagram within the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MadWay {
    /// Handled by the process that has it: there is no mailbox for it, or none is needed.
    Here,
    /// Forwarded to a process, by the QPN block in its transaction id.
    Response(Mailbox),
    /// Forwarded to the first of these that a process has.
    Request([Mailbox; 2]),
}

impl MadName {
    /// Whether a process holds the name.
    fn is_held(&self) -> io::Result<bool> {
        let _guard = CancelGuard::new();
        let socket = UnixDatagram::unbound()?;
        Ok(socket.connect_addr(&self.address()?).is_ok())
    }
}

impl MadWay {
    /// Finds the way of a packet to QP1 of an interface.
    pub(crate) fn of(packet: &[u8], interface: u32) -> Self {
        let datagram = mad::in_packet(packet);
        let Some((datagram, header)) = datagram.and_then(|datagram| Some((datagram, Mad::of(datagram)?))) else {
            return Self::Here;
        };
        if header.class == Mad::CLASS_CM {
            return Self::Here;
        }
        if header.is_response() {
            let [_, a, b, c, ..] = header.transaction_id.to_be_bytes();
            let block = block_of(Qpn::new(u32::from_be_bytes([0, a, b, c])));
            return if block == 0 { Self::Here } else { Self::Response(Mailbox::Block(block)) };
        }
        // Everybody who has joined has a copy; and a question is the owner's.
        if subnet_vendor::is_announcement(&header, datagram) {
            return Self::Here;
        }
        // Whoever gets it answers for the port. `SMInfo` is its subnet manager's, if there is one.
        if smp::is_class(header.class)
            && matches!(header.method, Mad::METHOD_GET | Mad::METHOD_SET)
            && header.attribute_id != smp::Attribute::SmInfo as u16
        {
            return Self::Here;
        }
        if header.class == Mad::CLASS_PERF && matches!(header.method, Mad::METHOD_GET | Mad::METHOD_SET) {
            return Self::Here;
        }
        let oui = if mad::is_vendor_with_oui(header.class) { mad::oui(datagram) } else { [0; 3] };
        let name = |method| {
            let (class, version) = (header.class, header.class_version);
            Mailbox::Mad(MadName { interface, class, version, oui, method })
        };
        Self::Request([name(None), name(Some(header.method))])
    }
}

impl MadClaim {
    /// Takes the names of the claim.
    pub(crate) fn bind(&self, fds: &Arc<FdSet>, services: &Arc<Services>, interface: u32) -> io::Result<Vec<Service>> {
        let Self { class, version, oui, methods } = *self;
        let name = |method| MadName { interface, class, version, oui, method };
        let of_each = || (0..128).filter(|method| methods & (1 << method) != 0).map(|method| name(Some(method)));
        let take = |name| Service::bind_mailbox(fds, services, Mailbox::Mad(name));
        let (taken, others): (io::Result<Vec<_>>, Vec<_>) = match methods {
            0 => return Ok(Vec::new()),
            u128::MAX => (take(name(None)).map(|one| vec![one]), of_each().collect()),
            _ => (of_each().map(take).collect(), vec![name(None)]),
        };
        let taken = taken?;
        // After the own names are held: of two processes that claim the same at a time, at most one gets it.
        for other in others {
            if other.is_held()? {
                return Err(io::ErrorKind::AddrInUse.into());
            }
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use urxe_wire::mad::MAD_LEN;

    use super::*;

    const VENDOR: u8 = 0x32;

    fn claim(class: u8, methods: u128) -> MadClaim {
        MadClaim { class, version: 1, oui: [0, 0x14, 5], methods }
    }

    /// An interface of this test's process alone.
    fn interface() -> u32 {
        0x8000_0000 | std::process::id()
    }

    #[test]
    fn a_method_has_one_process() {
        let (fds, services) = (FdSet::new().unwrap(), Arc::new(Services::default()));
        let bind = |claim: MadClaim| claim.bind(&fds, &services, interface());
        let refused = |claim| bind(claim).unwrap_err().kind() == io::ErrorKind::AddrInUse;
        let two = bind(claim(VENDOR, 0b0110)).unwrap();
        assert_eq!(two.len(), 2);
        assert!(refused(claim(VENDOR, 0b0100)) && refused(claim(VENDOR, u128::MAX)));
        assert_eq!(bind(claim(VENDOR, 0b1001)).unwrap().len(), 2, "other methods, and what was refused holds nothing");
        drop(two);
        let all = bind(claim(VENDOR, u128::MAX)).unwrap();
        assert_eq!(all.len(), 1);
        assert!(refused(claim(VENDOR, 1)));
        assert_eq!(bind(claim(VENDOR + 1, 1)).unwrap().len(), 1);
        assert!(bind(claim(VENDOR, 0)).unwrap().is_empty(), "responses only");
    }

    fn packet(class: u8, method: u8, transaction_id: u64) -> Vec<u8> {
        let header = Mad {
            class,
            class_version: 1,
            method,
            status: 0,
            class_specific: 0,
            transaction_id,
            attribute_id: 0,
            attribute_modifier: 0,
        };
        let mut datagram = [0; MAD_LEN];
        header.emit(datagram.first_chunk_mut().unwrap());
        datagram[37..40].copy_from_slice(&[0, 0x14, 5]);
        [&[0; 20][..], &datagram, &[0; 4]].concat()
    }

    #[test]
    fn responses_go_by_transaction_id_and_requests_by_class() {
        let of = |class, method, id| MadWay::of(&packet(class, method, id), 3);
        assert_eq!(of(VENDOR, 0x81, 0xAB12_3456 << 32), MadWay::Response(Mailbox::Block(0x1234)));
        assert_eq!(of(VENDOR, 0x81, 0xAB00_0056 << 32), MadWay::Here, "a kernel's transaction");
        let name = |method| MadName { interface: 3, class: VENDOR, version: 1, oui: [0, 0x14, 5], method };
        let names = [Mailbox::Mad(name(None)), Mailbox::Mad(name(Some(1)))];
        assert_eq!(of(VENDOR, 1, 7), MadWay::Request(names));
        assert_eq!(of(Mad::CLASS_PERF, 1, 7), MadWay::Here);
        assert_eq!(of(Mad::CLASS_CM, 3, 7), MadWay::Here);
        assert_eq!(of(Mad::CLASS_SUBN_LID, 1, 7), MadWay::Here, "of the port");
        assert!(matches!(of(Mad::CLASS_SUBN_LID, Mad::METHOD_TRAP, 7), MadWay::Request(_)), "of its subnet manager");
        let mut announcement = packet(subnet_vendor::CLASS, Mad::METHOD_SEND, 7);
        assert!(matches!(MadWay::of(&announcement, 3), MadWay::Request(_)), "another vendor");
        announcement[57..60].copy_from_slice(&subnet_vendor::OUI);
        assert_eq!(MadWay::of(&announcement, 3), MadWay::Here);
        let mut manager = packet(Mad::CLASS_SUBN_LID, 1, 7);
        manager[20 + 17] = 0x20;
        assert!(matches!(MadWay::of(&manager, 3), MadWay::Request(_)), "SMInfo");
        let whole = packet(VENDOR, 1, 7);
        for len in 0..whole.len() - 4 {
            assert_eq!(MadWay::of(&whole[..len], 3), MadWay::Here, "{len} bytes");
        }
    }
}
