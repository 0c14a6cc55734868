//! Records of tables: GUIDs, P_Keys, forwarding, lanes.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use urxe_wire::mad::field::Field;
use urxe_wire::mad::sa::{self, Record, TABLE};
use urxe_wire::mad::smp::DATA_LEN;
use urxe_wire::mad::topology::Switch;
use urxe_wire::{Guid, Lid, PKey};

use super::super::{Subnet, sma};
use super::Request;
use super::records::{put, record};

/// MLIDs of a block of a multicast table, and ports of one of its entries.
const MLIDS: u64 = 32;
const PORTS: u8 = 16;
/// First MLID.
const FIRST_MLID: u64 = 0xC000;

impl Subnet {
    /// Blocks that a query may mean.
    pub(super) fn linear_tables(&self, request: &Request<'_>) -> impl Iterator<Item = Vec<u8>> {
        let named = |bit: u64, field: Field| (request.mask & bit != 0).then(|| field.get(request.wanted));
        let (lid, asked) = (named(1, sa::LID), named(1 << 1, sa::BLOCK));
        let switches = self.hosts.switches().filter(move |switch| lid.is_none_or(|lid| lid == switch.lid().0.into()));
        let blocks: Vec<u32> = sma::linear_blocks(&self.hosts)
            .filter(|block| asked.is_none_or(|asked| asked == (*block).into()))
            .collect();
        switches.flat_map(move |switch| {
            blocks.clone().into_iter().filter_map(move |block| {
                let table = sma::linear_block(&self.hosts, switch, block)?;
                Some(put(record(Record::LinearForwarding, switch.lid(), TABLE, &table), sa::BLOCK, block.into()))
            })
        })
    }

    pub(super) fn guid_infos(&self) -> impl Iterator<Item = Vec<u8>> {
        let one =
            |lid, guids: &[Guid]| sma::guid_block(guids, 0).map(|table| record(Record::GuidInfo, lid, TABLE, &table));
        let others = self.hosts.all().filter(|facts| facts.lid() != self.config.lid);
        let others = others.filter_map(move |facts| one(facts.lid(), &[facts.guid]));
        let switches = self.hosts.switches().filter_map(move |switch| one(switch.lid(), &[switch.guid()]));
        one(self.config.lid, &self.config.guids).into_iter().chain(others).chain(switches)
    }

    pub(super) fn p_key_tables(&self) -> impl Iterator<Item = Vec<u8>> {
        let one = |lid, port: u8, keys: &[PKey]| {
            let table = sma::p_key_block(keys, 0)?;
            Some(put(record(Record::PKeyTable, lid, TABLE, &table), sa::TABLE_PORT, port.into()))
        };
        let hosts = self.hosts.all().filter_map(move |facts| one(facts.lid(), 1, &self.config.p_keys));
        let switches = self.hosts.switches().filter_map(move |switch| one(switch.lid(), 0, &[PKey::DEFAULT]));
        hosts.chain(switches)
    }

    /// Nodes that a query may mean, with the number of ports of those that are switches.
    fn meant_nodes(&self, request: &Request<'_>) -> impl Iterator<Item = (Lid, Option<Switch>)> {
        let asked = (request.mask & 1 != 0).then(|| sa::LID.get(request.wanted));
        let hosts = self.hosts.all().map(|facts| (facts.lid(), None));
        let switches = self.hosts.switches().map(|switch| (switch.lid(), Some(switch)));
        hosts.chain(switches).filter(move |(lid, _)| asked.is_none_or(|asked| asked == lid.0.into()))
    }

    /// Ports of a node that a component of a query may mean: the one that is named, or those with a neighbour. Of adapters, which have
    /// one port, it may be called 0; `default` stands for it where none is named.
    fn meant_ports(
        &self,
        request: &Request<'_>,
        (bit, field): (u64, Field),
        switch: Option<Switch>,
        default: u8,
    ) -> Vec<u8> {
        let named = (request.mask & bit != 0).then(|| u8::try_from(field.get(request.wanted)).unwrap_or(u8::MAX));
        let last = switch.map_or(1, Switch::ports);
        match (named, switch) {
            (Some(port), _) => Vec::from_iter((port <= last).then_some(port)),
            (None, None) => Vec::from([default]),
            (None, Some(switch)) => {
                let is_linked = |port: &u8| *port == 0 || self.hosts.neighbour(switch, *port).is_some();
                (0..=last).filter(is_linked).collect()
            }
        }
    }

    /// Every service level goes to the one lane, whatever the way.
    pub(super) fn service_levels(&self, request: &Request<'_>) -> impl Iterator<Item = Vec<u8>> {
        let one = |lid: Lid, from: u8, to: u8| {
            let bytes = put(record(Record::SlToVl, lid, TABLE, &[]), sa::PORTS.0, from.into());
            put(bytes, sa::PORTS.1, to.into())
        };
        self.meant_nodes(request).flat_map(move |(lid, switch)| {
            let from = self.meant_ports(request, (1 << 1, sa::PORTS.0), switch, 0);
            let to = self.meant_ports(request, (1 << 2, sa::PORTS.1), switch, 1);
            to.into_iter().flat_map(move |to| from.clone().into_iter().map(move |from| one(lid, from, to)))
        })
    }

    /// Arbitration tables of ports: empty, as there is one lane.
    pub(super) fn arbitrations(&self, request: &Request<'_>) -> impl Iterator<Item = Vec<u8>> {
        let blocks = 1..=sma::ARBITRATION_BLOCKS;
        self.meant_nodes(request).flat_map(move |(lid, switch)| {
            let ports = self.meant_ports(request, (1 << 1, sa::PORT), switch, 1);
            let blocks = blocks.clone();
            ports.into_iter().flat_map(move |port| {
                blocks.clone().map(move |block| {
                    let bytes = put(record(Record::VlArbitration, lid, TABLE, &[]), sa::PORT, port.into());
                    put(bytes, sa::ARBITRATION_BLOCK, block.into())
                })
            })
        })
    }

    /// Parts of multicast tables that say something.
    pub(super) fn multicast_tables(&self, request: &Request<'_>) -> impl Iterator<Item = Vec<u8>> {
        let switches: Vec<Switch> = self.meant_nodes(request).filter_map(|(_, switch)| switch).collect();
        switches.into_iter().flat_map(move |switch| {
            // Each group is looked at once for a switch, however many there are.
            let mut tables: BTreeMap<(u64, u8), [u8; DATA_LEN]> = BTreeMap::new();
            for (mlid, port) in self.members_behind(switch) {
                let block = (mlid - FIRST_MLID) / MLIDS;
                note(tables.entry((block, port / PORTS)).or_insert([0; DATA_LEN]), mlid % MLIDS, port);
            }
            tables.into_iter().map(move |((block, position), table)| {
                let bytes = record(Record::MulticastForwarding, switch.lid(), TABLE, &table);
                put(put(bytes, sa::POSITION, position.into()), sa::MULTICAST_BLOCK, block)
            })
        })
    }

    /// MLIDs of groups, and the ports by which a switch reaches their members.
    fn members_behind(&self, switch: Switch) -> impl Iterator<Item = (u64, u8)> {
        let all = self.administration.groups.all();
        let all = all.filter_map(move |(lid, record)| {
            Some((sa::member::MLID.get(record), self.hosts.port_towards(switch, lid)?))
        });
        all.filter(|(mlid, _)| *mlid >= FIRST_MLID)
    }

    /// The largest MLID of a group that has members.
    pub(in super::super) fn last_mlid(&self) -> Option<u64> {
        let mlids = self.administration.groups.all().map(|(_, record)| sa::member::MLID.get(record));
        mlids.filter(|mlid| *mlid >= FIRST_MLID).max()
    }

    /// Part of a switch's multicast table: for each MLID of a block the ports that lead to members, of sixteen at a position.
    pub(in super::super) fn multicast_table(&self, switch: Switch, block: u32, position: u32) -> [u8; DATA_LEN] {
        let mut table = [0; DATA_LEN];
        let mlids = FIRST_MLID + u64::from(block) * MLIDS..FIRST_MLID + u64::from(block + 1) * MLIDS;
        for (mlid, port) in self.members_behind(switch).filter(|(mlid, _)| mlids.contains(mlid)) {
            if u32::from(port / PORTS) == position {
                note(&mut table, mlid % MLIDS, port);
            }
        }
        table
    }
}

/// Notes a port in an entry of a multicast table.
fn note(table: &mut [u8; DATA_LEN], entry: u64, port: u8) {
    let place = Field::bytes(usize::try_from(entry).unwrap_or_default() * 2, 2);
    let ports = place.get(table) | 1 << (port % PORTS);
    place.put(table, ports);
}
