//! Sockets bound to a name. Other processes can send no files (`SCM_RIGHTS`, unix(7)) to them, except where files are expected.

use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::ipc::passed_files::refuse_files;

/// Binds a datagram socket that refuses files.
pub(crate) fn datagram(address: &SocketAddr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::bind_addr(address)?;
    refuse_files(&socket);
    Ok(socket)
}

/// Binds a SEQPACKET socket that refuses files, and does not listen yet: connections there are refused.
pub(crate) fn seqpacket(address: &SockAddr) -> io::Result<Socket> {
    let socket = seqpacket_for_files(address)?;
    refuse_files(&socket);
    Ok(socket)
}

/// Binds a SEQPACKET socket that takes files, and does not listen yet.
pub(crate) fn seqpacket_for_files(address: &SockAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Binds a stream socket that refuses files, and listens.
///
/// # Errors
/// `AddrInUse` if another socket has the name; what else the system refuses.
pub fn stream(address: &SocketAddr) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(address)?;
    refuse_files(&listener);
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::UnixStream;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::ipc::unix;

    #[test]
    fn bound_sockets_refuse_files_as_those_that_ask_for_it() {
        let file = memfd_create("refused", MemfdFlags::CLOEXEC).unwrap();
        let send = |to: RawFd| unix::send_file(to, b"x", file.as_raw_fd());
        let is_known = refuse_files(&UnixDatagram::unbound().unwrap());

        let block = crate::sys::random::random_u16();
        let _listener = unix::listen("bound", block).unwrap();
        let client = unix::connect("bound", block).unwrap();
        assert_eq!(send(client.as_raw_fd()).is_err(), is_known);
        // Messages without files pass.
        unix::send_files(client.as_raw_fd(), b"y", &[] as &[BorrowedFd<'_>]).unwrap();

        let address = |kind| SocketAddr::from_abstract_name(format!("urxe-test/refused/{kind}/{block}")).unwrap();
        let _mailbox = datagram(&address("datagram")).unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        sender.connect_addr(&address("datagram")).unwrap();
        assert_eq!(send(sender.as_raw_fd()).is_err(), is_known);
        let _listener = stream(&address("stream")).unwrap();
        let client = UnixStream::connect_addr(&address("stream")).unwrap();
        assert_eq!(send(client.as_raw_fd()).is_err(), is_known);
    }

    #[test]
    fn files_pass_where_they_are_expected() {
        let file = memfd_create("expected", MemfdFlags::CLOEXEC).unwrap();
        let block = crate::sys::random::random_u16();
        let _listener = unix::listen_for_files("expected", block).unwrap();
        let client = unix::connect("expected", block).unwrap();
        unix::send_file(client.as_raw_fd(), b"x", file.as_raw_fd()).unwrap();
    }
}
