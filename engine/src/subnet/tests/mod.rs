//! Processes of several hosts in virtual time, and what their programs ask.

mod administration;
mod broker;
mod groups;
mod management;
mod presence;

use alloc::vec;
use alloc::vec::Vec;

use urxe_wire::mad::field::Field;
use urxe_wire::mad::node::{node_info, sm_info, switch_info};
use urxe_wire::mad::sa::{self, Record, member, path};
use urxe_wire::mad::smp::{self, DATA, Hop};
use urxe_wire::mad::topology::UPLINK;
use urxe_wire::mad::{Rmpp, subnet_vendor};
use urxe_wire::{Gid, Guid, PKey};

use super::*;

const SOLO: Lid = Lid(1);
const PEER: Lid = Lid(2);
/// A host on leaf 1.
const FAR: Lid = Lid(261);
const LEAF: Lid = Lid(0xBF00);

fn guid(lid: Lid) -> u64 {
    0x0200_5EFE_0A4D_0000 | u64::from(lid.0)
}

fn gid_of(lid: Lid) -> [u8; 16] {
    Guid::from(guid(lid)).gid().octets()
}

fn config(lid: Lid) -> PortConfig {
    PortConfig {
        lid,
        guids: vec![guid(lid).into()],
        prefix_len: 16,
        capability_mask: 0x0211_0848,
        width: 2,
        speed: 4,
        mtu: 5,
        p_keys: [vec![PKey::DEFAULT], vec![PKey(0); 31]].concat(),
        description: [b'h'; 64],
        is_up: true,
    }
}

fn address(lid: Lid) -> Address {
    let [a, b] = lid.0.to_be_bytes();
    let gid = |last: [u8; 2]| Gid::from(core::net::IpAddr::from([10, 77, last[0], last[1]]));
    Address { local: gid([0, 1]), remote: gid([a, b]), qpn: Qpn::GSI, flow_label: 0, traffic_class: 0, hop_limit: 64 }
}

/// Processes of several hosts, and a network that loses nothing.
struct Net {
    now: Instant,
    hosts: Vec<(Lid, Subnet)>,
    /// Datagrams for agents of the host with this number.
    local: Vec<(usize, Lid, [u8; MAD_LEN])>,
    messages: Vec<(usize, Vec<u8>)>,
    /// Requests to a program's administration.
    relayed: Vec<(usize, u32, [u8; MAD_LEN])>,
    /// Answers to processes about memberships.
    answered: Vec<PortMembership>,
}

impl Net {
    fn new(lids: &[Lid]) -> Self {
        let now = Instant::from_nanos(1);
        let host = |(number, lid): (usize, &Lid)| {
            let mut subnet = Subnet::new(now, config(*lid), (number as u64) << 32);
            subnet.set_owner(now, true);
            (*lid, subnet)
        };
        let hosts = lids.iter().enumerate().map(host).collect();
        let mut net =
            Self { now, hosts, local: Vec::new(), messages: Vec::new(), relayed: Vec::new(), answered: Vec::new() };
        net.pass(READY + Duration::from_millis(10));
        net
    }

    /// Lets time pass, in steps.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + Duration::from_millis(10)).min(end);
            for number in 0..self.hosts.len() {
                let now = self.now;
                let subnet = &mut self.hosts[number].1;
                if subnet.poll_timeout().is_some_and(|at| at <= now) {
                    subnet.handle_timeout(now);
                }
            }
            self.carry();
        }
    }

    fn carry(&mut self) {
        let mut is_busy = true;
        while is_busy {
            is_busy = false;
            for number in 0..self.hosts.len() {
                while let Some(output) = self.hosts[number].1.poll_output() {
                    is_busy = true;
                    self.put(number, output);
                }
            }
        }
    }

    fn put(&mut self, number: usize, output: Output) {
        let from = self.hosts[number].0;
        let now = self.now;
        let find = |net: &Self, lid: Lid| net.hosts.iter().position(|(its, _)| *its == lid);
        match output {
            Output::Announce(datagram) => {
                for (_, subnet) in &mut self.hosts {
                    subnet.handle_announcement(now, &address(from), from, &datagram).unwrap();
                }
            }
            Output::Reply(_, _, datagram) if PortMembership::parse(&datagram).is_some() => {
                self.answered.extend(PortMembership::parse(&datagram));
            }
            Output::Reply(to, qpn, datagram) => {
                let [.., a, b] = to.remote.octets();
                let lid = Lid(u16::from_be_bytes([a, b]));
                match find(self, lid) {
                    Some(number) if qpn == Qpn::GSI => {
                        let heard = self.hosts[number].1.handle_announcement(now, &address(from), from, &datagram);
                        heard.unwrap();
                    }
                    Some(number) => self.deliver(number, from, &datagram),
                    None => {}
                }
            }
            Output::Send(lid, Qpn::SMI, datagram) | Output::Request(lid, datagram, _) => {
                if let Some(number) = find(self, lid) {
                    self.deliver(number, from, &datagram);
                }
            }
            Output::Send(lid, _, datagram) => {
                if let Some(number) = find(self, lid) {
                    let subnet = &mut self.hosts[number].1;
                    subnet.handle_administration(now, &address(from), from, datagram.to_vec()).unwrap();
                }
            }
            Output::Relay(query, datagram) => self.relayed.push((number, query, datagram)),
            Output::Local(lid, _, datagram) => self.local.push((number, lid, datagram)),
            Output::Message(to, message, _) => {
                let [.., a, b] = to.remote.octets();
                let number = find(self, Lid(u16::from_be_bytes([a, b]))).unwrap();
                self.messages.push((number, message));
            }
        }
    }

    fn deliver(&mut self, number: usize, from: Lid, datagram: &[u8; MAD_LEN]) {
        let left = self.hosts[number].1.handle_smp(self.now, &address(from), datagram, false).unwrap();
        if let Some(datagram) = left {
            self.local.push((number, from, datagram));
        }
    }

    /// Sends a packet of subnet management from the first host, and returns the answer.
    fn ask(&mut self, to: Lid, datagram: &[u8; MAD_LEN]) -> Option<[u8; MAD_LEN]> {
        self.local.clear();
        let now = self.now;
        self.hosts[0].1.send(now, to, Qpn::SMI, datagram).ok()?;
        self.carry();
        let (number, _, answer) = self.local.pop()?;
        assert_eq!(number, 0);
        assert!(Mad::of(&answer).unwrap().is_response());
        Some(answer)
    }

    /// `Get()` or `Set()` along a path.
    fn directed(
        &mut self,
        path: &[u8],
        method: u8,
        attribute: Attribute,
        modifier: u32,
        data: &[u8],
    ) -> Option<[u8; MAD_LEN]> {
        let mut datagram = packet(Mad::CLASS_SUBN_DIRECTED, method, attribute, modifier, data);
        datagram[32..36].fill(0xFF);
        Hop { is_returning: false, pointer: 0, count: u8::try_from(path.len()).unwrap() }.put(&mut datagram);
        datagram[129..129 + path.len()].copy_from_slice(path);
        self.ask(Lid::PERMISSIVE, &datagram)
    }

    fn get(&mut self, path: &[u8], attribute: Attribute, modifier: u32) -> Vec<u8> {
        let answer = self.directed(path, Mad::METHOD_GET, attribute, modifier, &[]).unwrap();
        assert_eq!(smp::status(&Mad::of(&answer).unwrap()), 0, "{attribute:?} {modifier}");
        assert_eq!(answer[6], 0, "the hop pointer is back at its start");
        answer[DATA..DATA + 64].to_vec()
    }

    /// Asks subnet administration; the records of the answer, or its status.
    fn administer(&mut self, method: u8, id: u16, mask: u64, record: &[u8]) -> Result<Vec<Vec<u8>>, u16> {
        self.administer_with_key(0, method, id, mask, record).expect("an answer")
    }

    /// Asks subnet administration with an `SM_Key`; `None` without an answer.
    fn administer_with_key(
        &mut self,
        key: u64,
        method: u8,
        id: u16,
        mask: u64,
        record: &[u8],
    ) -> Option<Result<Vec<Vec<u8>>, u16>> {
        let mut message = vec![0; MAD_LEN];
        sa::SM_KEY.put(&mut message, key);
        header(Mad::CLASS_SUBN_ADM, method, id, 0).emit(message.first_chunk_mut().unwrap());
        message[2] = sa::VERSION;
        sa::COMPONENT_MASK.put(&mut message, mask);
        message[sa::DATA..sa::DATA + record.len()].copy_from_slice(record);
        let (now, (lid, subnet)) = (self.now, &mut self.hosts[0]);
        let lid = *lid;
        let _ = subnet.handle_administration(now, &address(lid), lid, message);
        self.messages.clear();
        self.carry();
        let (_, answer) = self.messages.pop()?;
        let header = Mad::parse(answer.first_chunk().unwrap()).unwrap();
        if header.status != 0 {
            return Some(Err(header.status));
        }
        if !matches!(method, sa::METHOD_GET_TABLE | sa::METHOD_GET_MULTI) {
            return Some(Ok(vec![answer[sa::DATA..].to_vec()]));
        }
        assert_eq!(answer[24..27], [1, Rmpp::DATA, 0xF9]);
        let distance = usize::try_from(sa::OFFSET.get(&answer)).unwrap() * 8;
        Some(Ok(answer[sa::DATA..].chunks(distance.max(1)).map(<[u8]>::to_vec).collect()))
    }
}

fn header(class: u8, method: u8, attribute_id: u16, attribute_modifier: u32) -> Mad {
    let transaction_id = 0x77_0000_0001;
    let (status, class_specific) = (0, 0);
    Mad { class, class_version: 1, method, status, class_specific, transaction_id, attribute_id, attribute_modifier }
}

fn packet(class: u8, method: u8, attribute: Attribute, modifier: u32, data: &[u8]) -> [u8; MAD_LEN] {
    let mut datagram = [0; MAD_LEN];
    header(class, method, attribute as u16, modifier).emit(datagram.first_chunk_mut().unwrap());
    datagram[DATA..DATA + data.len()].copy_from_slice(data);
    datagram
}

const GET: u8 = Mad::METHOD_GET;
const SET: u8 = Mad::METHOD_SET;
