//! How long a requester waits for an answer, and how often.

use core::time::Duration;

use crate::qp::attr::QpAttr;

/// Course of ACK timeouts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AckTimer {
    /// 4.096 µs · 2^timeout (2 ms at least) until the first try. Those that follow without an answer have up to four times as
    /// long, which IBA 9.7.6.1.3 allows, but more than twice as long only below `BACKOFF`: a peer that has no processor
    /// for a while, or loses its port's owner, is not given up, and a lost packet is sent again as soon as ever.
    #[default]
    Specified,
    /// The course of ConnectX-6 with the settings that it is shipped with (firmware 20.43, measured by the project
    /// rdma-fault-characterization): the oldest packet is sent again after times of the firmware's own, all of which are one
    /// try; then `retry_cnt` - 1 timeouts follow, each of 2 · 4.096 µs · 2^max(timeout, 16), and the last ends the request.
    ConnectX,
}

/// Limit of the backoff to four times the ACK timeout: a ConnectX-6 waits twice as long at least.
const BACKOFF: Duration = Duration::from_nanos(4096 << 16);

/// Times between the adaptive retransmissions of a ConnectX, in microseconds.
const STEPS: [u64; 10] = [20_700, 17_000, 33_700, 67_000, 100_700, 201_300, 536_900, 805_300, 2_147_800, 4_294_800];

/// The least exponent that a ConnectX heeds.
const FLOOR: u8 = 16;

/// Timeouts that a ConnectX lets pass with a `retry_cnt` of 0: those of 4, as measured.
const WITHOUT_RETRIES: u8 = 4;

impl AckTimer {
    /// The time until the ACK timeout; `timeouts` have passed since the last answer. `None` is for ever.
    #[inline]
    pub(in crate::qp) fn timeout(self, attr: &QpAttr, timeouts: u8) -> Option<Duration> {
        let specified = attr.ack_timeout()?;
        //= spec/requester.md#req-024
        //# Timeouts that follow without an answer MUST be no shorter than the first, and no longer than four times that.
        if self == Self::Specified {
            // First of all the usual case, which each ACK asks for.
            return Some(if timeouts == 0 { specified } else { (2 * specified).max(BACKOFF.min(4 * specified)) });
        }
        Some(of_card(attr.timeout, timeouts))
    }

    /// The shortest of several timeouts in a row. `None` is for ever.
    #[inline]
    pub(in crate::qp) fn shortest(self, attr: &QpAttr) -> Option<Duration> {
        let specified = attr.ack_timeout()?;
        match self {
            Self::Specified => Some(specified),
            Self::ConnectX => Some(of_card(attr.timeout, 0).min(of_card(attr.timeout, u8::MAX))),
        }
    }

    /// The time until the oldest packet is sent again, which counts as no try; `sent_again` times it was since the last answer.
    /// `None` has it wait for the ACK timeout.
    pub(super) fn adaptive_step(self, attr: &QpAttr, sent_again: u32) -> Option<Duration> {
        let steps = match self {
            Self::Specified => 0,
            // The last one is the ACK timeout.
            Self::ConnectX => adaptive(attr.timeout).saturating_sub(1),
        };
        let nth = usize::try_from(sent_again).ok().filter(|nth| *nth < steps)?;
        STEPS.get(nth).copied().map(Duration::from_micros)
    }

    /// Whether the request fails with the timeout that is `timeouts` in a row, however many tries are left.
    pub(super) fn gives_up(self, attr: &QpAttr, timeouts: u8) -> bool {
        let most = if attr.retry_cnt == 0 { WITHOUT_RETRIES } else { attr.retry_cnt };
        self == Self::ConnectX && timeouts >= most
    }

    /// Whether a timeout goes by where `retry_cnt` is 0.
    pub(super) fn ignores_no_retries(self, attr: &QpAttr) -> bool {
        self == Self::ConnectX && attr.retry_cnt == 0
    }
}

/// ACK timeout of a ConnectX when `timeouts` have passed since the last answer.
// Apart: others have the times of the specification, and look at them with each packet.
#[cold]
#[inline(never)]
fn of_card(timeout: u8, timeouts: u8) -> Duration {
    let steps = adaptive(timeout);
    let regular = 2 * nominal(timeout);
    match timeouts {
        0 => STEPS.iter().take(steps).copied().map(Duration::from_micros).sum(),
        1 => STEPS.get(steps).map_or(regular, |step| regular.min(Duration::from_micros(*step))),
        _ => regular,
    }
}

/// 4.096 µs · 2^timeout, with the floor.
fn nominal(timeout: u8) -> Duration {
    Duration::from_nanos(4096 << timeout.clamp(FLOOR, 31))
}

/// Adaptive retransmissions: as long as their steps are no longer than the ACK timeout, within 0.3 ms.
fn adaptive(timeout: u8) -> usize {
    let longest = nominal(timeout) + Duration::from_micros(350);
    STEPS.iter().take_while(|step| Duration::from_micros(**step) <= longest).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds from the first packet to IBV_WC_RETRY_EXC_ERR.
    fn until_error(timeout: u8, retry_cnt: u8) -> u128 {
        let attr = QpAttr { timeout, retry_cnt, ..QpAttr::default() };
        let mut waited = Duration::ZERO;
        for timeouts in 0.. {
            waited += AckTimer::ConnectX.timeout(&attr, timeouts).unwrap();
            if AckTimer::ConnectX.gives_up(&attr, timeouts + 1) {
                break;
            }
        }
        waited.as_millis()
    }

    /// Medians of the cards, from `results/20260925/tables_AB.md` of rdma-fault-characterization.
    #[test]
    fn errors_come_when_a_cards_do() {
        for (timeout, retry_cnt, measured) in [
            (14, 7, 3661.8),
            (16, 7, 3661.8),
            (17, 7, 7151.7),
            (18, 7, 14667.8),
            (19, 7, 29700.8),
            (20, 7, 59766.3),
            (14, 0, 2050.7),
            (14, 1, 440.6),
            (14, 2, 977.6),
            (14, 3, 1514.3),
            (14, 4, 2051.4),
            (14, 5, 2588.2),
            (14, 6, 3124.8),
            // T below the floor changes nothing.
            (1, 7, 3661.8),
            (10, 7, 3661.8),
        ] {
            let found = until_error(timeout, retry_cnt) as f64;
            assert!((found - measured).abs() < 3.0, "T={timeout} R={retry_cnt}: {found} ms, measured {measured}");
        }
    }

    //= spec/requester.md#req-024
    //= type=test
    //# Timeouts that follow without an answer MUST be no shorter than the first, and no longer than four times that.
    #[test]
    fn timeouts_in_a_row_are_longer_than_the_first() {
        for (timeout, first, later) in [
            (1, 2000, 8000),
            (10, 4194, 16_777),
            (14, 67_108, 268_435),
            (15, 134_217, 268_435),
            (16, 268_435, 536_870),
            (18, 1_073_741, 2_147_483),
        ] {
            let attr = QpAttr { timeout, ..QpAttr::default() };
            let micros = |timeouts| AckTimer::Specified.timeout(&attr, timeouts).unwrap().as_micros();
            assert_eq!([0, 1, 7].map(micros), [first, later, later], "timeout {timeout}");
        }
    }

    #[test]
    fn the_oldest_packet_is_sent_again_at_the_firmwares_times() {
        let times = |timeout| {
            let attr = QpAttr { timeout, ..QpAttr::default() };
            let steps = (0..).map_while(|nth| AckTimer::ConnectX.adaptive_step(&attr, nth));
            steps
                .scan(Duration::ZERO, |at, step| {
                    *at += step;
                    Some(at.as_millis())
                })
                .collect::<std::vec::Vec<_>>()
        };
        assert_eq!(times(14), [20, 37, 71, 138, 239]);
        assert_eq!(times(20), [20, 37, 71, 138, 239, 440, 977, 1782, 3930]);
        let attr = QpAttr { timeout: 14, ..QpAttr::default() };
        assert_eq!(AckTimer::Specified.adaptive_step(&attr, 0), None);
    }

    #[test]
    fn no_timeout_is_none() {
        for timer in [AckTimer::Specified, AckTimer::ConnectX] {
            assert_eq!(timer.timeout(&QpAttr { timeout: 0, ..QpAttr::default() }, 0), None);
        }
    }
}
