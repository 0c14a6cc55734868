//! The network interfaces that the devices sit on, as they are at installation time.

use anyhow::{Result, ensure};
use urxe_net::Interface;

use crate::layout::SLOTS;

/// Interface of `urxe0` when `URXE_NETDEV` is not set: nothing leaves the machine unless asked.
const DEFAULT_NETDEV: &str = "lo";

/// The interfaces that a value of `URXE_NETDEV` lists, in order: the first is `urxe0`'s.
pub(crate) fn interfaces(netdev: Option<&str>) -> Result<Vec<Interface>> {
    let names = names(netdev.unwrap_or(DEFAULT_NETDEV))?;
    Ok(names.into_iter().map(Interface::by_name).collect::<Result<_, _>>()?)
}

fn names(list: &str) -> Result<Vec<&str>> {
    let names: Vec<&str> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    ensure!(!names.is_empty(), "URXE_NETDEV names no interface; unset it or set it to a list such as `lo,eth0`");
    ensure!(names.len() <= SLOTS, "URXE_NETDEV={list}: {} interfaces, urxe has {SLOTS} devices", names.len());
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_split_at_commas() {
        assert_eq!(names("lo").unwrap(), ["lo"]);
        assert_eq!(names("lo, eth0,").unwrap(), ["lo", "eth0"]);
    }

    #[test]
    fn empty_and_long_lists_are_refused() {
        assert!(names("").is_err());
        assert!(names(" , ").is_err());
        assert!(names("a,b,c,d,e").is_err());
    }
}
