//! Short notes to the process that has a queue pair, between processes of one user: why a request was refused, in more words
//! than a NAK has.
//!
//! A process that takes notes listens at an abstract name made of the block of its queue pair's number. Sending never waits: a note
//! that does not fit, or that has no listener, is lost.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};

use urxe_wire::Qpn;

use crate::ipc::unix;
use crate::qpn_registry::block_of;
use crate::sys::fd::{Fd, FdSet};

/// Part of the names of these listeners.
const KIND: &str = "note";

/// The longest note, in bytes.
pub const NOTE_MAX: usize = 1024;

/// Notes taken in one call.
const MOST: usize = 64;

/// Sends notes, and receives those for the queue pairs that it listens for.
#[derive(Debug)]
pub struct Notes {
    fds: Arc<FdSet>,
    listeners: Mutex<HashMap<u16, Fd>>,
}

impl Notes {
    pub(crate) fn new(fds: &Arc<FdSet>) -> Self {
        Self { fds: Arc::clone(fds), listeners: Mutex::default() }
    }

    /// Listens for notes to `qpn`, which is this process's.
    ///
    /// # Errors
    /// `AddrInUse` if another listens already; what else the system refuses.
    pub fn listen(&self, qpn: Qpn) -> io::Result<()> {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if let std::collections::hash_map::Entry::Vacant(place) = listeners.entry(block_of(qpn)) {
            place.insert(self.fds.adopt(unix::listen(KIND, block_of(qpn))?)?);
        }
        Ok(())
    }

    /// Sends a note of [`NOTE_MAX`] bytes at most to the process that has `qpn`, without waiting.
    ///
    /// # Errors
    /// `ConnectionRefused` if nobody wants it; `PermissionDenied` if another user does; what else the system refuses.
    pub fn send(&self, qpn: Qpn, note: &[u8]) -> io::Result<()> {
        let socket = self.fds.adopt(unix::connect(KIND, block_of(qpn))?)?;
        crate::sys::send_parts(socket.as_raw_fd(), [note, &[]]).map(drop)
    }

    /// Takes the notes that have come, without waiting.
    pub fn receive(&self) -> Vec<Vec<u8>> {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let mut notes = Vec::new();
        for listener in listeners.values() {
            while notes.len() < MOST
                && let Ok(Some(guest)) = unix::accept(listener.as_raw_fd())
            {
                let mut note = vec![0; NOTE_MAX];
                if let Ok(Some((length, _))) = unix::receive(guest.as_raw_fd(), &mut note) {
                    note.truncate(length);
                    notes.push(note);
                }
            }
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_reach_whoever_listens() {
        let fds = FdSet::new().unwrap();
        let (near, far) = (Notes::new(&fds), Notes::new(&fds));
        let qpn = Qpn::new(u32::from(crate::sys::random::random_u16()) << 8 | 7);
        assert_eq!(near.send(qpn, b"lost").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        far.listen(qpn).unwrap();
        far.listen(qpn).unwrap();
        assert!(far.receive().is_empty());
        near.send(qpn, b"one").unwrap();
        near.send(Qpn::new(qpn.get() + 1), b"another of the block").unwrap();
        assert_eq!(far.receive(), [b"one".to_vec(), b"another of the block".to_vec()]);
        assert!(far.receive().is_empty() && near.receive().is_empty());
    }
}
