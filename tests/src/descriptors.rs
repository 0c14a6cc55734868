//! Descriptors of this process, and files of a program's own under numbers that the library has had.

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;

use anyhow::{Result, ensure};

/// Numbers of the descriptors that are open, but for those of standard input and output.
pub fn open_numbers() -> Result<Vec<RawFd>> {
    let entries =
        fs::read_dir("/proc/self/fd")?.map(|entry| Ok(entry?.file_name().to_string_lossy().parse::<RawFd>()?));
    let numbers = entries.collect::<Result<Vec<_>>>()?;
    // SAFETY: a look at a flag, which only fails for the number of the list itself.
    let is_open = |number: &RawFd| unsafe { libc::fcntl(*number, libc::F_GETFD) } >= 0;
    Ok(numbers.into_iter().filter(|number| *number > 2 && is_open(number)).collect())
}

/// Duplicates a descriptor to a number that the device has not had.
fn out_of_the_way(file: &OwnedFd) -> Result<OwnedFd> {
    // SAFETY: a new descriptor.
    let copy = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 500) };
    ensure!(copy >= 0, "fcntl");
    // SAFETY: likewise.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// A stranger's descriptor under a number of the device's.
#[derive(Debug)]
pub struct Stranger {
    number: RawFd,
    /// A datagram socket's peer, or nothing if the stranger is an eventfd.
    peer: Option<UnixDatagram>,
}

impl Stranger {
    /// Puts an eventfd, an epoll instance or a socket under the number.
    pub fn put(number: RawFd) -> Result<Self> {
        let file = match number % 3 {
            0 => return Self::put_socket(number),
            // SAFETY: a new descriptor each.
            1 => unsafe { OwnedFd::from_raw_fd(libc::eventfd(1, libc::EFD_NONBLOCK)) },
            // SAFETY: likewise.
            _ => unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(0)) },
        };
        let file = out_of_the_way(&file)?;
        // SAFETY: the number is of a descriptor that was closed.
        ensure!(unsafe { libc::dup2(file.as_raw_fd(), number) } == number, "dup2");
        Ok(Self { number, peer: None })
    }

    /// Puts a socket with one datagram under the number.
    pub fn put_socket(number: RawFd) -> Result<Self> {
        let (file, peer) = UnixDatagram::pair()?;
        peer.send(b"theirs")?;
        let (file, peer) = (out_of_the_way(&file.into())?, out_of_the_way(&peer.into())?);
        // SAFETY: what the tests are about.
        ensure!(unsafe { libc::dup2(file.as_raw_fd(), number) } == number, "dup2");
        Ok(Self { number, peer: Some(UnixDatagram::from(peer)) })
    }

    /// Number of the descriptor.
    pub const fn number(&self) -> RawFd {
        self.number
    }

    /// Whether the descriptor is open, and nobody has read or written there.
    pub fn is_untouched(&self) -> bool {
        let mut bytes = [0_u8; 64];
        // SAFETY: room for what is read.
        let read = unsafe { libc::read(self.number, bytes.as_mut_ptr().cast(), bytes.len()) };
        let is_quiet = |peer: &UnixDatagram| {
            let quiet = peer.set_nonblocking(true).is_ok() && peer.recv(&mut [0; 64]).is_err();
            quiet && read == 6 && bytes.starts_with(b"theirs")
        };
        match (&self.peer, self.number % 3) {
            (Some(peer), _) => is_quiet(peer),
            (None, 1) => read == 8 && u64::from_ne_bytes(bytes[..8].try_into().expect("eight")) == 1,
            // SAFETY: a look at a flag.
            (None, _) => unsafe { libc::fcntl(self.number, libc::F_GETFD) >= 0 },
        }
    }
}
