//! Records of nodes, ports, links, tables and paths.

use alloc::vec;
use alloc::vec::Vec;

use urxe_wire::mad::field::Field;
use urxe_wire::mad::node::{port_info, sm_info};
use urxe_wire::mad::sa::{self, ATTRIBUTE, Record, link, multi_path, path};
use urxe_wire::mad::topology::Switch;
use urxe_wire::{Gid, Lid, PKey};

use super::super::hosts::Neighbour;
use super::super::{Subnet, sma};
use super::{Failure, RECORDS, Request};

/// Rates of a path by width and speed (IBA 15.2.5.16 "Rate"): codes of 1x and 4x.
const RATES: [(u64, u64, u64); 6] = [(1, 1, 2), (1, 2, 5), (1, 4, 3), (2, 1, 3), (2, 2, 6), (2, 4, 7)];
/// `PacketLifeTime` of every path: 4.096 µs times two to the power of this, a second.
const LIFE_TIME: u64 = 18;
/// Selector: exactly.
const EXACTLY: u64 = 2;

/// Rates by their codes, in units of 100 Mb/s (IBA 15.2.5.16 "Rate", and its later extensions).
pub(super) const RATES_BY_CODE: [(u64, u32); 17] = [
    (2, 25),
    (3, 100),
    (4, 300),
    (5, 50),
    (6, 200),
    (7, 400),
    (8, 600),
    (9, 800),
    (10, 1200),
    (11, 140),
    (12, 560),
    (13, 1120),
    (14, 1680),
    (15, 250),
    (16, 1000),
    (17, 2000),
    (18, 3000),
];

/// A rate of this code, in units of 100 Mb/s; `None` for no known one.
pub(super) fn rate_of_code(code: u64) -> Option<u32> {
    RATES_BY_CODE.iter().find(|(its, _)| *its == code).map(|(_, rate)| *rate)
}

/// Code of a port's rate.
pub(super) fn rate(port_info: &[u8]) -> u64 {
    let (width, speed) = (port_info::WIDTH_ACTIVE.get(port_info), port_info::SPEED_ACTIVE.get(port_info));
    RATES.iter().find(|(its, at, _)| (*its, *at) == (width, speed)).map_or(3, |(.., rate)| *rate)
}

pub(super) fn record(kind: Record, lid: Lid, at: usize, attribute: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; kind.len()];
    sa::LID.put(&mut bytes, lid.0.into());
    Field::bytes(at, attribute.len().min(kind.len() - at)).put_slice(&mut bytes, attribute);
    bytes
}

pub(super) fn put(mut bytes: Vec<u8>, field: Field, value: u64) -> Vec<u8> {
    field.put(&mut bytes, value);
    bytes
}

impl Subnet {
    /// Records of a kind that match.
    pub(super) fn records(&mut self, kind: Record, request: &Request<'_>) -> Vec<Vec<u8>> {
        let matches = |record: &Vec<u8>| kind.matches(request.mask, request.wanted, record);
        match kind {
            Record::Node => self.nodes().filter(matches).take(RECORDS).collect(),
            Record::PortInfo => self.ports().filter(matches).take(RECORDS).collect(),
            Record::SwitchInfo => self.switch_infos().into_iter().filter(matches).collect(),
            Record::LinearForwarding => self.linear_tables(request).filter(matches).take(RECORDS).collect(),
            Record::SmInfo => self.managers().filter(matches).collect(),
            Record::Link => self.links().filter(matches).collect(),
            Record::GuidInfo => self.guid_infos().filter(matches).collect(),
            Record::PKeyTable => self.p_key_tables().filter(matches).collect(),
            Record::SlToVl => self.service_levels(request).filter(matches).take(RECORDS).collect(),
            Record::VlArbitration => self.arbitrations(request).filter(matches).take(RECORDS).collect(),
            Record::MulticastForwarding => self.multicast_tables(request).filter(matches).take(RECORDS).collect(),
            Record::Service | Record::Path | Record::Member | Record::InformInfo => Vec::new(),
        }
    }

    fn nodes(&self) -> impl Iterator<Item = Vec<u8>> {
        let describe = |mut bytes: Vec<u8>, text: &[u8]| {
            sa::DESCRIPTION.put_slice(&mut bytes, text);
            bytes
        };
        let hosts = self.hosts.all().map(move |facts| {
            let info = sma::host_node_info(facts, self.config.p_keys.len());
            describe(record(Record::Node, facts.lid(), ATTRIBUTE, &info), &facts.description)
        });
        let switches = self.hosts.switches().map(move |switch| {
            let info = sma::switch_node_info(switch, 0);
            describe(record(Record::Node, switch.lid(), ATTRIBUTE, &info), &sma::switch_description(switch))
        });
        hosts.chain(switches)
    }

    fn ports(&self) -> impl Iterator<Item = Vec<u8>> {
        let one =
            |lid, port: u8, info: &[u8]| put(record(Record::PortInfo, lid, ATTRIBUTE, info), sa::PORT, port.into());
        let hosts = self.hosts.all().map(move |facts| one(facts.lid(), 1, &facts.port_info));
        let switches = self.hosts.switches().flat_map(move |switch| {
            (0..=switch.ports()).map(move |port| one(switch.lid(), port, &self.switch_port(switch, port)))
        });
        hosts.chain(switches)
    }

    fn switch_infos(&mut self) -> Vec<Vec<u8>> {
        let switches: Vec<Switch> = self.hosts.switches().collect();
        let one = |switch: Switch| {
            let info = self.switch_info(switch, None);
            record(Record::SwitchInfo, switch.lid(), ATTRIBUTE, &info)
        };
        switches.into_iter().map(one).collect()
    }

    fn managers(&self) -> impl Iterator<Item = Vec<u8>> {
        let own = Switch::of(self.sm_lid).map(|switch| self.sm_info(switch));
        let masters = own.map(|info| record(Record::SmInfo, self.sm_lid, ATTRIBUTE, &info));
        let programs = self.hosts.all().filter(|facts| facts.is_sm()).map(|facts| {
            let mut info = [0; sm_info::LEN];
            sm_info::GUID.put(&mut info, facts.guid.into());
            let is_master = self.master() == Some(facts.lid());
            sm_info::STATE.put(&mut info, if is_master { sm_info::MASTER } else { sm_info::MASTER - 1 });
            record(Record::SmInfo, facts.lid(), ATTRIBUTE, &info)
        });
        masters.into_iter().chain(programs)
    }

    fn links(&self) -> impl Iterator<Item = Vec<u8>> {
        let one = |from: (Lid, u8), to: (Lid, u8)| {
            let mut bytes = vec![0; Record::Link.len()];
            link::FROM_LID.put(&mut bytes, from.0.0.into());
            link::FROM_PORT.put(&mut bytes, from.1.into());
            link::TO_LID.put(&mut bytes, to.0.0.into());
            link::TO_PORT.put(&mut bytes, to.1.into());
            bytes
        };
        let of = move |switch: Switch| {
            (1..=switch.ports()).flat_map(move |port| {
                let here = (switch.lid(), port);
                let (to, and_back) = match self.hosts.neighbour(switch, port) {
                    Some(Neighbour::Host(lid)) => ((lid, 1), true),
                    // The other switch tells of the way back.
                    Some(Neighbour::Switch(other, its)) => ((other.lid(), its), false),
                    None => return Vec::new(),
                };
                let back = and_back.then(|| one(to, here));
                [one(here, to)].into_iter().chain(back).collect()
            })
        };
        self.hosts.switches().flat_map(of)
    }

    /// Paths from the source that a query names to each end that it may mean: one each, so `NumbPath`, which bounds the paths
    /// between two ends (IBA 15.2.5.16), excludes none.
    pub(super) fn paths(&self, request: &Request<'_>) -> Result<Vec<Vec<u8>>, Failure> {
        let Request { mask, wanted, .. } = *request;
        let ends = self.ends();
        // Who names no source means the own host, but for a table of all paths.
        let wants_all = request.header.method == sa::METHOD_GET_TABLE && mask & path::HAS_DESTINATION == 0;
        let is_from_anywhere = wants_all || mask & path::HAS_SOURCE != 0;
        let is_source = |end: &&End| {
            let by_gid = mask & 1 << 3 == 0 || path::SGID.slice(wanted) == end.gid.octets();
            let by_lid = mask & 1 << 5 == 0 || path::SLID.get(wanted) == u64::from(end.lid.0);
            let is_asker = is_from_anywhere || end.lid == self.config.lid;
            by_gid && by_lid && is_asker
        };
        let sources: Vec<&End> = ends.iter().filter(is_source).collect();
        let mut paths = Vec::new();
        for source in sources {
            // Too many for an answer are too many to be found.
            if paths.len() >= RECORDS {
                break;
            }
            let all = ends.iter().map(|end| self.path(source, end));
            paths.extend(all.filter(|found| Record::Path.matches(mask, wanted, found) && selects(mask, wanted, found)));
        }
        Ok(paths)
    }

    /// Paths from each source of a request to each of its destinations.
    pub(super) fn multi_paths(&self, request: &Request<'_>) -> Result<Vec<Vec<u8>>, Failure> {
        let Request { header, mask, wanted } = *request;
        let count = |field: Field| usize::try_from(field.get(wanted)).unwrap_or_default();
        let (sources, destinations) = (count(multi_path::SOURCES), count(multi_path::DESTINATIONS));
        if mask & multi_path::NEEDED != multi_path::NEEDED || sources == 0 || destinations == 0 {
            return Err(sa::STATUS_INSUFFICIENT_COMPONENTS);
        }
        let (gids, _) = wanted.get(multi_path::GIDS..).unwrap_or_default().as_chunks::<16>();
        let gids = gids.get(..sources + destinations).ok_or(sa::STATUS_INVALID)?;
        let ends = self.ends();
        if !gids.iter().all(|gid| ends.iter().any(|end| end.gid == Gid::new(*gid))) {
            return Err(sa::STATUS_INVALID_GID);
        }
        let mut pattern = vec![0; Record::Path.len()];
        let mut of_path = path::ENDS;
        for (from, bits, to, here, there) in multi_path::OF_PATH {
            there.put(&mut pattern, here.get(wanted));
            of_path |= (mask >> from & ((1 << bits) - 1)) << to;
        }
        let (sources, destinations) = gids.split_at(sources);
        let mut paths = Vec::new();
        for (source, destination) in sources.iter().flat_map(|one| destinations.iter().map(move |other| (one, other))) {
            path::SGID.put_slice(&mut pattern, source);
            path::DGID.put_slice(&mut pattern, destination);
            paths.extend(self.paths(&Request { header, mask: of_path, wanted: &pattern })?);
        }
        Ok(paths)
    }

    fn ends(&self) -> Vec<End> {
        let hosts = self.hosts.all().map(|facts| End {
            lid: facts.lid(),
            gid: facts.gid(),
            mtu: facts.field(port_info::NEIGHBOR_MTU),
            rate: rate(&facts.port_info),
        });
        let switches = self.hosts.switches().map(|switch| {
            let info = self.switch_port(switch, 0);
            let gid = switch.guid().gid();
            End { lid: switch.lid(), gid, mtu: port_info::NEIGHBOR_MTU.get(&info), rate: rate(&info) }
        });
        hosts.chain(switches).collect()
    }

    fn path(&self, from: &End, to: &End) -> Vec<u8> {
        let mut bytes = vec![0; Record::Path.len()];
        path::DGID.put_slice(&mut bytes, &to.gid.octets());
        path::SGID.put_slice(&mut bytes, &from.gid.octets());
        for (field, value) in [
            (path::DLID, to.lid.0.into()),
            (path::SLID, from.lid.0.into()),
            (path::REVERSIBLE, 1),
            (path::P_KEY, self.config.p_keys.first().copied().unwrap_or(PKey::DEFAULT).0.into()),
            (path::MTU.0, EXACTLY),
            (path::MTU.1, from.mtu.min(to.mtu)),
            (path::RATE.0, EXACTLY),
            (path::RATE.1, from.rate.min(to.rate)),
            (path::LIFE_TIME.0, EXACTLY),
            (path::LIFE_TIME.1, LIFE_TIME),
        ] {
            field.put(&mut bytes, value);
        }
        bytes
    }
}

/// One end of a path.
struct End {
    lid: Lid,
    gid: Gid,
    mtu: u64,
    rate: u64,
}

/// Whether a path has the MTU, rate and life time that are asked for: greater, less, exactly, or the best.
fn selects(mask: u64, wanted: &[u8], found: &[u8]) -> bool {
    path::SELECTED.iter().filter(|(bits, _)| mask & bits == *bits).all(|(_, (selector, value))| {
        let (found, wanted, selector) = (value.get(found), value.get(wanted), selector.get(wanted));
        match selector {
            0 => found > wanted,
            1 => found < wanted,
            2 => found == wanted,
            _ => true,
        }
    })
}
