//! A requester's access to the memory behind one queue pair of another process.

use core::sync::atomic::{Ordering, fence};
use std::sync::Arc;

use urxe_wire::Qpn;

use super::import::{Import, Seen};
use super::mapping::Placed;
use super::receives::{Message, ReceiveWords, SharedReceive};
use super::words::{QpWords, RegionWords, SharedQp, SharedRegion, Taken};

/// Bits of a PSN; what packets have taken of receive WQEs is above them.
const PSN_BITS: u32 = 24;

/// A queue pair of another process, for the only one who may reach memory through it: its peer.
///
/// The peer is *in* a region from [`enter`](Self::enter) to [`leave`](Self::leave), or until this is dropped: the target waits
/// meanwhile with what would take the memory away.
#[derive(Debug)]
pub struct Visit {
    import: Arc<Import>,
    words: Placed<QpWords>,
    version: u64,
    /// Receive WQEs that it shows.
    receives: Option<Placed<ReceiveWords>>,
    /// The receive WQE of an index, seen before the message for it comes: whoever waits for the peer's words has nothing else to do then.
    ahead: Option<(u64, SharedReceive)>,
    /// Requests carried out since the queue pair was shown.
    taken: Taken,
    /// Requests that the target was told of.
    told: Taken,
    /// Version and key of the region that it is in; 0 is a version of none.
    inside: (u64, u32),
}

/// A region of another process as it was seen.
#[derive(Debug)]
pub struct Found {
    words: Placed<RegionWords>,
    version: u64,
    key: u32,
    /// Words that were seen.
    pub value: SharedRegion,
}

impl Found {
    /// Whether the region has this key, and its words are unchanged.
    #[inline]
    #[must_use]
    pub fn is(&self, key: u32) -> bool {
        self.key == key && self.words.is(self.version)
    }

    /// Whether the buffer of a receive WQE lies in the region.
    #[inline]
    #[must_use]
    pub fn holds(&self, receive: &SharedReceive) -> bool {
        let SharedRegion { at, length, .. } = self.value;
        let offset = receive.at.checked_sub(at);
        self.is(receive.key)
            && self.version == receive.version
            && offset.and_then(|offset| offset.checked_add(receive.length.into())).is_some_and(|end| end <= length)
    }
}

impl Visit {
    /// Begins with a queue pair that was seen, and `shows_receives` or not. `None`: the other process has ended.
    #[must_use]
    pub fn new(import: Arc<Import>, qpn: Qpn, seen: &Seen<SharedQp>, shows_receives: bool) -> Option<Self> {
        let words = import.qp(qpn).filter(|_| import.look())?;
        let receives = if shows_receives { import.receives(qpn) } else { None };
        let taken = words.taken();
        Some(Self { import, words, version: seen.version, receives, ahead: None, taken, told: taken, inside: (0, 0) })
    }

    /// Whether the queue pair shows its receive WQEs.
    #[inline]
    #[must_use]
    pub const fn shows_receives(&self) -> bool {
        self.receives.is_some()
    }

    /// The receive WQE that the next message takes, if it is shown.
    #[inline]
    #[must_use]
    pub fn receive(&self) -> Option<SharedReceive> {
        let next = self.next_receive();
        match self.ahead {
            Some((index, receive)) if index == next => Some(receive),
            _ => self.receives.as_ref()?.receive(next),
        }
    }

    /// Index of the receive WQE that the next message takes.
    #[inline]
    fn next_receive(&self) -> u64 {
        (self.words.base() >> PSN_BITS).wrapping_add(self.taken.receives)
    }

    /// Says that a message is in the buffer of that receive WQE.
    #[inline]
    pub fn put(&mut self, message: &Message) {
        if let Some(receives) = &self.receives {
            receives.put(self.taken.receives, message);
            self.taken.receives = self.taken.receives.wrapping_add(1);
            let next = self.next_receive();
            self.ahead = receives.receive(next).map(|receive| (next, receive));
        }
    }

    /// Whether the other process is there, as far as is known, and the queue pair is shown as it was.
    #[inline]
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.import.is_alive() && self.words.is(self.version)
    }

    /// Asks the system whether the other process is there ([`Import::look`]).
    #[must_use]
    pub fn look(&self) -> bool {
        self.import.look()
    }

    /// PSN that the responder expects.
    #[inline]
    #[must_use]
    pub fn expected_psn(&self) -> u64 {
        self.words.base().wrapping_add(self.taken.psns)
    }

    /// A region, if it is shown.
    #[must_use]
    pub fn find(&self, key: u32) -> Option<Found> {
        let (words, seen) = self.import.find_region(key)?;
        Some(Found { words, version: seen.version, key, value: seen.value })
    }

    /// The address here of so many bytes of the file that has the memory.
    #[inline]
    #[must_use]
    pub fn address(&self, at: u64, length: u64) -> Option<u64> {
        let (start, end) = self.import.file();
        (at.checked_add(length)? <= end).then(|| start + at)
    }

    /// Enters a region, if it is not in there, and leaves another. False: region or queue pair are not what they were, and it is in
    /// none.
    #[inline]
    #[must_use]
    pub fn enter(&mut self, region: &Found) -> bool {
        if self.inside == (region.version, region.key) && self.goes_on(region) {
            return true;
        }
        self.leave();
        let is_in = self.words.enter(self.version, &region.words, region.version, region.key);
        if is_in {
            self.inside = (region.version, region.key);
        }
        is_in
    }

    /// Whether the region that was entered, and the queue pair, are still shown as they were: what was copied is theirs then.
    #[inline]
    #[must_use]
    pub fn goes_on(&self, region: &Found) -> bool {
        // Not before the copy: the target may have taken the memory from a copy that was stopped for long.
        fence(Ordering::Acquire);
        self.words.is(self.version) && region.words.is(region.version)
    }

    /// Counts a request that was carried out: the PSNs that its packets would have had, and its bytes.
    #[inline]
    pub fn took(&mut self, psns: u32, bytes: u64) {
        self.taken.psns = self.taken.psns.wrapping_add(psns.into());
        self.taken.messages = self.taken.messages.wrapping_add(1);
        self.taken.bytes = self.taken.bytes.wrapping_add(bytes);
    }

    /// Leaves the region that it is in, if any: what was copied is there, and the target is told. Returns the requests and bytes since
    /// it entered.
    #[inline]
    pub fn leave(&mut self) -> (u64, u64) {
        if self.inside.0 == 0 {
            return (0, 0);
        }
        self.inside = (0, 0);
        self.words.set_taken(&self.taken);
        self.words.leave();
        let told = core::mem::replace(&mut self.told, self.taken);
        (self.taken.messages.wrapping_sub(told.messages), self.taken.bytes.wrapping_sub(told.bytes))
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.leave();
    }
}
