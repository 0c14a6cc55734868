//! LIDs that a subnet manager has given, in place of those by the scheme.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use urxe_wire::mad::topology::leaf_lid;
use urxe_wire::{Lid, LidScheme};

use crate::Interface;

/// Addresses of the port in its subnet, as PortInfo has them (IBA 14.2.5.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortLids {
    /// The base LID.
    pub lid: Lid,
    /// LID mask control: 2^LMC LIDs from the base LID on are the port's.
    pub lmc: u8,
    /// The subnet manager's LID.
    pub sm_lid: Lid,
    /// Service level to reach it.
    pub sm_sl: u8,
}

impl PortLids {
    /// Whether `lid` is one of the port's.
    #[must_use]
    pub fn contains(&self, lid: Lid) -> bool {
        self.lid != Lid::NONE && lid.0 >> self.lmc.min(7) == self.lid.0 >> self.lmc.min(7)
    }
}

/// LIDs that are not by the scheme: those of the own port, and of peers. Shared by all threads; empty until somebody
/// tells.
#[derive(Debug, Default)]
pub struct LidTable {
    assigned: RwLock<Assigned>,
    /// Set once a LID was told.
    is_used: AtomicBool,
}

#[derive(Debug, Default)]
struct Assigned {
    port: Option<PortLids>,
    by_lid: HashMap<Lid, Ipv4Addr>,
    by_address: HashMap<Ipv4Addr, Lid>,
}

impl Assigned {
    fn forget(&mut self, lid: Lid) {
        if let Some(address) = self.by_lid.remove(&lid) {
            self.by_address.remove(&address);
        }
    }
}

impl LidTable {
    /// The port's LIDs: those assigned, or those by the scheme, where the switch that the port hangs on has the subnet manager.
    pub fn port(&self, interface: &Interface) -> PortLids {
        let assigned = if self.is_used() { self.read(|assigned| assigned.port) } else { None };
        assigned.unwrap_or_else(|| {
            let lid = interface.lid();
            PortLids { lid, sm_lid: leaf_lid(lid), ..PortLids::default() }
        })
    }

    /// Sets the LIDs that a subnet manager has assigned to the port; `None`: those by the scheme hold again.
    pub fn assign(&self, port: Option<PortLids>) {
        self.write(|assigned| assigned.port = port);
    }

    /// Sets the address that a peer's LID leads to, where that is not the scheme's. There are no more rows than unicast LIDs.
    pub fn learn(&self, lid: Lid, address: Ipv4Addr) {
        if lid.is_unicast() {
            self.write(|assigned| {
                assigned.forget(lid);
                if let Some(old) = assigned.by_address.insert(address, lid) {
                    assigned.by_lid.remove(&old);
                }
                assigned.by_lid.insert(lid, address);
            });
        }
    }

    /// Removes the row of a LID: the scheme holds again.
    pub fn forget(&self, lid: Lid) {
        self.write(|assigned| assigned.forget(lid));
    }

    /// Removes the rows of all peers.
    pub fn forget_all(&self) {
        self.write(|assigned| (assigned.by_lid, assigned.by_address) = Default::default());
    }

    /// The address that a LID leads to from `interface`.
    pub fn address_of(&self, interface: &Interface, lid: Lid) -> Option<Ipv4Addr> {
        let scheme = interface.lid_scheme()?;
        if !self.is_used() {
            return scheme.address_of(lid);
        }
        if self.port(interface).contains(lid) {
            return Some(scheme.address());
        }
        self.read(|assigned| match assigned.by_lid.get(&lid) {
            Some(address) => Some(*address),
            // A peer that has another LID now, or this port.
            None => scheme.address_of(lid).filter(|address| !assigned.is_elsewhere(&scheme, *address)),
        })
    }

    /// The LID of an address, as seen from `interface`: [`Lid::NONE`] where no LID leads there.
    pub fn lid_of(&self, interface: &Interface, address: IpAddr) -> Lid {
        let (IpAddr::V4(address), Some(scheme)) = (address, interface.lid_scheme()) else { return Lid::NONE };
        if !self.is_used() {
            return scheme.lid_of(address);
        }
        if address == scheme.address() {
            return self.port(interface).lid;
        }
        self.read(|assigned| match assigned.by_address.get(&address) {
            Some(lid) => *lid,
            None => Some(scheme.lid_of(address)).filter(|lid| !assigned.by_lid.contains_key(lid)).unwrap_or_default(),
        })
    }

    fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    fn read<T>(&self, then: impl FnOnce(&Assigned) -> T) -> T {
        then(&self.assigned.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, then: impl FnOnce(&mut Assigned)) {
        then(&mut self.assigned.write().unwrap_or_else(PoisonError::into_inner));
        self.is_used.store(true, Ordering::Release);
    }
}

impl Assigned {
    /// Whether `address` is known not to have the LID that the scheme gives it.
    fn is_elsewhere(&self, scheme: &LidScheme, address: Ipv4Addr) -> bool {
        self.by_address.contains_key(&address) || (self.port.is_some() && address == scheme.address())
    }
}

#[cfg(test)]
mod tests {
    use urxe_wire::LinkLayer;

    use super::*;

    const PEER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

    fn lo() -> Interface {
        Interface::by_name("lo").unwrap().with_link_layer(LinkLayer::Infiniband)
    }

    #[test]
    fn the_scheme_unless_told() {
        let (lo, table) = (lo(), LidTable::default());
        assert_eq!(table.port(&lo), PortLids { lid: Lid(1), lmc: 0, sm_lid: Lid(0xBF00), sm_sl: 0 });
        assert_eq!(table.address_of(&lo, Lid(2)), Some(PEER));
        assert_eq!(table.lid_of(&lo, PEER.into()), Lid(2));
        assert_eq!(table.lid_of(&lo, Ipv4Addr::new(10, 0, 0, 2).into()), Lid::NONE);
    }

    #[test]
    fn a_subnet_manager_has_the_last_word() {
        let (lo, table) = (lo(), LidTable::default());
        let own = Ipv4Addr::LOCALHOST;
        table.assign(Some(PortLids { lid: Lid(8), lmc: 2, sm_lid: Lid(3), sm_sl: 1 }));
        table.learn(Lid(2), Ipv4Addr::new(127, 0, 0, 9));
        table.learn(Lid(20), PEER);
        assert_eq!(table.port(&lo).sm_lid, Lid(3));
        for (lid, address) in
            [(8, Some(own)), (11, Some(own)), (20, Some(PEER)), (1, None), (7, Some([127, 0, 0, 7].into()))]
        {
            assert_eq!(table.address_of(&lo, Lid(lid)), address, "{lid}");
        }
        assert_eq!(table.lid_of(&lo, own.into()), Lid(8));
        assert_eq!(table.lid_of(&lo, PEER.into()), Lid(20));
        assert_eq!(table.lid_of(&lo, Ipv4Addr::new(127, 0, 0, 9).into()), Lid(2));
        // A peer moves; another gets its LID.
        table.learn(Lid(21), PEER);
        assert_eq!(
            (table.address_of(&lo, Lid(20)), table.lid_of(&lo, PEER.into())),
            (Some([127, 0, 0, 20].into()), Lid(21))
        );
        table.forget(Lid(21));
        assert_eq!(table.lid_of(&lo, PEER.into()), Lid::NONE, "its LID by the scheme is another's");
        table.forget_all();
        table.assign(None);
        assert_eq!((table.lid_of(&lo, PEER.into()), table.lid_of(&lo, own.into())), (Lid(2), Lid(1)));
    }
}
