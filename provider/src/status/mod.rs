//! How the device is, for those who ask: `urxe status`.
//!
//! Each device of each process has a socket in the abstract unix namespace, `urxe/1/status/<pid>/…`. Who connects, and is
//! of the same user or root, is given one JSON object ([`report`]) and hung up on. A thread of its own waits there: it
//! sleeps until somebody asks, and answers whatever the others are busy with.

pub(crate) mod final_counters;
mod report;
mod resources;
pub(crate) mod sysfs;

use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use urxe_net::identity::{CheckedFd, Identity};
use urxe_net::ipc::bind;
use urxe_net::ipc::credentials::{Credentials, own_uid};

use crate::verbs::quota::Quotas;
use urxe_runtime::device::Device;
use urxe_runtime::fork::Generation;
use urxe_runtime::lock;
use urxe_runtime::sanitizer;
use urxe_runtime::threads::without_signals;

/// How long somebody who asks may take to read the answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Room for the thread: it writes some text.
const STACK: usize = 128 * 1024;

/// Descriptors that a forked child must close: else the names would outlive this process. A device has one.
static LISTENERS: [Slot; urxe_options::MAX_DEVICES] = [const { Slot::empty() }; urxe_options::MAX_DEVICES];

/// Descriptor of a listener, which the application may have closed and used the number again.
struct Slot {
    /// -1 in an empty slot.
    fd: AtomicI32,
    /// Locked only to fill the slot, while no fork can come in between, and tried in a child.
    identity: Mutex<Option<Identity>>,
}

impl Slot {
    const fn empty() -> Self {
        Self { fd: AtomicI32::new(-1), identity: Mutex::new(None) }
    }

    /// Notes a listener, if the slot is empty. Forks are put off meanwhile ([`urxe_runtime::fork::put_off`]).
    fn fill(&self, fd: RawFd, identity: Option<Identity>) -> bool {
        let mut noted = lock(&self.identity);
        let is_empty = self.fd.load(Ordering::Relaxed) < 0;
        if is_empty {
            *noted = identity;
            self.fd.store(fd, Ordering::Release);
        }
        is_empty
    }

    /// Empties the slot, if it is that listener's.
    fn empty_of(&self, fd: RawFd) -> bool {
        self.fd.compare_exchange(fd, -1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether `fd` still is the listener. Waits for no lock.
    fn is_ours(&self, fd: RawFd) -> bool {
        self.identity.try_lock().is_ok_and(|identity| identity.is_none_or(|identity| identity.is_under(fd)))
    }
}

/// Answers until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    listener: Arc<CheckedFd>,
    thread: Option<JoinHandle<()>>,
    generation: Generation,
}

impl Server {
    /// Starts to answer for the device `name`. `seed` makes the socket's name unlike others.
    pub(crate) fn start(name: &str, device: &Arc<Device>, quotas: &Arc<Quotas>, seed: u64) -> io::Result<Self> {
        let address = format!("{}{}/{seed:016x}", urxe_status::NAMES, std::process::id());
        let listener = bind::stream(&SocketAddr::from_abstract_name(address)?)?;
        let listener = Arc::new(CheckedFd::from(OwnedFd::from(listener)));
        remember(&listener);
        let (name, device, quotas, waiting) =
            (name.to_owned(), Arc::clone(device), Arc::clone(quotas), Arc::clone(&listener));
        let serve = move || {
            let _unchecked = sanitizer::Unchecked::begin();
            serve(&waiting, || report::report(&name, &device, &quotas));
        };
        let thread =
            without_signals(|| thread::Builder::new().name("urxe-status".into()).stack_size(STACK).spawn(serve));
        let thread = thread.inspect_err(|_| forget(listener.as_raw_fd()))?;
        Ok(Self { listener, thread: Some(thread), generation: Generation::now() })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.generation != Generation::now() {
            // In a child: the thread is not here, and the descriptor is closed. Its handle may be another's by now.
            std::mem::forget(self.thread.take());
            return;
        }
        forget(self.listener.as_raw_fd());
        if !self.listener.is_ours() {
            // The application has closed it: the thread cannot be told, and sleeps on.
            return;
        }
        // SAFETY: a descriptor of ours. Whoever waits in accept(2) is told.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to end.
            let _ = thread.join();
        }
    }
}

fn remember(listener: &CheckedFd) {
    let _ = LISTENERS.iter().find(|slot| slot.fill(listener.as_raw_fd(), listener.identity()));
}

fn forget(fd: RawFd) {
    let _ = LISTENERS.iter().find(|slot| slot.empty_of(fd));
}

/// The program ends: nobody is answered any more.
pub(crate) fn hang_up() {
    for slot in &LISTENERS {
        let fd = slot.fd.load(Ordering::Acquire);
        if fd >= 0 && slot.is_ours(fd) {
            // SAFETY: a descriptor of ours, for it is forgotten before it is closed.
            unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
        }
    }
}

/// Closes the listeners in a forked child. Takes no lock, allocates nothing.
pub(crate) fn close_in_child() {
    for slot in &LISTENERS {
        let fd = slot.fd.swap(-1, Ordering::AcqRel);
        if fd >= 0 && slot.is_ours(fd) {
            // SAFETY: this process will not use it: the server is dead here.
            unsafe { libc::close(fd) };
        }
    }
}

fn serve(listener: &CheckedFd, report: impl Fn() -> String) {
    // A look first: accept(2) of a socket that was shut down says so only as long as there is a descriptor to spare.
    while wait_for_request(listener) {
        match accept(listener) {
            Ok((stream, _)) => answer(stream, &report),
            Err(error) if is_passing(&error) => thread::sleep(TIMEOUT),
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => return,
        }
    }
}

/// Accepts a connection (accept(2)).
fn accept(listener: &CheckedFd) -> io::Result<(UnixStream, SocketAddr)> {
    // SAFETY: a descriptor of ours, which is lent for the call.
    ManuallyDrop::new(unsafe { UnixListener::from_raw_fd(listener.as_raw_fd()) }).accept()
}

/// Whether there is no descriptor or no memory left for now (accept(2)).
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Waits for somebody; false when the socket was shut down, or closed by the application.
fn wait_for_request(listener: &CheckedFd) -> bool {
    let mut polled = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    while unsafe { libc::poll(&raw mut polled, 1, -1) } < 0 {
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return false;
        }
    }
    polled.revents & libc::POLLHUP == 0 && listener.is_ours()
}

fn answer(mut stream: UnixStream, report: impl Fn() -> String) {
    if may_ask(&stream) && stream.set_write_timeout(Some(TIMEOUT)).is_ok() {
        // Who has asked and gone has no use for an answer.
        let _ = stream.write_all(report().as_bytes());
    }
}

/// Whether the other end is this user or root.
fn may_ask(stream: &UnixStream) -> bool {
    Credentials::of(stream).is_ok_and(|peer| is_trusted(peer.uid, own_uid()))
}

/// Whether a process of `own` answers to `peer`.
const fn is_trusted(peer: u32, own: u32) -> bool {
    peer == 0 || peer == own
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use std::os::fd::AsRawFd as _;

    use urxe_net::identity::Identity;

    use super::{Slot, is_passing, is_trusted};

    #[test]
    fn a_slot_forgets_what_was_in_it() {
        let (first, second) = (std::fs::File::open("/dev/null").unwrap(), std::fs::File::open("/proc").unwrap());
        let slot = Slot::empty();
        assert!(slot.fill(first.as_raw_fd(), Identity::of(first.as_raw_fd()).ok()));
        assert!(!slot.fill(second.as_raw_fd(), None), "it is taken");
        assert!(!slot.empty_of(second.as_raw_fd()), "it is another's");
        assert!(slot.empty_of(first.as_raw_fd()));
        assert!(slot.fill(second.as_raw_fd(), None));
        assert!(slot.is_ours(second.as_raw_fd()), "its identity is not the first's");
    }

    #[test]
    fn a_machine_that_is_short_of_everything_for_a_moment_is_not_the_end() {
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM] {
            assert!(is_passing(&Error::from_raw_os_error(errno)), "{errno}");
        }
        // What accept(2) says once the socket is shut down.
        assert!(!is_passing(&Error::from_raw_os_error(libc::EINVAL)));
    }

    #[test]
    fn root_and_the_same_user_may_ask() {
        assert!(is_trusted(0, 0) && is_trusted(0, 1000) && is_trusted(1000, 1000));
        assert!(!is_trusted(1000, 0) && !is_trusted(1000, 1001) && !is_trusted(u32::MAX, 0));
    }
}
