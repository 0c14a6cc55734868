//! Which devices there are.

use std::env;

/// The start of the names of our devices.
pub(crate) const NAME: &str = "urxe";

/// The interfaces that devices sit on: `URXE_NETDEV`, by default the loopback interface, so that nothing leaves the
/// machine unless asked.
pub(crate) fn netdevs() -> Vec<String> {
    parse(&env::var("URXE_NETDEV").unwrap_or_default())
}

fn parse(list: &str) -> Vec<String> {
    let names: Vec<_> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if names.is_empty() { vec!["lo".to_owned()] } else { names }
}

/// The interface of the device `name` (`urxe0` sits on the first), if there is such a device.
pub(crate) fn netdev_of(name: &str) -> Option<String> {
    let index: usize = name.strip_prefix(NAME)?.parse().ok()?;
    netdevs().into_iter().nth(index)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn lists_of_interfaces() {
        assert_eq!(parse(""), ["lo"]);
        assert_eq!(parse(" , "), ["lo"]);
        assert_eq!(parse("eth0"), ["eth0"]);
        assert_eq!(parse("lo, eth0,"), ["lo", "eth0"]);
    }
}
