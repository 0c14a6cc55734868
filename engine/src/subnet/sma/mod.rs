//! Answers of subnet management agents (IBA 14.2.5): that of the own host's port, and those of the switches.

mod host;
mod switch;

use urxe_wire::mad::field::{data, data_mut};
use urxe_wire::mad::node::{node_info, port_info};
use urxe_wire::mad::smp::{Attribute, DATA, DATA_LEN};
use urxe_wire::mad::topology::{SWITCH_LIDS, Switch};
use urxe_wire::mad::{MAD_LEN, Mad};
use urxe_wire::{Guid, Lid, PKey};

use super::PortConfig;
use super::announcement::Facts;
use super::hosts::Hosts;
pub(super) use switch::SwitchSettings;

/// Bytes of an attribute.
type Data = [u8; DATA_LEN];

/// Vendor of virtual nodes: locally administered.
const VENDOR: u64 = 0x02_7572;
/// LIDs of the linear forwarding table, and of the multicast one.
const LINEAR_CAP: u64 = 0xC000;
const MULTICAST_CAP: u64 = 0x3FFF;
/// `GidPrefix` of every port.
const GID_PREFIX: u64 = u64::from_be_bytes(Guid::DEFAULT_PREFIX);
/// Entries of a block of each table.
const BLOCK: u16 = 64;
const MULTICAST_BLOCK: u32 = 32;
/// No way leads there, in a linear forwarding table.
const NO_WAY: u8 = 0xFF;

/// A status other than success.
type Failure = u16;

const UNSUPPORTED: Failure = Mad::STATUS_BAD_METHOD_ATTRIBUTE;
const INVALID: Failure = Mad::STATUS_INVALID_FIELD;

/// `NodeInfo` of a host.
pub(super) fn host_node_info(facts: &Facts, p_keys: usize) -> [u8; node_info::LEN] {
    node(node_info::CHANNEL_ADAPTER, 1, facts.guid, p_keys, 1)
}

/// `NodeInfo` of a switch, asked at a port.
pub(super) fn switch_node_info(switch: Switch, port: u8) -> [u8; node_info::LEN] {
    node(node_info::SWITCH, switch.ports(), switch.guid(), 1, port)
}

fn node(kind: u64, ports: u8, guid: Guid, p_keys: usize, port: u8) -> [u8; node_info::LEN] {
    let mut info = [0; node_info::LEN];
    for (field, value) in [
        (node_info::BASE_VERSION, 1),
        (node_info::CLASS_VERSION, 1),
        (node_info::NODE_TYPE, kind),
        (node_info::NUM_PORTS, ports.into()),
        (node_info::SYSTEM_IMAGE_GUID, guid.into()),
        (node_info::NODE_GUID, guid.into()),
        (node_info::PORT_GUID, guid.into()),
        (node_info::PARTITION_CAP, p_keys as u64),
        (node_info::DEVICE_ID, 1),
        (node_info::LOCAL_PORT, port.into()),
        (node_info::VENDOR_ID, VENDOR),
    ] {
        field.put(&mut info, value);
    }
    info
}

/// `NodeDescription` of a switch.
pub(super) fn switch_description(switch: Switch) -> Data {
    let mut text = [0; DATA_LEN];
    let name: &[u8] = match switch {
        Switch::Leaf(_) => b"urxe virtual switch, leaf ",
        Switch::Spine => b"urxe virtual switch, spine",
    };
    let digits = match switch {
        Switch::Leaf(leaf) => [leaf / 100, leaf / 10 % 10, leaf % 10].map(|digit| b'0' + digit),
        Switch::Spine => [0; 3],
    };
    let leading = digits.iter().take(2).take_while(|digit| **digit == b'0').count();
    for (to, from) in text.iter_mut().zip(name.iter().chain(digits.iter().skip(leading))) {
        *to = *from;
    }
    text
}

/// `PortInfo` that the port of a host starts with: active, as the built-in subnet manager leaves it.
pub(super) fn first_port_info(config: &PortConfig, sm_lid: Lid) -> [u8; port_info::LEN] {
    let mut info = [0; port_info::LEN];
    link(&mut info, config.width, config.speed, config.mtu);
    for (field, value) in [
        (port_info::GID_PREFIX, GID_PREFIX),
        (port_info::LID, config.lid.0.into()),
        (port_info::SM_LID, sm_lid.0.into()),
        (port_info::CAPABILITY_MASK, config.capability_mask.into()),
        (port_info::LOCAL_PORT, 1),
        (port_info::STATE, if config.is_up { port_info::ACTIVE } else { port_info::DOWN }),
        (port_info::PHYSICAL_STATE, if config.is_up { port_info::LINK_UP } else { port_info::POLLING }),
        (port_info::GUID_CAP, config.guids.len().min(255) as u64),
    ] {
        field.put(&mut info, value);
    }
    info
}

/// Width, speed, MTU, and a single virtual lane.
fn link(info: &mut [u8], width: u8, speed: u8, mtu: u8) {
    for (field, value) in [
        (port_info::WIDTH_ENABLED, width),
        (port_info::WIDTH_SUPPORTED, width),
        (port_info::WIDTH_ACTIVE, width),
        (port_info::SPEED_ENABLED, speed),
        (port_info::SPEED_SUPPORTED, speed),
        (port_info::SPEED_ACTIVE, speed),
        (port_info::NEIGHBOR_MTU, mtu),
        (port_info::MTU_CAP, mtu),
        (port_info::VL_CAP, 1),
        (port_info::OPERATIONAL_VLS, 1),
        (port_info::DOWN_DEFAULT, 2),
        (port_info::SUBNET_TIMEOUT, 18),
        (port_info::RESPONSE_TIME, 16),
        (port_info::PHYSICAL_ERRORS, 8),
        (port_info::OVERRUN_ERRORS, 8),
    ] {
        field.put(info, value.into());
    }
}

/// A block of a table of P_Keys.
pub(super) fn p_key_block(p_keys: &[PKey], block: u32) -> Option<Data> {
    table_block(p_keys, block, |p_key| p_key.0.to_be_bytes())
}

/// A block of `GUIDInfo`.
pub(super) fn guid_block(guids: &[Guid], block: u32) -> Option<Data> {
    table_block(guids, block, |guid| guid.octets())
}

/// Entries of a block, as many as an attribute has room for; `None` for a block behind the first that has none.
fn table_block<T, const N: usize>(table: &[T], block: u32, bytes: impl Fn(&T) -> [u8; N]) -> Option<Data> {
    let mut data = [0; DATA_LEN];
    let first = usize::try_from(block).ok()?.checked_mul(DATA_LEN / N)?;
    let there = table.get(first..).filter(|rest| first == 0 || !rest.is_empty())?;
    for (to, from) in data.chunks_exact_mut(N).zip(there) {
        to.copy_from_slice(&bytes(from));
    }
    Some(data)
}

/// Highest block of an arbitration table that there is: two halves of each priority.
pub(super) const ARBITRATION_BLOCKS: u32 = 4;

/// Both directions of the one lane: every SL goes there, and there is nothing to weigh.
fn lanes(attribute: Attribute, modifier: u32) -> Result<Data, Failure> {
    let blocks = 1..=ARBITRATION_BLOCKS;
    if attribute == Attribute::VlArbitration && !blocks.contains(&(modifier >> 16)) {
        return Err(INVALID);
    }
    Ok([0; DATA_LEN])
}

fn padded(attribute: &[u8]) -> Data {
    let mut data = [0; DATA_LEN];
    for (to, from) in data.iter_mut().zip(attribute) {
        *to = *from;
    }
    data
}

/// Writes a status and an attribute into a datagram, and makes it a response.
fn respond(datagram: &mut [u8; MAD_LEN], header: &Mad, result: Result<Data, Failure>) {
    let mut header = Mad { method: Mad::METHOD_GET | Mad::RESPONSE, ..*header };
    header.status = header.status & 0x8000 | result.err().unwrap_or(0);
    header.put(datagram);
    if let (Ok(result), Some(to)) = (result, datagram.get_mut(DATA..DATA + DATA_LEN)) {
        to.copy_from_slice(&result);
    }
}

fn attribute_of(datagram: &[u8; MAD_LEN]) -> Data {
    padded(data(datagram, DATA))
}

/// A block of a switch's linear forwarding table, which follows from the hosts that are there.
pub(super) fn linear_block(hosts: &Hosts, switch: Switch, block: u32) -> Option<Data> {
    let first = u16::try_from(block).ok()?.checked_mul(BLOCK).filter(|first| u64::from(*first) < LINEAR_CAP)?;
    let mut table = [NO_WAY; DATA_LEN];
    let mut put = |lid: Lid| {
        if let Some(entry) = table.get_mut(usize::from(lid.0 - first)) {
            *entry = hosts.port_towards(switch, lid).unwrap_or(NO_WAY);
        }
    };
    let last = first + (BLOCK - 1);
    if first >= SWITCH_LIDS {
        (first..=last).map(Lid).for_each(&mut put);
    } else {
        // Of the others there are few.
        hosts.range(Lid(first)..=Lid(last)).for_each(&mut put);
    }
    Some(table)
}

/// Blocks of a linear forwarding table that say something.
pub(super) fn linear_blocks(hosts: &Hosts) -> impl Iterator<Item = u32> {
    let mut last = None;
    let of_hosts = hosts.all().map(|facts| facts.lid().0 / BLOCK);
    let of_hosts = of_hosts.filter(move |block| last.replace(*block) != Some(*block));
    of_hosts.chain(SWITCH_LIDS / BLOCK..=Switch::Spine.lid().0 / BLOCK).map(u32::from)
}

/// Writes an attribute at the start of a datagram's data.
pub(super) fn put_attribute(datagram: &mut [u8; MAD_LEN], attribute: &[u8]) {
    for (to, from) in data_mut(datagram, DATA).iter_mut().zip(attribute) {
        *to = *from;
    }
}
