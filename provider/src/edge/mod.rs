//! Entries that libibverbs calls: pointers in, pointers and errno out, nothing in between.
//!
//! Every entry runs inside [`ptr_verb`], [`int_verb`], [`fast_verb`] or [`count_verb`]: a panic never unwinds into C but makes the device
//! fatal, errno is what the man page says, an object inherited over a fork is refused, the thread is not cancelled, and a signal handler
//! of the thread that posts work requests waits for none of its locks ([`reentrant`]).

pub(crate) mod ah;
mod batch;
mod buffers;
mod builder;
mod comp_cntr;
pub(crate) mod context;
pub(crate) mod cq;
mod cq_ex;
mod cq_home;
mod dm;
mod dmabuf;
mod dmah;
mod domain;
mod garbage;
mod import;
pub(crate) mod mcast;
mod misc;
pub(crate) mod mr;
mod mw;
mod open;
mod opened;
mod panics;
mod poll_session_lock;
pub(crate) mod post;
pub(crate) mod qp;
mod qp_object;
mod raw;
mod reentrant;
pub(crate) mod register;
mod registrations;
pub(crate) mod srq;
mod stub;
mod users;
mod vendor_error;
mod wait;
mod work_requests;
pub(crate) mod xrcd;

use std::ffi::c_int;

use urxe_explain::Verb;
use urxe_net::cancellation::CancelGuard;

use crate::kernel::{Errno, call_depth};
use panics::caught;
use urxe_diag::explain::{self, Quiet};
use urxe_diag::verbs;
use urxe_runtime::sanitizer;

/// Runs a verb, unless a fault rule refuses it. `act` is told whether a signal handler called it inside another call.
#[inline]
fn run<T>(verb: Verb, act: impl FnOnce(bool) -> Result<T, Errno>) -> Result<T, Errno> {
    guarded_verb(|is_nested| {
        if verbs::is_armed()
            // Counting calls takes a lock.
            && !is_nested
            && let Some(errno) = verbs::refuse(verb).map(Errno)
        {
            return Err(errno);
        }
        act(is_nested)
    })
}

#[inline]
fn guarded<T>(act: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    guarded_verb(|_| act())
}

#[inline]
fn guarded_verb<T>(act: impl FnOnce(bool) -> Result<T, Errno>) -> Result<T, Errno> {
    let _unchecked = sanitizer::Unchecked::begin();
    call_depth::inside(|is_nested| {
        caught(|| {
            // Noting why something fails allocates.
            let _quiet = is_nested.then(Quiet::new);
            act(is_nested)
        })
    })
    .unwrap_or_else(Err)
}

/// Explains the failure of a verb, and sets errno.
#[cold]
fn failed(verb: Verb, errno: Errno) {
    // Programs poll in a loop: neither calls put aside nor a guard are worth it.
    if explain::is_answer(verb, errno.0) {
        return errno.set();
    }
    let _guard = CancelGuard::new();
    let _unchecked = sanitizer::Unchecked::begin();
    // Explaining allocates: not in a signal handler, and with the calls of such handlers put aside.
    call_depth::inside(|is_nested| {
        if !is_nested {
            let _ = caught(|| explain::failed(verb, errno.0));
        }
    });
    errno.set();
}

/// Runs a verb that returns a pointer, or null with errno.
fn ptr_verb<T>(verb: Verb, act: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    let _guard = CancelGuard::new();
    match run(verb, |_| act()) {
        Ok(object) => {
            sanitizer::written(object as u64, size_of::<T>());
            object
        }
        Err(errno) => {
            failed(verb, errno);
            std::ptr::null_mut()
        }
    }
}

/// Runs a verb that returns 0 or an errno.
fn int_verb(verb: Verb, act: impl FnOnce() -> Result<(), Errno>) -> c_int {
    let _guard = CancelGuard::new();
    fast_verb(verb, |_| act())
}

/// Runs a verb of the data path that returns 0 or an errno: `act` is no cancellation point, or guards itself.
#[inline]
fn fast_verb(verb: Verb, act: impl FnOnce(bool) -> Result<(), Errno>) -> c_int {
    match run(verb, act) {
        Ok(()) => 0,
        Err(errno) => {
            failed(verb, errno);
            errno.0
        }
    }
}

/// Runs a verb of the data path that returns a count, or -1.
#[inline]
fn count_verb(verb: Verb, act: impl FnOnce(bool) -> Result<usize, Errno>) -> c_int {
    match run(verb, act) {
        Ok(count) => c_int::try_from(count).unwrap_or(c_int::MAX),
        Err(errno) => {
            failed(verb, errno);
            -1
        }
    }
}

#[cfg(test)]
mod tests {
    use urxe_ffi::verbs as v;

    use super::panics::ONE_AT_A_TIME;
    use super::*;
    use crate::kernel::event_file::EventFile;
    use std::sync::Arc;

    use urxe_runtime::event::EventSink;
    use urxe_runtime::port_events::PortEvents;

    /// A file, as libibverbs reads it: the events' types.
    fn told(fd: &std::os::fd::OwnedFd) -> Vec<u32> {
        use std::os::fd::AsRawFd;
        let mut events = Vec::new();
        loop {
            let mut event = [0_u8; 16];
            // SAFETY: a descriptor and room for an event.
            let length = unsafe { libc::recv(fd.as_raw_fd(), event.as_mut_ptr().cast(), 16, libc::MSG_DONTWAIT) };
            if length < 0 {
                return events;
            }
            events.push(u32::from_ne_bytes(event[8..12].try_into().unwrap()));
        }
    }

    #[test]
    fn a_panic_makes_every_device_fatal() {
        let _alone = ONE_AT_A_TIME.lock();
        let (one, other) = (PortEvents::new(), PortEvents::new());
        let (file, fd) = EventFile::new().unwrap();
        let file: Arc<dyn EventSink> = Arc::new(file);
        one.add(&file);
        assert!(!one.has_failed());
        for _ in 0..2 {
            assert_eq!(int_verb(Verb::ModifyQp, || panic!("on purpose")), libc::EIO);
        }
        assert!(one.has_failed() && other.has_failed());
        assert_eq!(told(&fd), [v::IBV_EVENT_DEVICE_FATAL], "once");
        // Others are as they are: a device that is opened now is another.
        assert!(!PortEvents::new().has_failed());
    }
}
