//! Which devices there are.

use std::env;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

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

/// GUIDs of the devices, by name, as libibverbs reads them from sysfs.
static GUIDS: Mutex<Vec<(String, u64)>> = Mutex::new(Vec::new());

/// Remembers what libibverbs takes for the GUID of a device whose files are in `dir`: by it librdmacm finds the device.
pub(crate) fn remember_guid(name: &str, dir: &Path) {
    let Ok(text) = std::fs::read_to_string(dir.join("node_guid")) else { return };
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    if let Ok(guid) = u64::from_str_radix(&digits, 16) {
        let mut guids = GUIDS.lock().unwrap_or_else(PoisonError::into_inner);
        guids.retain(|(known, _)| known != name);
        guids.push((name.to_owned(), guid.to_be()));
    }
}

/// The GUID, in network byte order.
pub(crate) fn guid(name: &str) -> Option<u64> {
    let guids = GUIDS.lock().unwrap_or_else(PoisonError::into_inner);
    guids.iter().find(|(known, _)| known == name).map(|(_, guid)| *guid)
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
