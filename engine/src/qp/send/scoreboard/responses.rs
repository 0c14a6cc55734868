//! Responses that have come. A request that was sent before one of them, and has a lower PSN, is overtaken.

use alloc::vec::Vec;

use urxe_wire::Psn;

use super::is_before;

/// Responses that no other one outdoes by both its PSN and its number: from the highest PSN to the lowest, and so from the lowest number
/// to the highest. Mostly there is one, that of the highest PSN: only what was sent again has a higher number than what is behind it.
#[derive(Debug, Default)]
pub(super) struct Responses(Vec<(Psn, u32)>);

impl Responses {
    /// Notes the response to the packet of this PSN and number.
    pub(super) fn came(&mut self, psn: Psn, number: u32) {
        // Those in front, and at the same PSN, have lower numbers than the last of them.
        let not_before = self.0.partition_point(|(known, _)| known.distance_from(psn) >= 0);
        let last = not_before.checked_sub(1).and_then(|at| self.0.get(at));
        if last.is_some_and(|(_, with)| !is_before(*with, number)) {
            return;
        }
        let at = self.count_behind(psn);
        let outdone_end =
            self.0.partition_point(|(known, with)| known.distance_from(psn) > 0 || !is_before(number, *with));
        self.0.splice(at..outdone_end, [(psn, number)]);
    }

    /// Responses behind `psn`: the first ones.
    fn count_behind(&self, psn: Psn) -> usize {
        self.0.partition_point(|(known, _)| known.distance_from(psn) > 0)
    }

    /// The highest number of a response behind `psn`.
    pub(super) fn behind(&self, psn: Psn) -> Option<u32> {
        self.count_behind(psn).checked_sub(1).and_then(|at| self.0.get(at)).map(|(_, number)| *number)
    }

    /// The PSN of the last one.
    pub(super) fn last(&self) -> Option<Psn> {
        self.0.first().map(|(psn, _)| *psn)
    }

    /// Forgets those before `snd_una`.
    pub(super) fn forget_before(&mut self, snd_una: Psn) {
        while self.0.pop_if(|(psn, _)| psn.distance_from(snd_una) < 0).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn the_highest_number_behind_a_psn() {
        for base in [0, 0xFF_FFF0] {
            let psn = |nth| Psn::new(base).add(nth);
            let mut responses = Responses::default();
            assert_eq!((responses.behind(psn(0)), responses.last()), (None, None));
            for (nth, number) in [(3, 3), (9, 9), (7, 7)] {
                responses.came(psn(nth), number);
            }
            assert_eq!([8, 9].map(|nth| responses.behind(psn(nth))), [Some(9), None]);
            // Sent again.
            for (nth, number) in [(2, 20), (4, 22), (5, 21)] {
                responses.came(psn(nth), number);
            }
            let highest = [Some(22), Some(22), Some(21), Some(9), Some(9), None];
            assert_eq!([1, 3, 4, 5, 8, 9].map(|nth| responses.behind(psn(nth))), highest);
            assert_eq!(responses.last(), Some(psn(9)));
            responses.forget_before(psn(5));
            assert_eq!([1, 4, 5].map(|nth| responses.behind(psn(nth))), [Some(21), Some(21), Some(9)]);
            responses.forget_before(psn(10));
            assert_eq!(responses.last(), None);
        }
    }

    /// Responses in any order leave what a look at all of them finds, also where PSNs and numbers wrap.
    #[test]
    fn responses_in_any_order() {
        const PSNS: u32 = 20;
        let mut rng = Rng::new(7);
        let mut below = |bound: u32| u32::try_from(rng.below(bound.into())).unwrap();
        for base in [0, 0xFF_FFF0] {
            let psn = |nth| Psn::new(base).add(nth);
            for _ in 0..200 {
                let start = below(40).wrapping_neg();
                let (mut responses, mut all) = (Responses::default(), Vec::new());
                for _ in 0..40 {
                    let (nth, number) = (below(PSNS), below(40));
                    responses.came(psn(nth), start.wrapping_add(number));
                    all.push((nth, number));
                    for asked in 0..PSNS {
                        let highest = all.iter().filter(|(nth, _)| *nth > asked).map(|(_, number)| *number).max();
                        let expected = highest.map(|number| start.wrapping_add(number));
                        assert_eq!(responses.behind(psn(asked)), expected, "behind {asked}: {all:?}");
                    }
                    assert_eq!(responses.last(), all.iter().map(|(nth, _)| *nth).max().map(psn), "{all:?}");
                }
                assert!(responses.0.len() <= PSNS as usize, "{responses:?}");
            }
        }
    }
}
