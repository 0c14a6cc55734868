//! IPv4 groups that the kernel has joined on the interface.

use std::net::Ipv4Addr;

/// Reads `/proc/net/igmp`: the groups of the interface `name`.
pub(super) fn joined(name: &str) -> Vec<Ipv4Addr> {
    parse(&std::fs::read_to_string("/proc/net/igmp").unwrap_or_default(), name)
}

/// A line for each interface begins with its index, those of its groups with the group, as a word of the machine's.
fn parse(text: &str, name: &str) -> Vec<Ipv4Addr> {
    let mut is_ours = false;
    let mut groups = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if line.starts_with(|first: char| first.is_ascii_digit()) {
            is_ours = words.nth(1) == Some(name);
        } else if is_ours && let Some(Ok(group)) = words.next().map(|word| u32::from_str_radix(word, 16)) {
            groups.push(Ipv4Addr::from(group.to_ne_bytes()));
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn groups_of_one_interface() {
        let text = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
                    1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n\
                    5\tib0       :     2      V3\n\t\t\t\t070707EF     1 0:00000000\t\t0\n\t\t\t\t010000E0     1 0:00000000\t\t0\n";
        assert_eq!(parse(text, "ib0"), [Ipv4Addr::new(239, 7, 7, 7), Ipv4Addr::new(224, 0, 0, 1)]);
        assert_eq!(parse(text, "ib"), [] as [Ipv4Addr; 0]);
    }
}
