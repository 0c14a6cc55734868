//! `/dev/infiniband/issmN`: whoever has it open is the port's subnet manager, at most one program of the host.
//!
//! The descriptor is a socket that holds an abstract name, which goes with its last copy.

use std::os::fd::OwnedFd;

use urxe_net::issm;

use crate::device;
use crate::kernel::Errno;

/// Between two looks whether the other program has closed it, in milliseconds.
const INTERVAL: libc::c_int = 20;

/// Opens the file of the device of this index; the flags are open(2)'s. Waits for another program to close it (`down` of
/// `ib_umad_sm_open` of the kernel's user_mad.c).
///
/// # Errors
/// ENXIO if there is no such device; EAGAIN with `O_NONBLOCK`, EINTR when a signal comes while it waits.
pub(super) fn open(index: usize, flags: libc::c_int) -> Result<OwnedFd, Errno> {
    let device = device::all().into_iter().nth(index).ok_or(Errno(libc::ENXIO))?;
    loop {
        match issm::claim(&device.netdev) {
            Ok(socket) => return Ok(socket.into()),
            Err(error) if error.kind() != std::io::ErrorKind::AddrInUse => {
                return Err(Errno(error.raw_os_error().unwrap_or(libc::EIO)));
            }
            Err(_) if flags & libc::O_NONBLOCK != 0 => return Err(Errno(libc::EAGAIN)),
            // SAFETY: no entries.
            Err(_) if unsafe { libc::poll(std::ptr::null_mut(), 0, INTERVAL) } < 0 => return Err(Errno::last()),
            Err(_) => {}
        }
    }
}
