//! The agents of switches.

use alloc::collections::BTreeMap;

use urxe_wire::PKey;
use urxe_wire::mad::node::{port_info, sm_info, switch_info};
use urxe_wire::mad::smp::{Attribute, DATA_LEN};
use urxe_wire::mad::topology::Switch;
use urxe_wire::mad::{MAD_LEN, Mad};

use super::super::Subnet;
use super::super::hosts::Neighbour;
use super::{
    Data, Failure, GID_PREFIX, INVALID, LINEAR_CAP, MULTICAST_BLOCK, MULTICAST_CAP, UNSUPPORTED, attribute_of,
    guid_block, lanes, linear_block, link, p_key_block, padded, respond, switch_description, switch_node_info,
};

/// The largest LID below those of groups: there are none.
const NO_MLID: u64 = 0xBFFF;

/// Settings of a switch by programs, which last in this process.
#[derive(Debug, Default)]
pub(in super::super) struct SwitchSettings {
    info: Option<[u8; switch_info::LEN]>,
    /// By port: fields that `Set()` stores.
    ports: BTreeMap<u8, [u8; port_info::LEN]>,
    /// By attribute modifier.
    multicast: BTreeMap<u32, Data>,
    /// Changes of the states of its links; those until `SwitchInfo` was read last; and those that a manager has taken note of.
    changes: u32,
    read: u32,
    noted: u32,
}

impl SwitchSettings {
    /// The state of one of its links has changed.
    pub(in super::super) const fn change(&mut self) {
        self.changes = self.changes.wrapping_add(1);
    }
}

impl Subnet {
    /// Answers for a switch that a datagram has entered by this port.
    pub(in super::super) fn answer_for_switch(
        &mut self,
        switch: Switch,
        port: u8,
        datagram: &mut [u8; MAD_LEN],
    ) -> Option<()> {
        let header = Mad::of(datagram)?;
        let is_set = match header.method {
            Mad::METHOD_GET => false,
            Mad::METHOD_SET => true,
            _ => return None,
        };
        let modifier = header.attribute_modifier;
        let asked = attribute_of(datagram);
        let result = match Attribute::new(header.attribute_id) {
            _ if header.class_version != 1 => Err(Mad::STATUS_BAD_VERSION),
            Some(Attribute::NodeInfo) if !is_set => Ok(padded(&switch_node_info(switch, port))),
            Some(Attribute::NodeDescription) if !is_set => Ok(switch_description(switch)),
            Some(Attribute::SwitchInfo) => {
                let info = self.switch_info(switch, is_set.then_some(&asked));
                if let Some(settings) = self.switches.get_mut(&switch).filter(|_| !is_set) {
                    settings.read = settings.changes;
                }
                Ok(info)
            }
            Some(Attribute::PortInfo) => match u8::try_from(modifier).ok().filter(|port| *port <= switch.ports()) {
                Some(of) => {
                    if is_set {
                        self.set_switch_port(switch, of, &asked);
                    }
                    let mut info = self.switch_port(switch, of);
                    port_info::LOCAL_PORT.put(&mut info, port.into());
                    Ok(info)
                }
                None => Err(INVALID),
            },
            // Ways follow from the hosts, which may come and go while a manager works: it is told that it has what it wanted.
            Some(Attribute::LinearForwarding) => linear_block(&self.hosts, switch, modifier)
                .map(|block| if is_set { asked } else { block })
                .ok_or(INVALID),
            Some(Attribute::MulticastForwarding) => self.multicast_block(switch, modifier, is_set.then_some(asked)),
            Some(Attribute::GuidInfo) => guid_block(&[switch.guid()], modifier).ok_or(INVALID),
            Some(Attribute::PKeyTable) => p_key_block(&[PKey::DEFAULT], modifier & 0xFFFF).ok_or(INVALID),
            Some(attribute @ (Attribute::SlToVl | Attribute::VlArbitration)) => lanes(attribute, modifier),
            Some(Attribute::SmInfo) if !is_set => Ok(padded(&self.sm_info(switch))),
            _ => Err(UNSUPPORTED),
        };
        respond(datagram, &header, result);
        Some(())
    }

    /// `SMInfo` of the built-in subnet manager: master where no program is.
    pub(in super::super) fn sm_info(&self, switch: Switch) -> [u8; sm_info::LEN] {
        let mut info = [0; sm_info::LEN];
        sm_info::GUID.put(&mut info, switch.guid().into());
        sm_info::ACTIVITY.put(&mut info, self.activity.into());
        if self.master().is_none() {
            sm_info::STATE.put(&mut info, sm_info::MASTER);
        }
        info
    }

    /// `SwitchInfo`, after a `Set()`.
    pub(in super::super) fn switch_info(&mut self, switch: Switch, wanted: Option<&Data>) -> Data {
        let mut info = [0; switch_info::LEN];
        let last_mlid = self.last_mlid().filter(|_| self.master().is_none());
        for (field, value) in [
            (switch_info::LINEAR_CAP, LINEAR_CAP),
            (switch_info::MULTICAST_CAP, MULTICAST_CAP),
            (switch_info::LINEAR_TOP, Switch::Spine.lid().0.into()),
            (switch_info::LIFE_TIME, 18),
            (switch_info::MULTICAST_TOP, last_mlid.unwrap_or(NO_MLID)),
        ] {
            field.put(&mut info, value);
        }
        let settings = self.switches.entry(switch).or_default();
        if let Some(stored) = &settings.info {
            info = *stored;
        }
        if let Some(wanted) = wanted {
            for field in switch_info::WRITABLE {
                field.copy(wanted, &mut info);
            }
            settings.info = Some(info);
            // A manager looks at the ports after it has read this, and before it clears the bit: what has changed meanwhile is kept
            // for it.
            if switch_info::PORT_STATE_CHANGE.get(wanted) != 0 {
                settings.noted = settings.read;
            }
        }
        switch_info::PORT_STATE_CHANGE.put(&mut info, (settings.changes != settings.noted).into());
        padded(&info)
    }

    /// `PortInfo` of a switch's port.
    pub(in super::super) fn switch_port(&self, switch: Switch, port: u8) -> Data {
        let mut info = [0; port_info::LEN];
        let neighbour = self.hosts.neighbour(switch, port);
        let theirs = match neighbour {
            Some(Neighbour::Host(lid)) => self.hosts.get(lid).copied(),
            _ => None,
        };
        let mtu =
            theirs.map_or(self.config.mtu, |facts| u8::try_from(facts.field(port_info::MTU_CAP)).unwrap_or_default());
        link(&mut info, self.config.width, self.config.speed, mtu);
        let state = match (port, neighbour) {
            (0, _) | (_, Some(Neighbour::Switch(..))) => port_info::ACTIVE,
            (_, Some(Neighbour::Host(_))) => theirs.map_or(port_info::DOWN, |facts| facts.field(port_info::STATE)),
            (_, None) => port_info::DOWN,
        };
        let physical = if state == port_info::DOWN { port_info::POLLING } else { port_info::LINK_UP };
        if let Some(set) = self.switches.get(&switch).and_then(|settings| settings.ports.get(&port)) {
            for field in port_info::WRITABLE {
                if field.get(set) != 0 {
                    field.copy(set, &mut info);
                }
            }
        }
        port_info::STATE.put(&mut info, state);
        port_info::PHYSICAL_STATE.put(&mut info, physical);
        if port == 0 {
            let sm_lid = self.master().unwrap_or(switch.lid());
            for (field, value) in [
                (port_info::LID, switch.lid().0.into()),
                (port_info::SM_LID, sm_lid.0.into()),
                (port_info::GID_PREFIX, GID_PREFIX),
                (port_info::CAPABILITY_MASK, u64::from(self.config.capability_mask) & !port_info::IS_SM),
                (port_info::GUID_CAP, 1),
            ] {
                field.put(&mut info, value);
            }
        }
        info
    }

    fn set_switch_port(&mut self, switch: Switch, port: u8, wanted: &Data) {
        // Of ports without a neighbour nothing is kept.
        if port == 0 || self.hosts.neighbour(switch, port).is_some() {
            self.switches.entry(switch).or_default().ports.insert(port, *wanted);
        }
    }

    fn multicast_block(&mut self, switch: Switch, modifier: u32, set: Option<Data>) -> Result<Data, Failure> {
        // Position in the upper four bits: 16 ports each.
        let (block, position) = (modifier & 0x01FF, modifier >> 28);
        if u64::from(block * MULTICAST_BLOCK) >= MULTICAST_CAP || position * 16 > u32::from(switch.ports()) {
            return Err(INVALID);
        }
        let place = position << 28 | block;
        // The built-in manager's tables follow from the groups.
        let built_in = self.master().is_none().then(|| self.multicast_table(switch, block, position));
        let blocks = &mut self.switches.entry(switch).or_default().multicast;
        if let Some(set) = set {
            blocks.insert(place, set);
        }
        Ok(blocks.get(&place).copied().or(built_in).unwrap_or([0; DATA_LEN]))
    }
}
