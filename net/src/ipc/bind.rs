//! Sockets bound to a name. Other processes can send no files (`SCM_RIGHTS`, unix(7)) to them, except where files are expected.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::sys::set_option;

/// `SO_PASSRIGHTS` of Linux 6.16 (include/uapi/asm-generic/socket.h).
const SO_PASSRIGHTS: libc::c_int = 83;

/// Has the kernel refuse messages with files to a socket, and to the connections that it accepts. A file that is not taken is
/// closed by the thread that receives the message, and that may last for hours: a TCP connection may linger, a file system in user space may not
/// answer. False on kernels before 6.16, which have no such refusal.
//= spec/hosts.md#net-035
//# A file that another process sends MUST NOT be closed by the thread that receives, where no file is expected and the kernel can refuse it.
fn refuse_files(socket: &impl AsRawFd) -> bool {
    set_option(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, 0).is_ok()
}

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
    use std::os::fd::{BorrowedFd, RawFd};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::UnixStream;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::ipc::unix;

    //= spec/hosts.md#net-035
    //= type=test
    //# A file that another process sends MUST NOT be closed by the thread that receives, where no file is expected and the kernel can refuse it.
    #[test]
    fn files_are_refused_before_and_after_a_connection_is_accepted() {
        let (near, far) = Socket::pair(Domain::UNIX, Type::DGRAM, None).unwrap();
        let file = memfd_create("refused", MemfdFlags::CLOEXEC).unwrap();
        let send = |to: RawFd| unix::send_file(to, b"x", file.as_raw_fd());
        send(near.as_raw_fd()).unwrap();
        let is_known = refuse_files(&far);
        assert!(is_known || release() < (6, 16), "SO_PASSRIGHTS came with Linux 6.16");
        assert_eq!(send(near.as_raw_fd()).is_err(), is_known);

        let block = crate::sys::random::random_u16();
        let listener = unix::listen("refused", block).unwrap();
        let client = unix::connect("refused", block).unwrap();
        assert_eq!(send(client.as_raw_fd()).is_err(), is_known);
        let _accepted = unix::accept(listener.as_raw_fd()).unwrap().unwrap();
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

    fn release() -> (u32, u32) {
        let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = text.split(|letter: char| !letter.is_ascii_digit()).map(|number| number.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }
}
