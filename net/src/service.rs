//! Whose a datagram to QP1 is, when several processes share an address.
//!
//! A process that listens at a service id on an address holds the abstract name of the two, and its socket is the
//! mailbox for requests, as a block's is for packets. Everything else of communication management names a connection by
//! an id that its receiver chose; those ids are QPNs of the receiver's blocks in their low 24 bits, so that they lead
//! to the block's mailbox.

use std::collections::HashSet;
use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use urxe_wire::Qpn;
use urxe_wire::cm::{CmMad, Message};

use crate::fd::Fd;
use crate::interface::Gid;
use crate::port::Port;
use crate::registry::{NAME_PREFIX, block_of, mailbox_name};
use crate::token::Token;

/// A name for datagrams of other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mailbox {
    /// That of a QPN's block.
    Block(u16),
    /// That of a service id on an address.
    Service(u64, Gid),
}

impl Mailbox {
    pub(crate) fn name(&self) -> io::Result<UnixAddr> {
        match self {
            Self::Block(block) => mailbox_name(*block),
            Self::Service(id, gid) => UnixAddr::from_abstract_name(format!(
                "{NAME_PREFIX}/service/{id:016x}/{:032x}",
                u128::from_be_bytes(*gid)
            )),
        }
    }

    /// Whose a packet to QP1 is that was sent to `local`; `None` if it does not say.
    pub(crate) fn of_gsi(packet: &[u8], local: Gid) -> Option<Self> {
        /// BTH and DETH.
        const HEADERS: usize = 12 + 8;
        let payload = packet.get(HEADERS..HEADERS + urxe_wire::mad::MAD_LEN)?;
        let message = CmMad::parse(payload).ok()?.message;
        match (&message, message.receiver_id()) {
            (Message::Req(req), _) => Some(Self::Service(req.service_id, local)),
            (Message::SidrReq(req), _) => Some(Self::Service(req.service_id, local)),
            (_, Some(id)) => Some(Self::Block(block_of(Qpn::new(id.0)))).filter(|mailbox| *mailbox != Self::Block(0)),
            (_, None) => None,
        }
    }
}

/// A service id on an address, which nobody else on this host has while this lives.
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn contains(&self, name: Mailbox) -> bool {
        self.lock().contains(&name)
    }
}

impl Port {
    /// Takes a service id on an address; requests that reach other processes come here from now on.
    ///
    /// # Errors
    /// `AddrInUse` if somebody has it; what else the system refuses.
    pub fn serve(&self, service_id: u64, gid: Gid) -> io::Result<Service> {
        let name = Mailbox::Service(service_id, gid);
        let socket = self.fds().adopt(UnixDatagram::bind_addr(&name.name()?)?)?;
        let fd = socket.as_raw_fd();
        self.fds().watch(fd, Token::Mailbox(fd).pack())?;
        self.services().lock().insert(name);
        Ok(Service { name, services: Arc::clone(self.services()), _socket: socket })
    }
}
