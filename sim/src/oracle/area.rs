//! Registered buffers of a stream, and what they must hold in the end.

use urxe_engine::{Access, Sge, SgeList};

use super::complaint::{Complaint, ensure};
use super::space::Piece;
use crate::memory::Buffer;
use crate::{Fabric, NodeId};

/// Bytes before and behind a region in its mapping, which nobody may touch.
const MARGIN: usize = 64;
const MARGIN_BYTE: u8 = 0xC3;
/// A registered buffer with margins, and what it held in the beginning.
#[derive(Debug)]
pub(super) struct Area {
    pub(super) node: NodeId,
    pub(super) buffer: Buffer,
    pub(super) initial: Vec<u8>,
}

impl Area {
    /// Registers a buffer that holds `initial`.
    pub(super) fn new(fabric: &mut Fabric, node: NodeId, initial: &[u8], access: Access) -> Self {
        let memory = fabric.node_mut(node).memory_mut();
        let mapping = memory.map(initial.len() + 2 * MARGIN);
        memory.poke(mapping, &vec![MARGIN_BYTE; initial.len() + 2 * MARGIN]);
        let addr = mapping + MARGIN as u64;
        memory.poke(addr, initial);
        let length = initial.len() as u64;
        let key = memory.register(crate::memory::DEFAULT_PD, access, addr, length);
        Self { node, buffer: Buffer { addr, length, key }, initial: initial.to_vec() }
    }

    /// A list of the pieces, by another key if there is one.
    pub(super) fn sges(&self, pieces: &[Piece], l_key: Option<u32>) -> SgeList {
        let sge = |piece: &Piece| Sge {
            addr: self.buffer.addr + piece.offset as u64,
            length: u32::try_from(piece.len).expect("pieces are small"),
            l_key: l_key.unwrap_or(self.buffer.key.0),
        };
        SgeList::new(&pieces.iter().map(sge).collect::<Vec<_>>())
    }

    /// Whether the pieces together begin with `data`.
    pub(super) fn holds(&self, fabric: &Fabric, pieces: &[Piece], data: &[u8]) -> bool {
        let mut rest = data;
        for piece in pieces {
            let (part, behind) = rest.split_at(piece.len.min(rest.len()));
            if !fabric.node(self.node).memory().holds(self.buffer.addr + piece.offset as u64, part) {
                return false;
            }
            rest = behind;
        }
        rest.is_empty()
    }
}

/// Final bytes of a buffer: each byte is one of two, which are the same where nothing is in doubt.
pub(super) struct Image {
    settled: Vec<u8>,
    possible: Vec<u8>,
}

impl Image {
    /// The buffer as it was in the beginning.
    pub(super) fn of(area: &Area) -> Self {
        Self { settled: area.initial.clone(), possible: area.initial.clone() }
    }

    /// `data` have been put into `pieces`, or if not `certain`, perhaps.
    pub(super) fn put(&mut self, pieces: &[Piece], data: &[u8], certain: bool) {
        let mut rest = data;
        for piece in pieces {
            let (part, behind) = rest.split_at(piece.len.min(rest.len()));
            let range = piece.offset..piece.offset + part.len();
            self.possible[range.clone()].copy_from_slice(part);
            if certain {
                self.settled[range].copy_from_slice(part);
            }
            rest = behind;
        }
    }

    /// Compares it with what the buffer holds.
    pub(super) fn compare(&self, what: &str, area: &Area, fabric: &Fabric) -> Result<(), Complaint> {
        let memory = fabric.node(area.node).memory();
        let actual = memory.peek(area.buffer.addr - MARGIN as u64, area.initial.len() + 2 * MARGIN);
        let (before, rest) = actual.split_at(MARGIN);
        let (inside, behind) = rest.split_at(area.initial.len());
        for margin in [before, behind] {
            ensure!(margin.iter().all(|&byte| byte == MARGIN_BYTE), "{what}: written outside of the region");
        }
        let pairs = self.settled.iter().zip(&self.possible);
        let wrong =
            inside.iter().zip(pairs).position(|(byte, (settled, possible))| byte != settled && byte != possible);
        ensure!(wrong.is_none(), "{what}: wrong byte at offset {wrong:?}");
        Ok(())
    }
}
