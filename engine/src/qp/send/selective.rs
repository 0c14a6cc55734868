//! Selective repeat of a requester: what it knows of the peer, of packets that are missing, and of paths.

use alloc::boxed::Box;

use urxe_wire::Psn;

use super::paths::Paths;
use super::reordering::Reordering;
use super::scoreboard::Scoreboard;
use crate::cq::WcStatus;
use crate::time::Clock;

/// A round trip that nobody has measured, in nanoseconds.
pub(super) const UNKNOWN: u64 = 1_000_000;

/// Selective repeat of a requester.
#[derive(Debug, Default)]
pub(in crate::qp) struct Selective {
    /// Packets behind a gap that the peer keeps; 0: it does not.
    pub(super) window: u16,
    /// Packets that a receiver's buffer is thought to hold.
    pub(super) most: u32,
    /// The scoreboard, while some packets are missing.
    pub(super) board: Option<Box<Scoreboard>>,
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
        self.board = None;
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
