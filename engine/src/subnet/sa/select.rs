//! Properties of groups that requests compare: MTU, rate and life time, each with a selector (IBA 15.2.5.17.2).

use urxe_wire::mad::field::Field;
use urxe_wire::mad::sa::member;

use super::records::rate_of_code;

/// The lowest code of a rate.
const FIRST_RATE: u64 = 2;

/// A property that a request compares: bits of a mask for selector and value, and both fields.
pub(super) type Selected = (u64, (Field, Field));
pub(super) const MTU: Selected = (0b11 << 4, member::MTU);
pub(super) const RATE: Selected = (0b11 << 8, member::RATE);
pub(super) const LIFE_TIME: Selected = (0b11 << 10, member::LIFE_TIME);

/// Whether a value is greater than, less than, or exactly another, as a selector says; the largest there is goes with all. An unknown
/// value is none of these.
fn is_selected(selector: u64, value: Option<u32>, wanted: Option<u32>) -> bool {
    let compares = |how: fn(&u32, &u32) -> bool| value.zip(wanted).is_some_and(|(value, wanted)| how(&value, &wanted));
    match selector {
        0 => compares(PartialOrd::gt),
        1 => compares(PartialOrd::lt),
        2 => compares(PartialEq::eq),
        _ => true,
    }
}

/// An MTU, or a life time, by its code.
pub(super) fn as_code(code: u64) -> Option<u32> {
    u32::try_from(code).ok()
}

/// A rate by its code; those below the first are as good as none: each is greater.
pub(super) fn rate_or_none(code: u64) -> Option<u32> {
    if code < FIRST_RATE { Some(0) } else { rate_of_code(code) }
}

/// Whether a group has the MTU, rate and life time that a request compares (IBA 15.2.5.17.2).
pub(super) fn selects(mask: u64, wanted: &[u8], group: &[u8]) -> bool {
    let is_one = |(bits, (selector, field)): &Selected, of: fn(u64) -> Option<u32>| {
        let (selector, value, wanted) = (selector.get(wanted), field.get(group), field.get(wanted));
        mask & bits != *bits || is_selected(selector, of(value), of(wanted))
    };
    is_one(&MTU, as_code) && is_one(&RATE, rate_or_none) && is_one(&LIFE_TIME, as_code)
}

/// The property of a group that is made: the largest candidate that the request allows. A request without selector means exactly its
/// value.
pub(super) fn choose(
    mask: u64,
    wanted: &[u8],
    (bits, (selector, field)): &Selected,
    default: u64,
    candidates: impl Iterator<Item = u64>,
    of: fn(u64) -> Option<u32>,
) -> Option<u64> {
    let value_bit = bits & (bits << 1);
    match mask & bits {
        both if both == *bits => {
            let (selector, wanted) = (selector.get(wanted), field.get(wanted));
            candidates.filter(|code| is_selected(selector, of(*code), of(wanted))).max_by_key(|code| of(*code))
        }
        value if value == value_bit => Some(field.get(wanted)),
        _ => Some(default),
    }
}
