//! Interfaces that one device is on: `eth0+eth1`.
//!
//! The first gives the device its name, MAC address and index; GIDs are those of all, and the port is active while one is running.
//! Connections stay on the addresses that they were made with: going over to those of another interface is for automatic path
//! migration.

use std::net::IpAddr;

use crate::error::PortError;
use crate::sys::ifaddrs::{Entries, read_entries, read_mtu};

/// Separator of the names of interfaces that a device joins.
const SEPARATOR: char = '+';

const RUNNING: u32 = (libc::IFF_UP | libc::IFF_RUNNING).cast_unsigned();

/// Interface of a device on several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    name: String,
    is_running: bool,
    addresses: Vec<IpAddr>,
}

/// Properties of the interfaces of a device together.
pub(crate) struct Joined {
    /// Index, flags and MAC address of the first, the flags that say that one is up; addresses and prefixes of all.
    pub(crate) entries: Entries,
    /// The smallest MTU.
    pub(crate) mtu: u32,
    pub(crate) members: Vec<Member>,
}

/// Names of the interfaces of a device, the first first.
pub(crate) fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split(SEPARATOR)
}

/// Joins the names of interfaces, as [`names`] takes them apart.
pub(crate) fn list(members: &[Member]) -> String {
    let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
    names.join(&SEPARATOR.to_string())
}

/// Reads interfaces. One that has been removed, of a device that is open, is one that is down; not so the first.
///
/// # Errors
/// [`PortError::NoSuchInterface`]; the others when the system will not even tell.
pub(crate) fn read(list: &str, is_open: bool) -> Result<Joined, PortError> {
    let mut joined: Option<Joined> = None;
    for name in names(list) {
        let found = read_entries(name).map_err(|e| PortError::os("list the network interfaces", e))?;
        let Some((_, flags)) = found.link else {
            match &mut joined {
                Some(joined) if is_open => {
                    let member = Member { name: name.to_owned(), is_running: false, addresses: Vec::new() };
                    joined.members.push(member);
                    continue;
                }
                Some(_) | None => return Err(PortError::NoSuchInterface { name: name.to_owned() }),
            }
        };
        let mtu = read_mtu(name).map_err(|e| PortError::os("read the interface's MTU", e))?;
        let addresses = found.addresses.iter().map(|address| address.ip()).collect();
        let member = Member { name: name.to_owned(), is_running: flags & RUNNING == RUNNING, addresses };
        match &mut joined {
            None => joined = Some(Joined { entries: found, mtu, members: vec![member] }),
            Some(joined) => joined.add(found, mtu, member),
        }
    }
    joined.ok_or_else(|| PortError::NoSuchInterface { name: list.to_owned() })
}

impl Joined {
    fn add(&mut self, found: Entries, mtu: u32, member: Member) {
        self.mtu = self.mtu.min(mtu);
        self.members.push(member);
        self.entries.addresses.extend(found.addresses);
        self.entries.prefixes.extend(found.prefixes);
        if let (Some((_, flags)), Some((_, other))) = (&mut self.entries.link, found.link) {
            let is_up = (*flags | other) & libc::IFF_UP.cast_unsigned();
            let is_running = self.members.iter().any(|member| member.is_running);
            *flags = *flags & !RUNNING | is_up | if is_running { RUNNING } else { 0 };
        }
    }
}

impl Member {
    /// Addresses that packets can come from.
    pub(crate) fn usable(&self) -> &[IpAddr] {
        if self.is_running { &self.addresses } else { &[] }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn entries(index: u32, flags: u32, address: &str) -> Entries {
        let addresses = vec![address.parse::<SocketAddr>().unwrap()];
        Entries { link: Some((index, flags)), addresses, ..Entries::default() }
    }

    fn member(name: &str, is_running: bool, address: &str) -> Member {
        Member { name: name.to_owned(), is_running, addresses: vec![address.parse().unwrap()] }
    }

    #[test]
    fn together_they_are_up_while_one_is() {
        let up = libc::IFF_UP.cast_unsigned();
        for (first, second, is_running) in
            [(RUNNING, RUNNING, true), (0, RUNNING, true), (RUNNING, 0, true), (up, up, false), (0, up, false)]
        {
            let runs = |flags| flags & RUNNING == RUNNING;
            let members = vec![member("a", runs(first), "10.0.0.1")];
            let mut joined = Joined { entries: entries(3, first, "10.0.0.1:4791"), mtu: 9000, members };
            joined.add(entries(4, second, "10.1.0.1:4791"), 1500, member("b", runs(second), "10.1.0.1"));
            let (index, flags) = joined.entries.link.unwrap();
            assert_eq!((index, runs(flags), joined.mtu), (3, is_running, 1500), "{first:#x} {second:#x}");
            assert_eq!(joined.entries.addresses.len(), 2);
            assert_eq!(list(&joined.members), "a+b");
            let usable: Vec<_> = joined.members.iter().map(|member| member.usable().len()).collect();
            assert_eq!(usable, [usize::from(runs(first)), usize::from(runs(second))]);
        }
    }

    #[test]
    fn an_interface_that_is_not_there() {
        let missing = |list: &str, is_open| match read(list, is_open) {
            Err(PortError::NoSuchInterface { name }) => Some(name),
            _ => None,
        };
        assert_eq!(missing("lo+nonesuch0", false).as_deref(), Some("nonesuch0"));
        assert_eq!(missing("nonesuch0+lo", true).as_deref(), Some("nonesuch0"));
        let joined = read("lo+nonesuch0", true).unwrap();
        assert_eq!(joined.members.len(), 2);
        assert!(joined.members[1].usable().is_empty());
    }
}
