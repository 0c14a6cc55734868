//! Name of a port's subnet manager: a program that has `issmN` open holds an abstract socket name of its interface.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::ipc::{NAME_PREFIX, bind};
use crate::members;
use crate::sys::cancellation::CancelGuard;

fn name(netdev: &str) -> io::Result<SocketAddr> {
    // A device on several interfaces has the name of the first.
    let first = members::names(netdev).first().copied().unwrap_or(netdev);
    SocketAddr::from_abstract_name(format!("{NAME_PREFIX}/issm/{first}"))
}

/// Whether a program of the host is the subnet manager of the port on this interface.
///
/// # Errors
/// Any refusal of the system: nobody knows then.
pub fn is_open(netdev: &str) -> io::Result<bool> {
    let _guard = CancelGuard::new();
    match UnixDatagram::unbound()?.connect_addr(&name(netdev)?) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes this program the subnet manager of the port on this interface, for as long as it has the socket.
///
/// # Errors
/// `AddrInUse` if another program is; what the system refuses.
pub fn claim(netdev: &str) -> io::Result<UnixDatagram> {
    bind::datagram(&name(netdev)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_program_manages_a_port() {
        let netdev = format!("test{}", std::process::id());
        assert!(!is_open(&netdev).unwrap());
        let manager = claim(&netdev).unwrap();
        assert!(is_open(&netdev).unwrap());
        assert_eq!(claim(&netdev).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(is_open(&format!("{netdev}+eth1")).unwrap(), "the device is on several interfaces");
        drop(manager);
        assert!(!is_open(&netdev).unwrap());
    }
}
