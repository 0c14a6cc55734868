//! Values of items: chances, times, numbers and names.

use crate::chance::Chance;
use crate::rule::WhichQp;

/// `1%`, `0.05%`, `1/1000`, `0.001`, or nothing for always.
pub(super) fn chance(value: Option<&str>) -> Option<Chance> {
    let Some(value) = value else { return Some(Chance::ALWAYS) };
    let millionths = if let Some(percent) = value.strip_suffix('%') {
        let (whole, fraction) = percent.split_once('.').unwrap_or((percent, ""));
        if fraction.len() > 4 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let fraction: u32 = format!("{fraction:0<4}").parse().ok()?;
        whole.parse::<u32>().ok()?.checked_mul(10_000)?.checked_add(fraction)?
    } else if let Some((whole, fraction)) = value.split_once('.') {
        // A probability. `1` alone could be 1% as well.
        if fraction.is_empty() || fraction.len() > 6 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let fraction: u32 = format!("{fraction:0<6}").parse().ok()?;
        whole.parse::<u32>().ok()?.checked_mul(1_000_000)?.checked_add(fraction)?
    } else {
        let (part, of) = value.split_once('/')?;
        let (part, of): (u64, u64) = (part.parse().ok()?, of.parse().ok()?);
        u32::try_from(part.checked_mul(1_000_000)?.checked_div(of)?).ok()?
    };
    (millionths <= 1_000_000).then_some(Chance(millionths))
}

/// `50us`, `2ms`, `1s`, `7ns`.
pub(super) fn nanos(value: &str) -> Option<u64> {
    let at = value.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = value.split_at(at);
    let unit = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn integer(value: &str) -> Option<u32> {
    match value.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => value.parse().ok(),
    }
}

pub(super) fn which_qp(value: &str) -> Option<WhichQp> {
    match value.strip_prefix('@') {
        Some(nth) => nth.parse().ok().filter(|nth| *nth > 0).map(WhichQp::Made),
        None => integer(value).map(WhichQp::Number),
    }
}

pub(super) fn number(value: &str, table: &urxe_explain::Table) -> Option<u32> {
    let entry = table.by_name(value).or_else(|| table.by_number(integer(value)?))?;
    Some(entry.number)
}

pub(super) fn errno_number(value: &str) -> Option<u32> {
    integer(value).filter(|errno| (1..4096).contains(errno)).or_else(|| number(value, &urxe_explain::errno::TABLE))
}
