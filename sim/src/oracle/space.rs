//! Buffers that a plan takes bytes of.

use urxe_engine::rng::Rng;

/// Some bytes of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Offset of the first byte.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
}

impl Piece {
    /// Returns it as a range of the buffer.
    #[must_use]
    pub const fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.len
    }
}

/// Bytes handed out from the front, with a few unused ones between.
pub(super) struct Space {
    pub(super) bytes: Vec<u8>,
}

impl Space {
    /// Hands out `len` bytes.
    pub(super) fn take(&mut self, rng: &mut Rng, len: usize) -> Piece {
        let gap = small(rng, 24);
        self.extend(rng, gap);
        let offset = self.bytes.len();
        self.extend(rng, len);
        Piece { offset, len }
    }

    /// Eight bytes at a multiple of eight.
    pub(super) fn take_aligned(&mut self, rng: &mut Rng) -> usize {
        let gap = self.bytes.len().next_multiple_of(8) - self.bytes.len();
        self.extend(rng, gap + 8);
        self.bytes.len() - 8
    }

    fn extend(&mut self, rng: &mut Rng, len: usize) {
        self.bytes.extend(random_bytes(rng, len));
    }

    /// Takes up to `most` pieces; none at all for no bytes, or an empty one.
    pub(super) fn scatter(&mut self, rng: &mut Rng, len: usize, most: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut rest = len;
        for left in (1..=small(rng, most + 1)).rev() {
            let part = if left == 1 { rest } else { small(rng, rest + 1) };
            pieces.push(self.take(rng, part));
            rest -= part;
        }
        if rest > 0 {
            pieces.push(self.take(rng, rest));
        }
        pieces
    }
}

/// A number below `bound`.
pub(super) fn small(rng: &mut Rng, bound: usize) -> usize {
    usize::try_from(rng.below(bound as u64)).unwrap_or(0)
}

pub(super) fn random_bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next_u64().to_ne_bytes());
    }
    bytes.truncate(len);
    bytes
}
