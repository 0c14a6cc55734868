//! A gap in the PSNs of requests, and when to speak of it.
//!
//! A requester hears of a gap once, and then sends again all that comes after it (IBA 9.7.5.2.8). If what filled the gap is
//! lost once more, what follows it arrives a second time. A responder that keeps silent then leaves its peer waiting
//! for a timer, which takes as long as thousands of packets.

use urxe_wire::Psn;

/// Packets behind a gap after which one that had come before means that the requester has gone back, not that the
/// network has delivered something late or twice (as TCP's third duplicate of an ACK does, RFC 5681).
const SURE: u32 = 3;

/// A gap that the requester was told of.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::qp) struct PsnNak {
    /// The first packet that came behind it, and the farthest.
    behind: Option<(Psn, Psn)>,
    /// How many came, each farther than those before.
    packets: u32,
    /// The requester was told a second time, which is all.
    told_again: bool,
}

impl PsnNak {
    /// Notes a packet behind the gap. Returns whether the requester must be told once more, because it has gone back in vain.
    pub(in crate::qp) fn has_reopened(&mut self, psn: Psn) -> bool {
        let (first, farthest) = self.behind.unwrap_or((psn, psn.sub(1)));
        if psn.distance_from(farthest) > 0 {
            self.behind = Some((first, psn));
            self.packets = self.packets.saturating_add(1);
            return false;
        }
        let reopened = self.packets >= SURE && psn.distance_from(first) <= 0 && !self.told_again;
        self.told_again |= reopened;
        reopened
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reopened(psns: &[u32]) -> usize {
        let mut gap = PsnNak::default();
        psns.iter().filter(|&&psn| gap.has_reopened(Psn::new(psn))).count()
    }

    #[test]
    fn a_second_go_back_gets_a_second_nak() {
        assert_eq!(reopened(&[101, 102, 103, 104, 101, 102, 103, 101]), 1);
        assert_eq!(reopened(&[0xFF_FFFF, 0, 1, 2, 0xFF_FFFF]), 1, "PSNs wrap");
        assert_eq!(reopened(&[102, 103, 104, 105, 101]), 1, "another was lost before");
    }

    #[test]
    fn late_and_duplicated_packets_get_no_second_nak() {
        assert_eq!(reopened(&[101, 101, 102, 101]), 0);
        assert_eq!(reopened(&[102, 101, 103, 104, 105]), 0);
        assert_eq!(reopened(&[101, 102, 103, 104, 103, 105]), 0);
    }
}
