//! Selective repeat of a requester: what it knows of the peer, of packets that are missing, and of paths.

use alloc::boxed::Box;
use alloc::sync::Arc;

use urxe_wire::Psn;

use super::paths::Paths;
use super::reordering::Reordering;
use super::scoreboard::Scoreboard;
use crate::cq::WcStatus;
use crate::selective::KeptMemory;
use crate::time::Clock;

/// A round trip that nobody has measured, in nanoseconds.
pub(super) const UNKNOWN: u64 = 1_000_000;
/// Packets acknowledged without a gap after which the memory of the last scoreboard is given back.
const CALM: u32 = 1 << 14;

/// Selective repeat of a requester.
#[derive(Debug, Default)]
pub(in crate::qp) struct Selective {
    /// Packets behind a gap that the peer keeps; 0: it does not.
    pub(super) window: u16,
    /// Packets that a receiver's buffer is thought to hold.
    pub(super) most: u32,
    /// The scoreboard, while some packets are missing.
    pub(super) board: Option<Box<Scoreboard>>,
    /// The last one, for the next gap.
    spare: Option<Spare>,
    pub(super) reordering: Reordering,
    /// Paths, if there are several.
    pub(super) paths: Option<Box<Paths>>,
    /// Duplicates that the peer has told of, and packets sent again since.
    pub(super) duplicates: u32,
    pub(super) again: u32,
    /// Probes among these, and the PSN before which all was sent at the last one.
    pub(super) probes: u32,
    pub(super) probed_at: Psn,
    /// The request at this PSN was refused so, as soon as those before it are answered.
    pub(super) refused: Option<(Psn, WcStatus)>,
    /// Packets were lost while the peer was not known to keep any.
    pub(in crate::qp) went_back: bool,
}

/// A scoreboard that waits for the next gap. An allocator that returns memory to the system at each gap gets it back as empty pages.
#[derive(Debug)]
struct Spare {
    board: Box<Scoreboard>,
    /// PSN at which it is given back.
    until: Psn,
    _share: Share,
}

/// Bytes of the process's memory for what is kept.
#[derive(Debug)]
struct Share {
    memory: Arc<KeptMemory>,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.give_back(self.bytes);
    }
}

impl Selective {
    /// Whether the peer keeps packets behind a gap.
    pub(in crate::qp) const fn is_on(&self) -> bool {
        self.window > 0
    }

    /// Returns the scoreboard, while some packets are missing.
    #[inline]
    pub(super) fn board(&self) -> Option<&Scoreboard> {
        self.board.as_deref()
    }

    /// Returns a scoreboard to begin: the last one, if it is still there.
    pub(super) fn take_spare(&mut self) -> Box<Scoreboard> {
        self.spare.take().map_or_else(Box::default, |spare| spare.board)
    }

    /// Ends the scoreboard when all before `snd_una` is acknowledged. It stays for the next gap if the process's memory for what is
    /// kept is plenty.
    pub(super) fn end_board(&mut self, memory: Option<&Arc<KeptMemory>>, snd_una: Psn) {
        let Some((board, memory)) = self.board.take().zip(memory) else { return };
        let bytes = board.size();
        if memory.is_plenty() && memory.take(bytes) {
            let share = Share { memory: Arc::clone(memory), bytes };
            self.spare = Some(Spare { board, until: snd_una.add(CALM), _share: share });
        }
    }

    /// Gives memory back when so many packets were acknowledged without a gap.
    #[inline]
    pub(super) fn rest(&mut self, snd_una: Psn) {
        if let Some(spare) = &self.spare
            && snd_una.distance_from(spare.until) >= 0
        {
            self.spare = None;
        }
    }

    /// Notes that a packet was sent for the first time.
    #[inline]
    pub(super) fn sent(&mut self, psns: u32, is_answered: bool, path: u8) {
        if let Some(board) = &mut self.board {
            board.sent(psns, is_answered, path);
        }
    }

    /// The path of a packet that is sent for the first time.
    #[inline]
    pub(super) fn path_of(&self, psn: Psn) -> u8 {
        self.paths.as_ref().map_or(0, |paths| paths.of(psn))
    }

    /// Uses the paths again that have rested.
    #[inline]
    pub(super) fn refresh_paths(&mut self, clock: &impl Clock) {
        if let Some(paths) = self.paths.as_mut().filter(|paths| paths.waits()) {
            paths.come_back(clock.now());
        }
    }

    /// Uses all paths: nothing was heard for long, or the ACK timeout is over.
    pub(super) fn use_all_paths(&mut self, clock: &impl Clock) {
        if let Some(paths) = &mut self.paths {
            paths.use_all(clock.now());
        }
    }

    /// Forgets what is known of packets: all are sent again.
    pub(super) fn forget(&mut self) {
        (self.board, self.spare) = (None, None);
        self.refused = None;
    }

    /// Packets in flight, where some are missing; so many that no other may leave, if the peer would not keep it.
    #[inline]
    pub(super) fn in_flight(&self) -> Option<u32> {
        let board = self.board.as_ref()?;
        let is_full = board.outstanding() >= usize::from(self.window) || board.awaited() >= self.most;
        Some(if is_full { u32::MAX } else { board.in_flight() })
    }

    /// Whether another request is to leave, however many are in flight.
    #[inline]
    pub(super) fn wants_pilot(&self) -> bool {
        self.board.as_ref().is_some_and(|board| {
            let is_full = board.outstanding() >= usize::from(self.window) || board.awaited() >= self.most;
            board.wants_pilot() && board.lost() == 0 && !is_full
        })
    }

    /// Whether there is something to send again, or it is time to look.
    #[inline]
    pub(super) fn has_output(&self) -> bool {
        self.board.as_ref().is_some_and(|board| board.lost() > 0 || board.has_news())
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use super::*;

    /// Begins a scoreboard of so many packets. Returns the bytes that it had before.
    fn begin(selective: &mut Selective, packets: u32) -> usize {
        let mut board = selective.take_spare();
        let before = board.size();
        board.begin(Psn::new(0), Psn::new(packets), Psn::new(packets), &VecDeque::new(), |_| 0);
        selective.board = Some(board);
        before
    }

    #[test]
    fn a_gap_finds_the_room_of_the_one_before() {
        let memory = Arc::new(KeptMemory::default());
        let taken = || KeptMemory::MOST - memory.free();
        let mut selective = Selective::default();
        let empty = begin(&mut selective, 1000);
        assert_eq!(taken(), 0, "it is bounded by the packets in flight");
        selective.end_board(Some(&memory), Psn::new(5));
        let size = taken();
        assert!(size > empty + 2000, "{size} bytes");
        assert_eq!((begin(&mut selective, 10), taken()), (size, 0));
        selective.end_board(Some(&memory), Psn::new(5));
        selective.rest(Psn::new(CALM + 4));
        assert_eq!(taken(), size);
        selective.rest(Psn::new(CALM + 5));
        assert_eq!((taken(), begin(&mut selective, 10)), (0, empty));
        selective.end_board(Some(&memory), Psn::new(5));
        assert!(taken() > 0);
        selective.forget();
        assert_eq!(taken(), 0);
    }

    #[test]
    fn no_room_is_kept_that_others_need() {
        let memory = Arc::new(KeptMemory::of(1000));
        let mut selective = Selective::default();
        for memory in [Some(&memory), None] {
            let before = begin(&mut selective, 1000);
            selective.end_board(memory, Psn::new(0));
            assert_eq!(begin(&mut selective, 1), before);
            selective.forget();
        }
        assert_eq!(memory.free(), 1000);
    }
}
