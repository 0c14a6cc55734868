//! Listening sockets for processes that use XRC SRQs of this one, and the thread that answers.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use urxe_net::qpn_registry::block_of;
use urxe_net::{KeptFile, Listener, Port};
use urxe_wire::Qpn;

use crate::lock;

/// The thread that answers, as long as there is something to ask for.
#[derive(Debug, Default)]
pub(crate) struct Server(pub(super) Mutex<Option<Running>>);

#[derive(Debug)]
pub(super) struct Running {
    pub(super) shared: Arc<Shared>,
    pub(super) thread: JoinHandle<()>,
}

/// State shared by the server thread and the threads that create and destroy SRQs.
#[derive(Debug)]
pub(super) struct Shared {
    /// Listeners by block of numbers, each with the number of SRQs there.
    pub(super) listeners: Mutex<HashMap<u16, (Listener, usize)>>,
    pub(super) stop: AtomicBool,
    /// An eventfd.
    pub(super) wake: KeptFile,
}

/// Ends the thread.
pub(super) fn stop(running: Option<Running>) {
    if let Some(Running { shared, thread }) = running {
        shared.stop.store(true, Ordering::Release);
        if shared.wake.is_ours() {
            shared.wake();
            // A thread that panicked has nothing left to end.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Listens at the name of the block of an SRQ's number.
    pub(super) fn open(&self, port: &Port, number: Qpn) -> io::Result<()> {
        let mut listeners = lock(&self.listeners);
        match listeners.get_mut(&block_of(number)) {
            Some((_, count)) => *count += 1,
            None => {
                listeners.insert(block_of(number), (port.listen(number)?, 1));
            }
        }
        drop(listeners);
        self.wake();
        Ok(())
    }

    /// Ends that for an SRQ. True if that was the last.
    pub(super) fn close(&self, number: Qpn) -> bool {
        let mut listeners = lock(&self.listeners);
        if let Some((_, count)) = listeners.get_mut(&block_of(number)) {
            *count -= 1;
            if *count == 0 {
                listeners.remove(&block_of(number));
            }
        }
        listeners.is_empty()
    }

    /// Wakes the thread, unless the application has closed the descriptor.
    pub(super) fn wake(&self) {
        if !self.wake.is_ours() {
            return;
        }
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes to our eventfd. It can only fail by being full, and then it is readable already.
        unsafe { libc::write(self.wake.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// The thread has been woken.
    pub(super) fn woken(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: eight bytes from our eventfd, which does not block.
        unsafe { libc::read(self.wake.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}
