//! Groups that the kernel has joined on the interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Reads `/proc/net/igmp` and `/proc/net/igmp6`: the groups of the interface `name`.
pub(super) fn joined(name: &str) -> Vec<IpAddr> {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let (of_ipv4, of_ipv6) = (parse(&read("/proc/net/igmp"), name), parse_ipv6(&read("/proc/net/igmp6"), name));
    of_ipv4.into_iter().map(IpAddr::from).chain(of_ipv6.into_iter().map(IpAddr::from)).collect()
}

/// A line for each group: the interface's index and name, the group, its users and more. Groups of the node go nowhere.
fn parse_ipv6(text: &str, name: &str) -> Vec<Ipv6Addr> {
    let group = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let of = words.next()?;
        let group = Ipv6Addr::from_bits(u128::from_str_radix(words.next()?, 16).ok()?);
        let is_of_node = group.octets()[1] & 0xF <= 1;
        (of == name && group.is_multicast() && !is_of_node).then_some(group)
    };
    text.lines().filter_map(group).collect()
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

    #[test]
    fn groups_of_ipv6() {
        let text = "1    lo              ff020000000000000000000000000001     1 0000000C 0\n\
                    5    ib0             ff0200000000000000000001ff000001     1 00000004 0\n\
                    5    ib0             ff010000000000000000000000000001     1 00000008 0\n";
        assert_eq!(parse_ipv6(text, "ib0"), ["ff02::1:ff00:1".parse::<Ipv6Addr>().unwrap()]);
    }
}
