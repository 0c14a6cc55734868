//! The notification point: turns marks of packets that arrive into congestion notification packets (IBA annex A17.9).

use core::time::Duration;

use crate::time::Instant;

/// Congestion marks of packets that arrived together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    /// A queue on the way was long: CE in the IP header (RFC 3168), or FECN in the BTH.
    pub forward: bool,
    /// The peer was told of congestion on the way from here: BECN in the BTH of a packet other than a CNP.
    pub backward: bool,
}

impl Marks {
    /// Marks of packets whose IP headers have this TOS or traffic class.
    #[must_use]
    pub const fn of_class(tclass: u8) -> Self {
        Self { forward: tclass & CE == CE, backward: false }
    }

    /// Adds the marks of a packet's BTH.
    #[inline]
    pub const fn add(&mut self, fecn: bool, becn: bool) {
        self.forward |= fecn;
        self.backward |= becn;
    }

    /// Whether any packet was marked.
    #[inline]
    #[must_use]
    pub const fn any(self) -> bool {
        self.forward | self.backward
    }
}

/// ECN bits of "congestion experienced" (RFC 3168, 5).
const CE: u8 = 0b11;
/// ECN bits of an ECN-capable sender.
const ECT_0: u8 = 0b10;

/// The TOS or traffic class of packets of a connection: ECT(0), unless the address vector's says something about ECN.
#[must_use]
pub const fn capable(tclass: u8) -> u8 {
    if tclass & CE == 0 { tclass | ECT_0 } else { tclass }
}

/// The notification point of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NotificationPoint {
    /// No CNP leaves before.
    not_before: Option<Instant>,
}

impl NotificationPoint {
    /// Whether a CNP may leave now.
    pub(crate) fn may_notify(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| at <= now)
    }

    /// Notes that a CNP leaves; the next follows `interval` later at the earliest.
    pub(crate) fn notified(&mut self, now: Instant, interval: Duration) {
        self.not_before = Some(now + interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ect_unless_the_class_says_otherwise() {
        assert_eq!([0, 0x28, 0x29, 0x2A, 0x2B].map(capable), [2, 0x2A, 0x29, 0x2A, 0x2B]);
        assert_eq!([0, 1, 2, 3, 0xFF].map(|class| Marks::of_class(class).forward), [false, false, false, true, true]);
    }

    #[test]
    fn one_notification_an_interval() {
        let (mut point, at) = (NotificationPoint::default(), Instant::from_nanos);
        assert!(point.may_notify(at(0)));
        point.notified(at(0), Duration::from_micros(4));
        assert!(!point.may_notify(at(3999)) && point.may_notify(at(4000)));
    }
}
