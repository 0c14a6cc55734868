//! Notes between the two ends of a host: the end that refuses a request tells the other why, in the words of its own
//! explanation.
//!
//! A note leaves before the NAK does, so it is there when the refused request completes. It is sent only if the peer's address is one
//! of this host: its QP number means nothing here otherwise. What comes from another process of the user is checked: a refusal must be from the
//! queue pair's peer; of datagrams, which are for anybody, only the first note is printed.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use urxe_net::cancellation::CancelGuard;
use urxe_net::ipc::notes::NOTE_MAX;
use urxe_net::{Notes, Port};
use urxe_wire::{Gid, Qpn};

/// Why a peer has refused or dropped something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Note {
    /// The queue pair that it is for.
    pub(super) to: Qpn,
    /// The queue pair that has refused.
    pub(super) from: Qpn,
    /// Address of that queue pair.
    pub(super) address: IpAddr,
    /// The packet was dropped without an answer: only this note tells the sender.
    pub(super) is_drop: bool,
    pub(super) why: String,
    pub(super) remedy: String,
}

const FIXED: usize = 4 + 4 + 16 + 1;

impl Note {
    fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED + self.why.len() + 1 + self.remedy.len());
        bytes.extend(self.to.get().to_be_bytes());
        bytes.extend(self.from.get().to_be_bytes());
        bytes.extend(Gid::from(self.address).octets());
        bytes.push(u8::from(self.is_drop));
        bytes.extend(self.why.bytes().chain([b'\n']).chain(self.remedy.bytes()));
        bytes.truncate(NOTE_MAX);
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (fixed, text) = bytes.split_first_chunk::<FIXED>()?;
        let number = |at: usize| Some(Qpn::new(u32::from_be_bytes(*fixed.get(at..)?.first_chunk()?)));
        let text = String::from_utf8_lossy(text);
        let (why, remedy) = text.split_once('\n')?;
        // It may go to a terminal.
        let plain = |text: &str| text.chars().filter(|c| !c.is_control()).collect();
        Some(Self {
            to: number(0)?,
            from: number(4)?,
            address: Gid::new(*fixed.get(8..)?.first_chunk()?).ip(),
            is_drop: fixed.last() == Some(&1),
            why: plain(why),
            remedy: plain(remedy),
        })
    }
}

/// Sends notes, and takes those that come.
#[derive(Debug, Default)]
pub(super) struct NoteBox(OnceLock<Notes>);

impl NoteBox {
    /// Wants notes to this queue pair. One whose block another process listens for gets none.
    pub(super) fn listen(&self, port: &Port, qpn: Qpn) {
        let _ = self.0.get_or_init(|| port.notes()).listen(qpn);
    }

    /// Sends a note to a peer at `remote`, if that is on this host and wants it.
    pub(super) fn send(&self, remote: SocketAddr, note: &Note) {
        if let Some(notes) = self.0.get() {
            // connect(2) and close(2) are cancellation points.
            let _guard = CancelGuard::new();
            if urxe_net::is_own_address(remote) {
                // Without explanations, the peer has its completion only.
                let _ = notes.send(note.to, &note.emit());
            }
        }
    }

    /// Takes the notes that have come.
    pub(super) fn receive(&self) -> Vec<Note> {
        let Some(notes) = self.0.get() else { return Vec::new() };
        // accept(2) is a cancellation point.
        let _guard = CancelGuard::new();
        let come = notes.receive();
        come.iter().filter_map(|bytes| Note::parse(bytes)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_written_without_control_characters() {
        let note = Note {
            to: Qpn::new(0x12_3456),
            from: Qpn::new(7),
            address: "10.0.0.1".parse().unwrap(),
            is_drop: true,
            why: "why".into(),
            remedy: "remedy".into(),
        };
        assert_eq!(Note::parse(&note.emit()), Some(note.clone()));
        let coloured = Note { why: "\x1b[31mwhy\r".into(), ..note.clone() };
        assert_eq!(Note::parse(&coloured.emit()).unwrap().why, "[31mwhy");
        assert_eq!(Note::parse(b"short"), None);
        let long = Note { remedy: "x".repeat(5000), ..note };
        assert!(long.emit().len() == NOTE_MAX && Note::parse(&long.emit()).is_some());
    }
}
