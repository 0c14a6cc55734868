//! Files that other processes send along with messages (`SCM_RIGHTS`, unix(7)).

use std::os::fd::AsRawFd;

use crate::sys::set_option;

/// `SO_PASSRIGHTS` of Linux 6.16 (include/uapi/asm-generic/socket.h).
const SO_PASSRIGHTS: libc::c_int = 83;

/// Has the kernel refuse messages with files to a socket, and to the connections that it accepts. A file that is not taken is
/// closed by the thread that receives the message, and that may last for hours: a TCP connection may linger, a file system in user space may not
/// answer. False on kernels before 6.16, which have no such refusal.
//= spec/hosts.md#net-035
//# A file that another process sends MUST NOT be closed by the thread that receives, where no file is expected and the kernel can refuse it.
pub fn refuse_files(socket: &impl AsRawFd) -> bool {
    set_option(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, 0).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use rustix::fs::{MemfdFlags, memfd_create};
    use socket2::{Domain, Socket, Type};

    use super::*;
    use crate::ipc::unix;

    //= spec/hosts.md#net-035
    //= type=test
    //# A file that another process sends MUST NOT be closed by the thread that receives, where no file is expected and the kernel can refuse it.
    #[test]
    fn files_are_refused_before_and_after_a_connection_is_accepted() {
        let (near, far) = Socket::pair(Domain::UNIX, Type::DGRAM, None).unwrap();
        let file = memfd_create("refused", MemfdFlags::CLOEXEC).unwrap();
        let send = |to: &Socket| unix::send_file(to.as_raw_fd(), b"x", file.as_raw_fd());
        send(&near).unwrap();
        let is_known = refuse_files(&far);
        assert!(is_known || release() < (6, 16), "SO_PASSRIGHTS came with Linux 6.16");
        assert_eq!(send(&near).is_err(), is_known);

        let block = crate::sys::random::random_u16();
        let listener = unix::listen_for_files("refused", block).unwrap();
        refuse_files(&listener);
        let client = unix::connect("refused", block).unwrap();
        assert_eq!(send(&client).is_err(), is_known);
        let accepted = Socket::from(unix::accept(listener.as_raw_fd()).unwrap().unwrap());
        assert_eq!(send(&client).is_err(), is_known);
        // Nor does whoever connects take any, from the first.
        assert_eq!(send(&accepted).is_err(), is_known);
        // Messages without files pass.
        unix::send_files(client.as_raw_fd(), b"y", &[] as &[BorrowedFd<'_>]).unwrap();
    }

    fn release() -> (u32, u32) {
        let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = text.split(|letter: char| !letter.is_ascii_digit()).map(|number| number.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }
}
