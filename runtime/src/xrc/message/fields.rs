//! Encoding of a message: its fields, one after another.

use urxe_wire::Qpn;

use super::MOST;

/// Room for everything before the payload.
pub(super) const HEAD: usize = 64;

/// The start of a message, and the payload that follows it.
pub(in crate::xrc) struct Parts<'a> {
    bytes: [u8; HEAD],
    used: usize,
    pub(in crate::xrc) payload: &'a [u8],
}

impl<'a> Parts<'a> {
    pub(super) fn new(kind: u8) -> Self {
        Self { bytes: [0; HEAD], used: 0, payload: &[] }.put([kind])
    }

    pub(super) fn put<const N: usize>(mut self, field: [u8; N]) -> Self {
        if let Some(room) = self.bytes.get_mut(self.used..self.used + N) {
            room.copy_from_slice(&field);
            self.used += N;
        }
        self
    }

    pub(super) fn u32(self, field: u32) -> Self {
        self.put(field.to_ne_bytes())
    }

    pub(super) fn u64(self, field: u64) -> Self {
        self.put(field.to_ne_bytes())
    }

    pub(super) fn flag(self, field: bool) -> Self {
        self.put([u8::from(field)])
    }

    pub(super) fn with(self, payload: &'a [u8]) -> Self {
        Self { payload, ..self }
    }

    pub(in crate::xrc) fn head(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or_default()
    }
}

/// Unread remainder of a message.
pub(super) struct Rest<'a>(pub(super) &'a [u8]);

impl<'a> Rest<'a> {
    pub(super) fn get<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.get().map(u8::from_ne_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.get().map(u32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.get().map(u64::from_ne_bytes)
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(super) fn qpn(&mut self) -> Option<Qpn> {
        self.u32().map(Qpn::new)
    }

    pub(super) fn payload(&mut self) -> Option<&'a [u8]> {
        let payload = std::mem::take(&mut self.0);
        (payload.len() <= MOST).then_some(payload)
    }
}
