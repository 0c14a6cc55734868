//! XRC domains (`ibv_open_xrcd(3)`).
//!
//! All contexts of a process that open the same file share its domain. Other processes may open the file too, but then
//! have a domain of their own: a message that names an SRQ of another process is refused as for one that is not there
//! (NAK invalid request), and `ibv_open_qp` finds no target of another process (EINVAL).

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use urxe_engine::XrcDomain;

use crate::kernel::Errno;
use crate::runtime::lock;

/// An XRC domain: all who open the same file on the same device, within this process, share it.
#[derive(Debug)]
pub(crate) struct Xrcd {
    id: XrcDomain,
    file: Option<Inode>,
}

/// Device and inode number.
type Inode = (u64, u64);

/// The domains of one device that belong to files.
#[derive(Debug, Default)]
pub(crate) struct XrcDomains(Mutex<Vec<Weak<Xrcd>>>);

impl Xrcd {
    /// Its number.
    pub(crate) const fn id(&self) -> XrcDomain {
        self.id
    }

    fn new(file: Option<Inode>) -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Arc::new(Self { id: XrcDomain(NEXT.fetch_add(1, Ordering::Relaxed)), file })
    }
}

impl XrcDomains {
    /// The domain of the file `fd`, or one of nobody else for -1.
    ///
    /// # Errors
    /// As the kernel's (`ib_uverbs_open_xrcd`): EBADF; EAGAIN if there is none and `O_CREAT` is not given; EINVAL if
    /// there is one and `O_EXCL` is.
    pub(crate) fn open(&self, fd: RawFd, oflags: i32) -> Result<Arc<Xrcd>, Errno> {
        if fd == -1 {
            return Ok(Xrcd::new(None));
        }
        let inode = inode(fd)?;
        let mut domains = lock(&self.0);
        domains.retain(|domain| domain.strong_count() > 0);
        let existing = domains.iter().filter_map(Weak::upgrade).find(|domain| domain.file == Some(inode));
        match existing {
            Some(_) if oflags & libc::O_EXCL != 0 => Err(Errno(libc::EINVAL)),
            Some(domain) => Ok(domain),
            None if oflags & libc::O_CREAT == 0 => Err(Errno(libc::EAGAIN)),
            None => {
                let domain = Xrcd::new(Some(inode));
                domains.push(Arc::downgrade(&domain));
                Ok(domain)
            }
        }
    }
}

fn inode(fd: RawFd) -> Result<Inode, Errno> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for the answer.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return Err(Errno::last());
    }
    // SAFETY: filled in.
    let stat = unsafe { stat.assume_init() };
    Ok((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    const CREATE: i32 = libc::O_CREAT;

    #[test]
    fn a_file_has_one_domain_as_long_as_it_is_open() {
        let (domains, file) = (XrcDomains::default(), File::open("/proc/self/exe").unwrap());
        let again = File::open("/proc/self/exe").unwrap();
        let other = File::open("/proc/self/status").unwrap();
        assert_eq!(domains.open(file.as_raw_fd(), 0).unwrap_err(), Errno(libc::EAGAIN));
        let first = domains.open(file.as_raw_fd(), CREATE | libc::O_EXCL).unwrap();
        let second = domains.open(again.as_raw_fd(), 0).unwrap();
        assert_eq!(first.id(), second.id());
        assert_ne!(domains.open(other.as_raw_fd(), CREATE).unwrap().id(), first.id());
        assert_eq!(domains.open(file.as_raw_fd(), CREATE | libc::O_EXCL).unwrap_err(), Errno(libc::EINVAL));
        drop((first, second));
        assert_eq!(domains.open(file.as_raw_fd(), 0).unwrap_err(), Errno(libc::EAGAIN));
    }

    #[test]
    fn a_domain_without_file_is_shared_with_nobody() {
        let domains = XrcDomains::default();
        assert_ne!(domains.open(-1, CREATE).unwrap().id(), domains.open(-1, CREATE).unwrap().id());
        assert_eq!(domains.open(-2, CREATE).unwrap_err(), Errno(libc::EBADF));
        assert_eq!(domains.open(i32::MAX, CREATE).unwrap_err(), Errno(libc::EBADF));
    }
}
