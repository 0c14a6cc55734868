//! Verbs that a signal handler calls while its thread is inside another verb, or a call that is answered in the place of a kernel
//! ([`call_depth`]).
//!
//! A thread inside such a call may hold any lock of this library, and one of malloc(3). A signal handler that interrupts the
//! thread there must neither wait for a lock nor allocate. So `ibv_post_send`, `ibv_post_recv`, `ibv_post_srq_recv`,
//! `ibv_wr_complete` and `ibv_req_notify_cq` put a copy of what they are asked aside and return; the interrupted call does
//! it before it returns itself. `ibv_poll_cq` takes what is there if nobody is at the queue, and makes no progress. On
//! mlx5 the same calls work there, since posting and polling have locks of their own.
//!
//! Copies lie in memory from mmap(2), which is async-signal-safe, and with them what a request names by pointer: an address handle
//! or a window may be destroyed once the request is posted. A request that finds its queue full stays aside
//! until a call of the same thread finds room for it; one that is wrong otherwise is dropped, and explained as a failed verb.
//! A thread that has [`MOST`] calls aside is told ENOMEM, as by a full queue.
//!
//! A handler that leaves a call by siglongjmp(3) leaves its locks taken, as in malloc(3), and the thread inside it for ever: calls
//! put aside from then on are not done.

mod call;
mod copies;
mod list;

use std::cell::Cell;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use urxe_ffi::verbs as v;
use urxe_net::cancellation::CancelGuard;

use super::batch::SendRequest;
use super::panics::caught;
use super::qp_object::QpObject;
use crate::kernel::{Errno, call_depth};
use call::{Call, Full, SendList};
use copies::Request;
use list::{append, is_for, reversed};
use urxe_runtime::cq::Cq;
use urxe_runtime::device::Device;
use urxe_runtime::fork::Generation;
use urxe_runtime::memory::faultable_copy;
use urxe_runtime::qp::Qp;
use urxe_runtime::sanitizer;
use urxe_runtime::srq::Srq;

/// Calls that a thread has aside. Its signal handlers add some.
struct Thread {
    /// Calls put aside by signal handlers, the latest first.
    aside: AtomicPtr<Node>,
    /// Calls that found no room, the oldest first. Only the outermost call looks here.
    blocked: Cell<*mut Node>,
    /// Calls in the two lists.
    count: AtomicU32,
}

/// Calls that a thread may have aside. Programs post until a queue is full, and would never hear that it is.
const MOST: u32 = 4096;

thread_local! {
    static THREAD: Thread = const {
        Thread {
            aside: AtomicPtr::new(ptr::null_mut()),
            blocked: Cell::new(ptr::null_mut()),
            count: AtomicU32::new(0),
        }
    };
}

/// Carries out the calls that were put aside, and tries those again that found no room. Returns whether some still finds none.
pub(super) fn catch_up() -> bool {
    let _guard = CancelGuard::new();
    let _unchecked = sanitizer::Unchecked::begin();
    // SAFETY: errno is the thread's own.
    let errno = unsafe { *libc::__errno_location() };
    let is_left = THREAD.with(Thread::catch_up);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    is_left
}

impl Thread {
    /// Runs each call of both lists once. Returns whether some have found no room.
    fn catch_up(&self) -> bool {
        let mut queue = self.blocked.replace(ptr::null_mut());
        let newest = self.aside.swap(ptr::null_mut(), Ordering::Relaxed);
        append(&mut queue, reversed(newest));
        let mut blocked = ptr::null_mut();
        let mut end = &raw mut blocked;
        while let Some(mut node) = NonNull::new(queue) {
            // SAFETY: in this list only.
            let node_ref = unsafe { node.as_mut() };
            queue = mem::replace(&mut node_ref.next, ptr::null_mut());
            if node_ref.generation != Generation::now() {
                // The parent of this child of fork(2) does it. What the call holds may be locked for ever, so nothing is dropped.
                self.count.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            // Requests of one queue do not overtake one another.
            let waits = is_for(blocked, node_ref.call.queue());
            // One that panics has had its turn.
            // SAFETY: in no list any more.
            let mut run = || caught(|| unsafe { node_ref.call.run() }).unwrap_or(Ok(()));
            if waits || run() == Err(Full) {
                // SAFETY: `end` is where the list `blocked` ends, in its last node or itself.
                unsafe { end.write(node.as_ptr()) };
                end = &raw mut node_ref.next;
            } else {
                // SAFETY: as above.
                unsafe { Node::free(node) };
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.blocked.set(blocked);
        !blocked.is_null()
    }
}

/// Alignment of everything behind a node.
const ALIGN: usize = 16;

/// A call in memory of its own, with what it refers to behind it.
struct Node {
    /// The call after this one, or before it in [`Thread::aside`].
    next: *mut Self,
    /// Bytes of the mapping.
    length: usize,
    /// Process that it was put aside in.
    generation: Generation,
    call: Call,
}

impl Node {
    /// Maps memory for a node and `more` bytes.
    ///
    /// # Errors
    /// ENOMEM, also where the thread has [`MOST`] calls aside.
    fn map(more: usize) -> Result<NonNull<Self>, Errno> {
        if THREAD.with(|thread| thread.count.load(Ordering::Relaxed)) >= MOST {
            return Err(Errno(libc::ENOMEM));
        }
        let length = size_of::<Self>().next_multiple_of(ALIGN) + more;
        // SAFETY: a fresh mapping.
        let at = unsafe {
            let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(ptr::null_mut(), length, access, flags, -1, 0)
        };
        let at = NonNull::new(at).filter(|at| at.as_ptr() != libc::MAP_FAILED).ok_or(Errno(libc::ENOMEM))?;
        Ok(at.cast())
    }

    /// Writes the node at the start of the memory that [`map`](Self::map) gave for it, and puts it aside.
    ///
    /// # Safety
    /// `at` came from `map` with as many bytes.
    unsafe fn put_aside(at: NonNull<Self>, more: usize, call: Call) {
        let length = size_of::<Self>().next_multiple_of(ALIGN) + more;
        THREAD.with(|thread| {
            thread.count.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the caller's promise.
            unsafe { at.write(Self { next: ptr::null_mut(), length, generation: Generation::now(), call }) };
            // A handler that interrupts this one leaves the list as longer as it is done, or as it was.
            let mut next = thread.aside.load(Ordering::Relaxed);
            loop {
                // SAFETY: not in the list yet.
                unsafe { (*at.as_ptr()).next = next };
                let added = thread.aside.compare_exchange_weak(next, at.as_ptr(), Ordering::Relaxed, Ordering::Relaxed);
                match added {
                    Ok(_) => break,
                    Err(now) => next = now,
                }
            }
        });
        call_depth::set_behind();
    }

    /// Drops the call and gives the memory back.
    ///
    /// # Safety
    /// In no list.
    unsafe fn free(node: NonNull<Self>) {
        // SAFETY: the caller's promise; the mapping is the node's own.
        unsafe {
            let length = node.as_ref().length;
            drop(node.read());
            libc::munmap(node.as_ptr().cast(), length);
        }
    }
}

/// Puts `ibv_post_send` aside. Inline data is copied.
///
/// # Safety
/// As for `ibv_post_send(3)`.
pub(super) unsafe fn post_send(
    qp: *mut v::ibv_qp,
    object: &QpObject,
    first: *mut v::ibv_send_wr,
    bad_wr: *mut *mut v::ibv_send_wr,
) -> Result<(), Errno> {
    let max_inline = object.max_inline;
    // SAFETY: the caller's queue pair, list and pointer.
    unsafe {
        let (context, is_datagram) = ((*qp).context, (*qp).qp_type == v::IBV_QPT_UD);
        let call = |first| {
            let list = SendList { first, rest: first, is_datagram };
            Call::Send { context, qp: Arc::clone(&object.qp), max_inline, list }
        };
        put_list_aside(first, bad_wr, max_inline, is_datagram, call)
    }
}

/// Puts `ibv_post_recv` aside.
///
/// # Safety
/// As for `ibv_post_recv(3)`.
pub(super) unsafe fn post_recv(
    qp: &Arc<Qp>,
    first: *mut v::ibv_recv_wr,
    bad_wr: *mut *mut v::ibv_recv_wr,
) -> Result<(), Errno> {
    // SAFETY: the caller's list and pointer.
    unsafe { put_list_aside(first, bad_wr, 0, false, |first| Call::Recv { qp: Arc::clone(qp), first }) }
}

/// Puts `ibv_post_srq_recv` aside.
///
/// # Safety
/// As for `ibv_post_srq_recv(3)`.
pub(super) unsafe fn post_srq_recv(
    device: &Arc<Device>,
    srq: &Arc<Srq>,
    number: u64,
    first: *mut v::ibv_recv_wr,
    bad_wr: *mut *mut v::ibv_recv_wr,
) -> Result<(), Errno> {
    let call = |first| Call::SharedRecv { device: Arc::clone(device), srq: Arc::clone(srq), number, first };
    // SAFETY: the caller's list and pointer.
    unsafe { put_list_aside(first, bad_wr, 0, false, call) }
}

/// Puts `ibv_wr_complete` aside, with the requests of the batch.
pub(super) fn wr_complete(qp: &Arc<Qp>, requests: &mut Vec<SendRequest>) -> Result<(), Errno> {
    let node = Node::map(0)?;
    // SAFETY: just mapped.
    unsafe { Node::put_aside(node, 0, Call::SendBatch { qp: Arc::clone(qp), requests: mem::take(requests) }) };
    Ok(())
}

/// Puts `ibv_req_notify_cq` aside.
pub(super) fn req_notify(device: &Arc<Device>, cq: &Arc<Cq>, solicited_only: bool) -> Result<(), Errno> {
    let node = Node::map(0)?;
    // SAFETY: just mapped.
    unsafe { Node::put_aside(node, 0, Call::Arm { device: Arc::clone(device), cq: Arc::clone(cq), solicited_only }) };
    Ok(())
}

/// Copies a list of requests and puts the call aside that `call` makes of the copy.
///
/// # Safety
/// `first` is null, or begins a list that ends with null; `bad` can be written to. What the requests name lives.
unsafe fn put_list_aside<W: Request>(
    first: *mut W,
    bad: *mut *mut W,
    max_inline: u32,
    is_datagram: bool,
    call: impl FnOnce(*mut W) -> Call,
) -> Result<(), Errno> {
    let Some(start) = NonNull::new(first) else { return Ok(()) };
    faultable_copy::admit();
    // SAFETY: the caller's list and pointer; the memory has that much room.
    unsafe {
        let (room, mut refused) = copies::room(start, max_inline, is_datagram);
        if room > 0 {
            let node = Node::map(room).inspect_err(|_| bad.write(first))?;
            let base = node.as_ptr().cast::<u8>().add(size_of::<Node>().next_multiple_of(ALIGN));
            let end = refused.map_or(ptr::null_mut(), |(wr, _)| wr);
            let (copied, faulty) = copies::copy(start, end, is_datagram, base);
            refused = faulty.or(refused);
            if copied.is_null() {
                libc::munmap(node.as_ptr().cast(), size_of::<Node>().next_multiple_of(ALIGN) + room);
            } else {
                Node::put_aside(node, room, call(copied));
            }
        }
        refused.map_or(Ok(()), |(wr, errno)| {
            bad.write(wr);
            Err(errno)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::panics::ONE_AT_A_TIME;
    use crate::kernel::call_depth::UnderWay;
    use urxe_runtime::port_events::PortEvents;

    /// Puts a call aside that panics, as a signal handler does.
    fn put_aside() {
        let node = Node::map(0).unwrap();
        // SAFETY: just mapped.
        unsafe { Node::put_aside(node, 0, Call::Panic) };
    }

    /// Calls that the thread has aside.
    fn count() -> u32 {
        THREAD.with(|thread| thread.count.load(Ordering::Relaxed))
    }

    #[test]
    fn a_panic_of_a_call_put_aside_makes_devices_fatal_and_goes_no_further() {
        let _alone = ONE_AT_A_TIME.lock();
        call_depth::set_catch_up(catch_up);
        let port = PortEvents::new();
        for _ in 0..2 {
            call_depth::inside(|_| call_depth::inside(|_| put_aside()));
            assert!(port.has_failed());
            assert_eq!(count(), 0);
            assert!(!call_depth::is_interrupted());
        }
    }

    #[test]
    fn a_call_put_aside_in_a_call_of_a_kernel_is_done_at_the_end_of_the_outermost() {
        let _alone = ONE_AT_A_TIME.lock();
        call_depth::set_catch_up(catch_up);
        let outer = UnderWay::begin();
        let inner = UnderWay::begin();
        call_depth::inside(|is_nested| {
            assert!(is_nested);
            put_aside();
        });
        drop(inner);
        assert_eq!(count(), 1);
        drop(outer);
        assert_eq!(count(), 0);
        assert!(!call_depth::is_interrupted());
    }

    /// A handler that interrupts the end of a call, where the thread is inside none any more.
    #[test]
    fn a_call_does_not_overtake_one_that_is_aside() {
        let _alone = ONE_AT_A_TIME.lock();
        call_depth::set_catch_up(catch_up);
        for _ in 0..2 {
            put_aside();
            call_depth::inside(|is_nested| assert!(!is_nested && count() == 0));
            put_aside();
            let call = UnderWay::begin();
            assert_eq!(count(), 0);
            drop(call);
        }
        assert!(!call_depth::is_interrupted());
    }

    #[test]
    fn a_child_does_not_do_what_its_parent_has_put_aside() {
        let _alone = ONE_AT_A_TIME.lock();
        call_depth::set_catch_up(catch_up);
        urxe_runtime::fork::notice();
        let port = PortEvents::new();
        call_depth::inside(|_| {
            call_depth::inside(|_| put_aside());
            // SAFETY: the child looks at memory of its own and ends.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    catch_up();
                    libc::_exit(i32::from(port.has_failed()) + 2 * i32::from(count() != 0));
                }
                let mut status = -1;
                assert_eq!((libc::waitpid(child, &raw mut status, 0), status), (child, 0));
            }
            assert!(!port.has_failed());
        });
        assert!(port.has_failed());
        assert_eq!(count(), 0);
    }
}
