//! Services of connection management: which process a datagram to QP1 is for.
//!
//! A process that listens at a service id on an address holds the abstract name of the two, and its socket is the
//! mailbox for requests, as a block's is for packets. Everything else of communication management names a connection by
//! an id that its receiver chose; those ids are QPNs of the receiver's blocks in their low 24 bits, so that they lead
//! to the block's mailbox.

use std::collections::HashSet;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard};

use urxe_wire::cm::{CmMad, CommId, Message};
use urxe_wire::{Gid, Qpn};

use crate::ipc::bind;
use crate::mailbox::Mailbox;
use crate::mutex::lock;
use crate::qpn_registry::block_of;
use crate::sys::epoll_key::EpollKey;
use crate::sys::fd::{Fd, FdSet};

/// Identity of a request at its sender, equal in all copies (IBA 12.6.5, 13.4.6.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestId {
    pub(crate) comm_id: CommId,
    pub(crate) transaction_id: u64,
}

impl Mailbox {
    /// Finds the mailbox that a packet to QP1 of `local` is for, and the identity of a request; `None` if the packet names neither.
    pub(crate) fn of_gsi(packet: &[u8], local: Gid) -> Option<(Self, Option<RequestId>)> {
        let CmMad { message, transaction_id, .. } = CmMad::parse(urxe_wire::mad::in_packet(packet)?).ok()?;
        let (service_id, comm_id) = match &message {
            Message::Req(req) => (req.service_id, req.local_id),
            Message::SidrReq(req) => (req.service_id, req.request_id),
            _ => {
                let block = block_of(Qpn::new(message.receiver_id()?.0));
                return (block != 0).then_some((Self::Block(block), None));
            }
        };
        Some((Self::Service(service_id, local), Some(RequestId { comm_id, transaction_id })))
    }
}

/// A service id on an address, or methods of a management class, which nobody else on this host has while this lives.
#[derive(Debug)]
pub struct Service {
    name: Mailbox,
    services: Arc<Services>,
    _socket: Fd,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.services.lock().remove(&self.name);
    }
}

/// The services of this process: what is for them need not go through their mailboxes, which hold few datagrams.
#[derive(Debug, Default)]
pub(crate) struct Services(Mutex<HashSet<Mailbox>>);

impl Services {
    fn lock(&self) -> MutexGuard<'_, HashSet<Mailbox>> {
        lock(&self.0)
    }

    pub(crate) fn contains(&self, name: Mailbox) -> bool {
        self.lock().contains(&name)
    }
}

impl Service {
    /// Takes the name of a service id on an address, and has its mailbox watched.
    pub(crate) fn bind(fds: &Arc<FdSet>, services: &Arc<Services>, service_id: u64, gid: Gid) -> io::Result<Self> {
        Self::bind_mailbox(fds, services, Mailbox::Service(service_id, gid))
    }

    /// Takes a name, and has its mailbox watched.
    pub(crate) fn bind_mailbox(fds: &Arc<FdSet>, services: &Arc<Services>, name: Mailbox) -> io::Result<Self> {
        let socket = fds.adopt(bind::datagram(&name.name()?)?)?;
        let fd = socket.as_raw_fd();
        fds.watch(fd, EpollKey::Mailbox(fd).pack())?;
        services.lock().insert(name);
        Ok(Self { name, services: Arc::clone(services), _socket: socket })
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use urxe_wire::PKey;
    use urxe_wire::cm::{Dreq, Ids, Plain, SidrReq};

    const LOCAL: Gid = Gid::new([7; 16]);

    /// BTH and DETH of no meaning, the message, and an ICRC.
    fn packet(message: Message) -> Vec<u8> {
        let mad = CmMad { transaction_id: 1, attribute_modifier: 0, message }.to_bytes();
        [&[0; 20][..], &mad, &[0; 4]].concat()
    }

    #[test]
    fn requests_go_by_service_and_the_rest_by_communication_id() {
        let sidr =
            SidrReq { request_id: CommId(9), p_key: PKey::DEFAULT, service_id: 0x106_1C06, private_data: [0; 216] };
        let of = |message| Mailbox::of_gsi(&packet(message), LOCAL);
        let request = RequestId { comm_id: CommId(9), transaction_id: 1 };
        assert_eq!(of(Message::SidrReq(sidr)), Some((Mailbox::Service(0x106_1C06, LOCAL), Some(request))));
        // Eight bits of the id differ each time, the rest is a QPN of the receiver's.
        let ids = Ids { local: CommId(1), remote: CommId(0xAB_12_34_56) };
        let rtu = Message::Rtu(Plain { ids, private_data: [0; 224] });
        assert_eq!(of(rtu), Some((Mailbox::Block(0x1234), None)));
        let dreq = Dreq { ids, remote_qpn: Qpn::new(1), private_data: [0; 220] };
        assert_eq!(of(Message::Dreq(dreq)), Some((Mailbox::Block(0x1234), None)));
        // Nobody has block 0: it holds QP1 itself.
        let nobody = Ids { local: CommId(1), remote: CommId(0xAB_00_00_56) };
        assert_eq!(of(Message::Rtu(Plain { ids: nobody, private_data: [0; 224] })), None);
    }

    #[test]
    fn malformed_messages_have_no_mailbox() {
        let sidr = SidrReq { request_id: CommId(9), p_key: PKey::DEFAULT, service_id: 1, private_data: [0; 216] };
        let whole = packet(Message::SidrReq(sidr));
        for len in 0..whole.len() - 4 {
            assert_eq!(Mailbox::of_gsi(&whole[..len], LOCAL), None, "{len} bytes");
        }
        assert_eq!(Mailbox::of_gsi(&vec![0xFF; 300], LOCAL), None);
    }

    #[test]
    fn names_tell_services_and_addresses_apart() {
        let name =
            |id, last| Mailbox::Service(id, Gid::new([last; 16])).name().unwrap().as_abstract_name().unwrap().to_vec();
        assert_ne!(name(1, 0), name(2, 0));
        assert_ne!(name(1, 0), name(1, 1));
        assert_eq!(name(1, 0), name(1, 0));
    }

    #[test]
    fn a_service_is_known_as_long_as_it_lives() {
        let (services, fds) = (Arc::new(Services::default()), FdSet::new().unwrap());
        let name = Mailbox::Service(3, LOCAL);
        let socket = fds.adopt(UnixDatagram::unbound().unwrap()).unwrap();
        services.lock().insert(name);
        let service = Service { name, services: Arc::clone(&services), _socket: socket };
        assert!(services.contains(name) && !services.contains(Mailbox::Service(4, LOCAL)));
        drop(service);
        assert!(!services.contains(name));
    }
}
