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
    index: u32,
    /// Administrative state, `IFF_UP`.
    is_up: bool,
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

/// Names of the interfaces of a device, the first first. The separator may be in the name of one interface: where there is one
/// called so, the text is that name.
pub(crate) fn names(list: &str) -> Vec<&str> {
    let is_one = || read_entries(list).is_ok_and(|found| found.link.is_some());
    if list.contains(SEPARATOR) && is_one() { vec![list] } else { list.split(SEPARATOR).collect() }
}

/// Checks that a device can be on these interfaces together. `lo` cannot be one of several: its addresses reach no other host.
///
/// # Errors
/// [`PortError::NotJoinable`].
pub(crate) fn check(names: &[&str]) -> Result<(), PortError> {
    let is_odd = |(at, name): &(usize, &&str)| **name == "lo" || names[..*at].contains(*name);
    match names.iter().enumerate().find(is_odd) {
        Some((_, name)) if names.len() > 1 => Err(PortError::NotJoinable { name: (*name).to_owned() }),
        _ => Ok(()),
    }
}

/// Reads interfaces. One that has been removed, of a device that is open, is one that is down; not so the first.
///
/// # Errors
/// [`PortError::NoSuchInterface`]; the others when the system will not even tell.
pub(crate) fn read(names: &[&str], is_open: bool) -> Result<Joined, PortError> {
    let mut joined: Option<Joined> = None;
    for &name in names {
        let found = read_entries(name).map_err(|e| PortError::os("list the network interfaces", e))?;
        let mtu = match read_mtu(name) {
            // Removed since it was listed.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => None,
            mtu => Some(mtu.map_err(|e| PortError::os("read the interface's MTU", e))?),
        };
        let (Some(link), Some(mtu)) = (found.link, mtu) else {
            match &mut joined {
                Some(joined) if is_open => {
                    joined.members.push(Member::new(name, (0, 0), Vec::new()));
                    continue;
                }
                Some(_) | None => return Err(PortError::NoSuchInterface { name: name.to_owned() }),
            }
        };
        let addresses = found.addresses.iter().map(|address| address.ip()).collect();
        let member = Member::new(name, link, addresses);
        match &mut joined {
            None => joined = Some(Joined { entries: found, mtu, members: vec![member] }),
            Some(joined) => joined.add(found, mtu, member),
        }
    }
    joined.ok_or_else(|| PortError::NoSuchInterface { name: names.join("+") })
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
    fn new(name: &str, (index, flags): (u32, u32), addresses: Vec<IpAddr>) -> Self {
        let is_up = flags & libc::IFF_UP.cast_unsigned() != 0;
        Self { name: name.to_owned(), index, is_up, is_running: flags & RUNNING == RUNNING, addresses }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Whether the interface is administratively up.
    pub(crate) fn is_up(&self) -> bool {
        self.is_up
    }

    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

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

    fn member(name: &str, flags: u32, address: &str) -> Member {
        Member::new(name, (1, flags), vec![address.parse().unwrap()])
    }

    #[test]
    fn together_they_are_up_while_one_is() {
        let up = libc::IFF_UP.cast_unsigned();
        for (first, second, is_running) in
            [(RUNNING, RUNNING, true), (0, RUNNING, true), (RUNNING, 0, true), (up, up, false), (0, up, false)]
        {
            let runs = |flags| flags & RUNNING == RUNNING;
            let members = vec![member("a", first, "10.0.0.1")];
            let mut joined = Joined { entries: entries(3, first, "10.0.0.1:4791"), mtu: 9000, members };
            joined.add(entries(4, second, "10.1.0.1:4791"), 1500, member("b", second, "10.1.0.1"));
            let (index, flags) = joined.entries.link.unwrap();
            assert_eq!((index, runs(flags), joined.mtu), (3, is_running, 1500), "{first:#x} {second:#x}");
            assert_eq!(joined.entries.addresses.len(), 2);
            assert_eq!(joined.members.iter().map(Member::name).collect::<Vec<_>>(), ["a", "b"]);
            let is_up: Vec<_> = joined.members.iter().map(Member::is_up).collect();
            assert_eq!(is_up, [first & up != 0, second & up != 0]);
            let usable: Vec<_> = joined.members.iter().map(|member| member.usable().len()).collect();
            assert_eq!(usable, [usize::from(runs(first)), usize::from(runs(second))]);
        }
    }

    #[test]
    fn interfaces_that_cannot_be_joined() {
        let refused = |list: &str| match check(&names(list)) {
            Err(PortError::NotJoinable { name }) => Some(name),
            _ => None,
        };
        assert_eq!(refused("eth0+eth1+eth0").as_deref(), Some("eth0"));
        assert_eq!(refused("eth0+lo").as_deref(), Some("lo"));
        assert_eq!(refused("lo+eth0").as_deref(), Some("lo"));
        assert_eq!((refused("lo"), refused("eth0+eth1")), (None, None));
    }

    #[test]
    fn an_interface_that_is_not_there() {
        let missing = |list: &str, is_open| match read(&names(list), is_open) {
            Err(PortError::NoSuchInterface { name }) => Some(name),
            _ => None,
        };
        assert_eq!(missing("lo+nonesuch0", false).as_deref(), Some("nonesuch0"));
        assert_eq!(missing("nonesuch0+lo", true).as_deref(), Some("nonesuch0"));
        let joined = read(&["lo", "nonesuch0"], true).unwrap();
        assert_eq!(joined.members.len(), 2);
        assert!(joined.members[1].usable().is_empty());
    }
}
