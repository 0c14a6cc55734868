//! WRITEs behind the message under way, as far as their first packets are kept.

use alloc::collections::VecDeque;

use urxe_wire::{Mtu, Psn, RKey, Reth};

use crate::qp::psn_bits::PsnBits;

/// WRITEs that are followed at most: each is looked at for every packet behind it.
const MOST: usize = 32;

/// A WRITE that begins behind the packet that is expected.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpcomingWrite {
    /// PSN of its first packet.
    first: Psn,
    packets: u32,
    /// Where it goes.
    reth: Reth,
    /// Bit mask of 32 packets from index `looked_at` on, most significant bit first: set where no earlier WRITE can still store.
    free: u32,
    looked_at: u32,
}

impl UpcomingWrite {
    /// Makes a WRITE of so many packets, the first of them at this PSN.
    pub(super) const fn new(first: Psn, packets: u32, reth: Reth) -> Self {
        Self { first, packets, reth, free: 0, looked_at: 0 }
    }

    fn end(&self) -> Psn {
        self.first.add(self.packets)
    }

    /// Returns the place of its packet at `psn`, by RETH and offset, if it is not the last.
    pub(super) fn place(&self, psn: Psn, mtu: Mtu) -> Option<(Reth, u64)> {
        let nth = psn.advance_from(self.first);
        (nth + 1 < self.packets).then_some((self.reth, u64::from(nth) * mtu.bytes() as u64))
    }

    /// Whether the `nth` packet was found to be free.
    const fn is_free(&self, nth: u32) -> bool {
        let behind = nth.wrapping_sub(self.looked_at);
        behind < 32 && self.free << behind >> 31 != 0
    }

    /// Returns bits of 32 places of a packet each, from `va` on: those at which this WRITE stores nothing any more, and those all of
    /// which it has stored.
    fn leaves_alone(&self, r_key: RKey, va: u64, mtu: Mtu, stored: &PsnBits) -> (u32, u32) {
        if self.reth.dma_len == 0 {
            return (u32::MAX, 0);
        }
        if self.reth.r_key != r_key {
            // Addresses under another key may be those of the same memory.
            return (0, 0);
        }
        // The memory of both was checked: they are addresses of one region. Of pages that a region has twice nothing is known here
        // (docs/internals/selective-repeat.md).
        let distance = va.wrapping_sub(self.reth.va).cast_signed();
        // An MTU is a power of two.
        let bytes = mtu.bytes() as u64;
        let nth = distance >> bytes.trailing_zeros();
        let (free, has_stored) = self.free_from(nth, stored);
        if distance.cast_unsigned() & (bytes - 1) == 0 {
            return (free, has_stored);
        }
        let (free_too, has_stored_too) = self.free_from(nth.saturating_add(1), stored);
        (free & free_too, has_stored & has_stored_too)
    }

    /// Returns the first of its packets that goes to a packet's place at `va` and is not stored.
    fn unstored_at(&self, r_key: RKey, va: u64, mtu: Mtu, stored: &PsnBits) -> Option<Psn> {
        if self.reth.dma_len == 0 || self.reth.r_key != r_key {
            return None;
        }
        let (distance, bytes) = (va.wrapping_sub(self.reth.va).cast_signed(), mtu.bytes() as u64);
        let nth = distance >> bytes.trailing_zeros();
        let is_aligned = distance.cast_unsigned() & (bytes - 1) == 0;
        let both = (nth..=nth + i64::from(!is_aligned)).filter_map(|nth| u32::try_from(nth).ok());
        both.filter(|nth| *nth < self.packets).map(|nth| self.first.add(nth)).find(|psn| !stored.is_set(*psn))
    }

    /// Returns bits of 32 packets from the `nth` on: those that are stored already or are none of this WRITE's, and those that are
    /// stored.
    fn free_from(&self, nth: i64, stored: &PsnBits) -> (u32, u32) {
        if nth <= -32 || nth >= i64::from(self.packets) {
            return (u32::MAX, 0);
        }
        // Of these packets `before` are in front of this WRITE, or it has `behind` in front of them.
        let [before, behind] = [-nth, nth].map(|packets| u32::try_from(packets).unwrap_or(0));
        let inside = PsnBits::first(self.packets - behind) >> before;
        let has_stored = inside & stored.word(self.first.add(behind)) >> before;
        (!inside | has_stored, has_stored)
    }
}

/// WRITEs in a row, the first of them directly behind the message under way.
#[derive(Debug, Default)]
pub(super) struct Upcoming(VecDeque<UpcomingWrite>);

impl Upcoming {
    /// Forgets the WRITEs that begin before `expected`.
    #[inline]
    pub(super) fn forget(&mut self, expected: Psn) {
        while self.0.front().is_some_and(|write| write.first.distance_from(expected) < 0) {
            self.0.pop_front();
        }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Follows the WRITEs from `next` on, the PSN behind the message under way, until one contains `psn`, as far as `begins` tells
    /// of the WRITE that begins at a PSN.
    pub(super) fn follow(&mut self, next: Psn, psn: Psn, begins: impl Fn(Psn) -> Option<UpcomingWrite>) {
        if self.0.front().is_some_and(|write| write.first != next) {
            self.0.clear();
        }
        let mut end = self.0.back().map_or(next, UpcomingWrite::end);
        while psn.distance_from(end) >= 0
            && self.0.len() < MOST
            && let Some(write) = begins(end)
        {
            end = write.end();
            self.0.push_back(write);
        }
    }

    /// Returns the oldest packet, from the WRITE `under_way` on, that goes to the place of the one at `psn` and is not stored.
    pub(super) fn blocks(&self, psn: Psn, under_way: &UpcomingWrite, mtu: Mtu, stored: &PsnBits) -> Option<Psn> {
        let at = self.0.iter().rposition(|write| psn.distance_from(write.first) >= 0)?;
        let UpcomingWrite { first, reth, .. } = *self.0.get(at)?;
        let va = reth.va.wrapping_add(u64::from(psn.advance_from(first)) * mtu.bytes() as u64);
        let mut in_front = core::iter::once(under_way).chain(self.0.iter().take(at));
        in_front.find_map(|write| write.unstored_at(reth.r_key, va, mtu, stored))
    }

    /// Returns the place of the packet at `psn`, by RETH and offset, if it is neither the first nor the last of a WRITE that is known, and
    /// what is in front of it, from the WRITE `under_way` on, stores nothing there any more. Of the packets of these `stored` tells
    /// which are stored.
    pub(super) fn middle(
        &mut self,
        psn: Psn,
        under_way: &UpcomingWrite,
        mtu: Mtu,
        stored: &PsnBits,
    ) -> Option<(Reth, u64)> {
        let at = self.0.iter().rposition(|write| psn.distance_from(write.first) >= 0)?;
        let UpcomingWrite { first, packets, reth, .. } = *self.0.get(at)?;
        let nth = psn.advance_from(first);
        if nth == 0 || nth + 1 >= packets {
            return None;
        }
        let offset = u64::from(nth) * mtu.bytes() as u64;
        if !self.0.get(at)?.is_free(nth) {
            let va = reth.va.wrapping_add(offset);
            // The youngest in front first: where that has stored, those before it had nothing to store any more.
            let (mut free, mut settled) = (PsnBits::first(packets - 1 - nth), 0);
            for write in self.0.iter().take(at).rev().chain([under_way]) {
                let (leaves, has_stored) = write.leaves_alone(reth.r_key, va, mtu, stored);
                free &= leaves | settled;
                settled |= has_stored;
                if free & !settled == 0 {
                    break;
                }
            }
            let write = self.0.get_mut(at)?;
            (write.free, write.looked_at) = (free, nth);
        }
        self.0.get(at)?.is_free(nth).then_some((reth, offset))
    }
}

#[cfg(test)]
mod tests {
    use core::ops::Range;
    use std::vec::Vec;

    use super::*;

    const MTU: Mtu = Mtu::Mtu256;

    fn write_at(va: u64, first: u32, packets: u32) -> UpcomingWrite {
        UpcomingWrite::new(Psn::new(first), packets, Reth { va, r_key: RKey(1), dma_len: packets * 256 })
    }

    fn write(first: u32, packets: u32) -> UpcomingWrite {
        write_at(0, first, packets)
    }

    fn shown(upcoming: &Upcoming) -> Vec<u32> {
        upcoming.0.iter().map(|write| write.first.get()).collect()
    }

    #[test]
    fn writes_in_a_row_are_followed() {
        let known = [write(0xFF_FFFE, 4), write(2, 1), write(3, 5), write(9, 3)];
        let begins = |psn: Psn| known.iter().find(|write| write.first == psn).copied();
        let mut upcoming = Upcoming::default();
        upcoming.follow(known[0].first, Psn::new(1), begins);
        assert_eq!(shown(&upcoming), [0xFF_FFFE]);
        // What begins at 8 is not known.
        upcoming.follow(known[0].first, Psn::new(10), begins);
        assert_eq!(shown(&upcoming), [0xFF_FFFE, 2, 3]);
        upcoming.forget(Psn::new(1));
        upcoming.follow(Psn::new(2), Psn::new(4), |_| None);
        assert_eq!(shown(&upcoming), [2, 3], "the first is under way");
        upcoming.forget(Psn::new(3));
        upcoming.follow(Psn::new(3), Psn::new(4), |_| None);
        assert_eq!(shown(&upcoming), [3], "those before it are under way or over");
        upcoming.follow(Psn::new(9), Psn::new(9), begins);
        assert_eq!(shown(&upcoming), [9]);
        upcoming.follow(Psn::new(8), Psn::new(9), begins);
        assert_eq!(shown(&upcoming), [0; 0], "not directly behind");
        upcoming.follow(Psn::new(7), Psn::new(1000), |psn| Some(write(psn.get(), 3)));
        assert_eq!(shown(&upcoming).len(), MOST);
    }

    /// The WRITE under way and two behind it, of 40 packets each. Each byte of the last one's middle may be stored when all packets
    /// before it that go there are.
    #[test]
    fn places_that_packets_in_front_go_to_are_not_free() {
        const BASE: u64 = 1 << 20;
        // How far the second and the third are shifted.
        for (second, third) in [(0, 0), (256, 512), (-256, -1024), (100, -300), (-1, 1), (-9984, 9984), (20_000, 0)] {
            for start in [1000, 0xFF_FFB0] {
                let psn = |nth: u32| Psn::new(start).add(nth);
                let at = |shift: i64| BASE.wrapping_add_signed(shift);
                let under_way = write_at(BASE, start, 40);
                let behind = [write_at(at(second), psn(40).get(), 40), write_at(at(third), psn(80).get(), 40)];
                let mut stored = PsnBits::default();
                // Where the packets before the last WRITE go, and which of these are not stored: the outer ones, those that are
                // missing, and those that have to wait for others.
                let goes_to = |nth: u32| {
                    let begins = if nth < 40 { BASE } else { at(second) } + u64::from(nth % 40) * 256;
                    begins..begins + 256
                };
                let meet = |one: &Range<u64>, other: &Range<u64>| one.start < other.end && other.start < one.end;
                let mut waiting: Vec<Range<u64>> = Vec::new();
                for nth in 0..80 {
                    let is_missing = nth % 40 == 0 || nth % 40 == 39 || nth % 7 == 0;
                    let waits = nth >= 40 && waiting.iter().any(|other| meet(other, &goes_to(nth)));
                    stored.set(psn(nth), !is_missing && !waits);
                    if is_missing || waits {
                        waiting.push(goes_to(nth));
                    }
                }
                let mut upcoming = Upcoming::default();
                upcoming.follow(psn(40), psn(119), |psn| behind.iter().find(|write| write.first == psn).copied());
                for nth in 80..120 {
                    let va = at(third) + u64::from(nth - 80) * 256;
                    let is_free = !waiting.iter().any(|other| meet(other, &(va..va + 256)));
                    let is_middle = nth > 80 && nth < 119;
                    let place = upcoming.middle(psn(nth), &under_way, MTU, &stored);
                    let wanted = (is_free && is_middle).then_some((behind[1].reth, u64::from(nth - 80) * 256));
                    assert_eq!(place, wanted, "{second} {third} {nth}");
                }
            }
        }
    }

    #[test]
    fn a_place_that_becomes_free_later_is_found() {
        let (under_way, mut stored, mut upcoming) = (write(0, 4), PsnBits::default(), Upcoming::default());
        upcoming.follow(Psn::new(4), Psn::new(5), |psn| Some(write(psn.get(), 4)));
        assert_eq!(upcoming.middle(Psn::new(5), &under_way, MTU, &stored), None);
        stored.set(Psn::new(1), true);
        assert!(upcoming.middle(Psn::new(5), &under_way, MTU, &stored).is_some());
        assert_eq!(upcoming.middle(Psn::new(6), &under_way, MTU, &stored), None);
        // One of another key may go to the same memory, if it has bytes.
        let other = Reth { r_key: RKey(2), ..under_way.reth };
        let elsewhere = UpcomingWrite::new(Psn::new(0), 4, Reth { va: 1 << 30, ..other });
        assert_eq!(upcoming.middle(Psn::new(6), &elsewhere, MTU, &stored), None);
        let empty = UpcomingWrite::new(Psn::new(0), 1, Reth { dma_len: 0, ..other });
        assert!(upcoming.middle(Psn::new(6), &empty, MTU, &stored).is_some());
    }
}
