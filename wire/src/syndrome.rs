//! The AETH syndrome: acknowledgement, receiver-not-ready, or a negative acknowledgement and its reason.

use core::time::Duration;

use crate::numbered::numbered;

/// Syndrome of an AETH (IBA 9.7.5.2, table "AETH syndrome").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// Acknowledge, with the responder's end-to-end credits.
    Ack(Credits),
    /// Receiver not ready: try again after the timer.
    RnrNak(RnrTimer),
    /// Negative acknowledge.
    Nak(NakCode),
}

impl Syndrome {
    /// Parses the syndrome byte; `None` for the reserved ones.
    #[must_use]
    pub const fn from_u8(byte: u8) -> Option<Self> {
        let low = byte & 0x1F;
        match byte >> 5 {
            0b000 => Some(Self::Ack(Credits(low))),
            0b001 => Some(Self::RnrNak(RnrTimer(low))),
            0b011 => match NakCode::new(low) {
                Some(code) => Some(Self::Nak(code)),
                None => None,
            },
            _ => None,
        }
    }

    /// The syndrome byte.
    #[must_use]
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::Ack(credits) => credits.0,
            Self::RnrNak(timer) => 0b0010_0000 | timer.0,
            Self::Nak(code) => 0b0110_0000 | code as u8,
        }
    }
}

numbered! {
    /// Why a request was refused (IBA 9.7.5.2.8 and table "NAK codes").
    pub enum NakCode: u8 {
        /// A request before this one is missing; the AETH's packet carries the PSN that was expected.
        PsnSequenceError = 0,
        /// The request was not legal here: opcode order, length, or an operation that the QP does not allow.
        InvalidRequest = 1,
        /// The R_Key does not give this access to this memory.
        RemoteAccessError = 2,
        /// The responder could not carry it out.
        RemoteOperationalError = 3,
        /// RD only: an end-to-end context fault.
        InvalidRdRequest = 4,
    }
}

/// Receive WQEs that the responder has beyond the message acknowledged, as a 5-bit code (IBA 9.7.7.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credits(u8);

impl Credits {
    /// The responder does not count (an SRQ, or it does not do flow control).
    pub const INVALID: Self = Self(0x1F);

    /// The largest code that promises no more than `wqes`.
    #[must_use]
    pub const fn from_wqes(wqes: u32) -> Self {
        let code = match wqes {
            0 | 1 => wqes,
            2..0x8000 => {
                // A power of two has an even code, and the point halfway to the next one follows.
                let power = wqes.ilog2();
                2 * power + (wqes >> (power - 1) & 1)
            }
            _ => 30,
        };
        Self(code.to_le_bytes()[0])
    }

    /// The 5-bit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The number of messages promised, if the responder counts.
    #[must_use]
    pub const fn wqes(self) -> Option<u32> {
        if self.0 == Self::INVALID.0 { None } else { Some(self.limit()) }
    }

    /// 0, 1, 2, 3, 4, 6, 8, 12, 16, 24 … 32768: powers of two and the points halfway between.
    const fn limit(self) -> u32 {
        match self.0 {
            code @ 0..=2 => code as u32,
            code => {
                let (half, odd) = (code / 2, code % 2);
                if odd == 0 { 1 << half } else { 3 << (half - 1) }
            }
        }
    }
}

/// Time for which a requester waits after an RNR NAK, as a 5-bit code (IBA 9.7.5.2.8, table "RNR NAK timer").
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RnrTimer(u8);

/// Units of 10 µs; code 0 is the longest.
const RNR_TIMERS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl RnrTimer {
    /// The timer with this code; only the low five bits count.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1F)
    }

    /// The 5-bit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time to wait: 10 µs to 655.36 ms.
    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::from_micros(u64::from(RNR_TIMERS[usize::from(self.0 & 0x1F)]) * 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn every_byte_is_reserved_or_round_trips() {
        let legal = (0..=u8::MAX).filter(|&byte| {
            Syndrome::from_u8(byte).is_some_and(|syndrome| {
                assert_eq!(syndrome.to_u8(), byte);
                true
            })
        });
        // 32 acknowledges, 32 RNR NAKs, five NAK codes.
        assert_eq!(legal.count(), 32 + 32 + 5);
    }

    #[test]
    fn credit_codes() {
        let limits: Vec<u32> = (0..31).map(|code| Credits(code).wqes().unwrap()).collect();
        assert_eq!(
            limits,
            [
                0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
                4096, 6144, 8192, 12288, 16384, 24576, 32768
            ]
        );
        assert_eq!(Credits::INVALID.wqes(), None);
        assert_eq!([0, 1, 5, 7, 8, 1_000_000].map(|n| Credits::from_wqes(n).wqes().unwrap()), [0, 1, 4, 6, 8, 32768]);
        for wqes in (0..40_000).chain([u32::MAX]) {
            let promised = (0..31).rfind(|code| Credits(*code).limit() <= wqes);
            assert_eq!(Some(Credits::from_wqes(wqes).code()), promised, "{wqes} WQEs");
        }
    }

    #[test]
    fn rnr_timers() {
        assert_eq!(RnrTimer::new(0).duration(), Duration::from_micros(655_360));
        assert_eq!(RnrTimer::new(1).duration(), Duration::from_micros(10));
        assert_eq!(RnrTimer::new(14).duration(), Duration::from_micros(1280));
        assert_eq!(RnrTimer::new(31).duration(), Duration::from_micros(491_520));
    }
}
