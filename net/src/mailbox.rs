//! Mailboxes: names in the abstract unix namespace for datagrams that another process of the host has received.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};

use urxe_wire::Gid;

use crate::ipc::NAME_PREFIX;
use crate::qpn_registry::mailbox_name;
use crate::sys::cancellation::CancelGuard;

/// A name for datagrams of other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mailbox {
    /// Mailbox of a QPN block.
    Block(u16),
    /// Mailbox of a service id on an address.
    Service(u64, Gid),
    /// Mailbox of methods of a management class.
    Mad(MadName),
}

/// Methods of a class on an interface, as the name of a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MadName {
    pub(crate) interface: u32,
    pub(crate) class: u8,
    pub(crate) version: u8,
    pub(crate) oui: [u8; 3],
    /// One method; `None` stands for all of them.
    pub(crate) method: Option<u8>,
}

impl Mailbox {
    pub(crate) fn name(&self) -> io::Result<UnixAddr> {
        match self {
            Self::Block(block) => mailbox_name(*block),
            Self::Service(id, gid) => UnixAddr::from_abstract_name(format!(
                "{NAME_PREFIX}/service/{id:016x}/{:032x}",
                u128::from_be_bytes(gid.octets())
            )),
            Self::Mad(name) => name.address(),
        }
    }
}

impl Mailbox {
    /// Whether a process holds the name.
    ///
    /// # Errors
    /// If the system does not say.
    pub(crate) fn is_held(&self) -> io::Result<bool> {
        let _guard = CancelGuard::new();
        match UnixDatagram::unbound()?.connect_addr(&self.name()?) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl MadName {
    pub(crate) fn address(&self) -> io::Result<UnixAddr> {
        let Self { interface, class, version, oui: [a, b, c], method } = self;
        let method = method.map_or_else(|| "all".to_owned(), |method| format!("{method:02x}"));
        UnixAddr::from_abstract_name(format!(
            "{NAME_PREFIX}/mad/{interface}/{class:02x}.{version:02x}.{a:02x}{b:02x}{c:02x}/{method}"
        ))
    }
}
