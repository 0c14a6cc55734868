//! Fates of packets.

/// Fates of packets so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Sent by nodes.
    pub sent: u64,
    /// Given to queue pairs.
    pub delivered: u64,
    /// Lost by a rule.
    pub dropped: u64,
    /// Sent twice by a rule.
    pub duplicated: u64,
    /// Delayed by a rule.
    pub delayed: u64,
    /// Damaged by a rule.
    pub corrupted: u64,
    /// Changed by a rule, with a right ICRC.
    pub forged: u64,
    /// Lost because a receive buffer was full.
    pub overflowed: u64,
    /// Lost because the queue of a switch was full.
    pub queue_full: u64,
    /// Marked by a switch.
    pub marked: u64,
    /// Thrown away because the ICRC was wrong.
    pub bad_icrc: u64,
    /// Thrown away because it was no packet, after a forgery.
    pub malformed: u64,
    /// Packets for an address or a queue pair that does not exist.
    pub unreachable: u64,
}

impl Counts {
    /// Packets that something untoward happened to.
    #[must_use]
    pub const fn impaired(&self) -> u64 {
        self.dropped
            + self.duplicated
            + self.delayed
            + self.corrupted
            + self.forged
            + self.overflowed
            + self.queue_full
            + self.unreachable
    }
}
