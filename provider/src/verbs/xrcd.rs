//! XRC domains (`ibv_open_xrcd(3)`).
//!
//! All contexts of a process that open the same file share its domain, and so do all processes of the user: a message may
//! name an SRQ of any of them ([`urxe_runtime::xrc`]). A target queue pair belongs to its process: `ibv_open_qp` finds none of
//! another one (EINVAL). Whether a domain is there already, which `O_EXCL` and a missing `O_CREAT` ask, is answered for this
//! process alone: every process that opens the file begins its own part.

use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use urxe_engine::XrcDomain;

use crate::kernel::Errno;
use urxe_runtime::lock;
use urxe_runtime::xrc::Inode;
use urxe_runtime::xrc::client::Client;

/// An XRC domain: all who open the same file on the same device share it.
#[derive(Debug)]
pub(crate) struct Xrcd {
    id: XrcDomain,
    file: Option<Inode>,
    /// With whom it is shared.
    client: Option<Arc<Client>>,
}

/// The domains of one device that belong to files.
#[derive(Debug, Default)]
pub(crate) struct XrcDomains {
    domains: Mutex<Vec<Weak<Xrcd>>>,
    /// Client that asks other processes.
    client: Option<Arc<Client>>,
}

impl Xrcd {
    /// Returns the XRC domain's number.
    pub(crate) const fn id(&self) -> XrcDomain {
        self.id
    }

    fn new(file: Option<Inode>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self { id: XrcDomain(NEXT.fetch_add(1, Ordering::Relaxed)), file, client: None }
    }

    /// Shares it with who else has the file `fd`.
    fn share(self, inode: Inode, fd: RawFd, client: &Arc<Client>) -> Result<Self, Errno> {
        // SAFETY: the caller's file, which was open a moment ago; if it is not any more, that is an error.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let joined = client.join(self.id, inode, file);
        joined.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::ENOMEM)))?;
        Ok(Self { client: Some(Arc::clone(client)), ..self })
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        if let Some(client) = &self.client {
            client.leave(self.id);
        }
    }
}

impl XrcDomains {
    /// Shared with other processes.
    pub(crate) fn shared(client: &Arc<Client>) -> Self {
        Self { client: Some(Arc::clone(client)), ..Self::default() }
    }

    /// The domain of the file `fd`, or one of nobody else for -1.
    ///
    /// # Errors
    /// Errors of the kernel's `ib_uverbs_open_xrcd`: EBADF; EAGAIN if there is none and `O_CREAT` is not given; EINVAL if
    /// there is one and `O_EXCL` is.
    pub(crate) fn open(&self, fd: RawFd, oflags: i32) -> Result<Arc<Xrcd>, Errno> {
        if fd == -1 {
            return Ok(Arc::new(Xrcd::new(None)));
        }
        let inode = inode(fd)?;
        let mut domains = lock(&self.domains);
        domains.retain(|domain| domain.strong_count() > 0);
        let existing = domains.iter().filter_map(Weak::upgrade).find(|domain| domain.file == Some(inode));
        match existing {
            Some(_) if oflags & libc::O_EXCL != 0 => Err(Errno(libc::EINVAL)),
            Some(domain) => Ok(domain),
            None if oflags & libc::O_CREAT == 0 => Err(Errno(libc::EAGAIN)),
            None => {
                let mut domain = Xrcd::new(Some(inode));
                if let Some(client) = &self.client {
                    domain = domain.share(inode, fd, client)?;
                }
                let domain = Arc::new(domain);
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
