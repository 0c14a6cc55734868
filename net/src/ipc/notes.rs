//! Short notes to the process that has a queue pair, between processes of one user: why a request was refused, in more words
//! than a NAK has.
//!
//! A process that takes notes listens at an abstract name made of the block of its queue pair's number. Sending never waits: a note
//! that does not fit, or that has no listener, is lost.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex};

use urxe_wire::Qpn;

use crate::ipc::unix;
use crate::mutex::lock;
use crate::qpn_registry::block_of;
use crate::sys::fd::{Fd, FdSet};

/// Part of the names of these listeners.
const KIND: &str = "note";

/// The longest note, in bytes.
pub const NOTE_MAX: usize = 1024;

/// Connections accepted in one call.
const MOST: usize = 64;

/// Connections without a note that are kept: their senders are between connect(2) and send(2), for microseconds.
const MOST_SILENT: usize = 8;

/// Sends notes, and receives those for the queue pairs that it listens for.
#[derive(Debug)]
pub struct Notes {
    fds: Arc<FdSet>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    listeners: HashMap<u16, Fd>,
    /// Accepted connections whose note has not come yet, the oldest first.
    silent: VecDeque<Fd>,
}

impl Notes {
    pub(crate) fn new(fds: &Arc<FdSet>) -> Self {
        Self { fds: Arc::clone(fds), state: Mutex::default() }
    }

    /// Listens for notes to `qpn`, which is this process's.
    ///
    /// # Errors
    /// `AddrInUse` if another listens already; what else the system refuses.
    pub fn listen(&self, qpn: Qpn) -> io::Result<()> {
        let mut state = lock(&self.state);
        if let std::collections::hash_map::Entry::Vacant(place) = state.listeners.entry(block_of(qpn)) {
            let listener = unix::listen(KIND, block_of(qpn))?;
            place.insert(self.fds.adopt(listener)?);
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
        let State { listeners, silent } = &mut *lock(&self.state);
        let mut notes = Vec::new();
        silent.retain(|connection| connection.is_ours() && !take(connection.as_raw_fd(), &mut notes));
        let mut accepted = 0;
        for listener in listeners.values() {
            while accepted < MOST
                && let Ok(Some(connection)) = unix::accept(listener.as_raw_fd())
            {
                accepted += 1;
                if !take(connection.as_raw_fd(), &mut notes)
                    && let Ok(connection) = self.fds.adopt(connection)
                {
                    silent.push_back(connection);
                }
            }
        }
        silent.drain(..silent.len().saturating_sub(MOST_SILENT));
        notes
    }
}

/// Takes the note of a connection. False if it has not come yet.
fn take(connection: RawFd, notes: &mut Vec<Vec<u8>>) -> bool {
    let mut note = vec![0; NOTE_MAX];
    match unix::receive(connection, &mut note) {
        Ok(None) => return false,
        Ok(Some((length, _))) => {
            note.truncate(length);
            notes.push(note);
        }
        // Its sender has gone, or is none of ours.
        Err(_) => {}
    }
    true
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

    #[test]
    fn a_note_may_come_after_its_connection() {
        let fds = FdSet::new().unwrap();
        let notes = Notes::new(&fds);
        let qpn = Qpn::new(u32::from(crate::sys::random::random_u16()) << 8 | 8);
        notes.listen(qpn).unwrap();
        let connect = || unix::connect(KIND, block_of(qpn)).unwrap();
        let (slow, gone) = (connect(), connect());
        assert!(notes.receive().is_empty());
        drop(gone);
        crate::sys::send_parts(slow.as_raw_fd(), [b"late", &[]]).unwrap();
        assert_eq!(notes.receive(), [b"late".to_vec()]);
        // Whoever connects and says nothing takes the place of others who do.
        let silent: Vec<_> = (0..=MOST_SILENT).map(|_| connect()).collect();
        assert!(notes.receive().is_empty());
        assert_eq!(notes.state.lock().unwrap().silent.len(), MOST_SILENT);
        drop(silent);
        assert!(notes.receive().is_empty());
        assert_eq!(notes.state.lock().unwrap().silent.len(), 0);
    }
}
