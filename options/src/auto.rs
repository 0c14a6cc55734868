//! The interface that `--netdev auto` stands for.

use std::fs;

/// The value that asks for it.
pub(crate) const AUTO: &str = "auto";

/// Returns the interface of the IPv4 default route of this network namespace; without one, of another IPv4 route; without any, the
/// first that has an IPv6 address; never `lo`, unless there is nothing else.
pub(crate) fn interface() -> String {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    choose(&read("/proc/net/route"), &read("/proc/net/if_inet6")).to_owned()
}

/// Chooses by the tables of proc(5): IPv4 routes, and IPv6 addresses.
fn choose<'a>(routes: &'a str, addresses: &'a str) -> &'a str {
    const ANYWHERE: &str = "00000000";
    // Iface Destination Gateway Flags RefCnt Use Metric Mask …
    let rows = routes.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    // An unreachable route has the interface `*`.
    let mut routes = rows.filter(|row| row.len() > 7 && !["lo", "*"].contains(&row[0])).map(|row| {
        let leads_anywhere = row[1] == ANYWHERE && row[7] == ANYWHERE;
        (!leads_anywhere, row[6].parse::<u32>().unwrap_or(u32::MAX), row[0])
    });
    let first = routes.next();
    let best = first.map(|first| {
        routes.fold(first, |best, other| if (other.0, other.1) < (best.0, best.1) { other } else { best })
    });
    if let Some((_, _, name)) = best {
        return name;
    }
    // Address, index, prefix length, scope (0 is global), flags, name.
    let rows = addresses.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let others = rows.filter(|row| row.len() > 5 && row[5] != "lo");
    others.min_by_key(|row| row[3] != "00").map_or("lo", |row| row[5])
}

#[cfg(test)]
mod tests {
    use super::choose;

    const HEADER: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";

    #[test]
    fn the_default_route_then_any_then_lo() {
        let net = "net1\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        let far = "wlan0\t00000000\t0100000A\t0003\t0\t0\t600\t00000000\t0\t0\t0\n";
        let near = "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n";
        assert_eq!(choose(&[HEADER, net, far, near].concat(), ""), "eth0");
        assert_eq!(choose(&[HEADER, net].concat(), ""), "net1");
        let unreachable = "*\t00000000\t00000000\t0200\t0\t0\t0\t00000000\t0\t0\t0\n";
        assert_eq!(choose(&[HEADER, unreachable, far].concat(), ""), "wlan0");
        assert_eq!(choose(&[HEADER, unreachable].concat(), ""), "lo");
        let inet6 = "00000000000000000000000000000001 01 80 10 80       lo\n\
                     fe80000000000000505400fffe770002 02 40 20 80     eth0\n\
                     fd000000000000000000000000000002 03 40 00 80     eth1\n";
        assert_eq!(choose(HEADER, inet6), "eth1");
        assert_eq!(choose("", ""), "lo");
    }
}
