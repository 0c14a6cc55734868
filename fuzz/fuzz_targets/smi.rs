#![no_main]
//! A virtual subnet: any datagrams to QP0, to subnet administration and from the group of announcements, and any of its own
//! programs, in any order and in virtual time. Nothing grows without bounds, and what is sent is whole.

use std::net::Ipv4Addr;
use std::time::Duration;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use urxe_engine::Instant;
use urxe_engine::mad::{Address, AgentId};
use urxe_engine::subnet::{Output, PortConfig, PortMembership, Subnet};
use urxe_wire::mad::subnet_vendor::{CLASS, OUI};
use urxe_wire::mad::{MAD_LEN, Mad};
use urxe_wire::{Gid, Guid, Lid, PKey, Qpn};

/// Hosts that are heard, at most.
const HOSTS: usize = 1024;
/// Groups of the port, and processes in them.
const GROUPS: usize = 256;
const PROCESSES: usize = GROUPS * 256 + GROUPS;
/// Bytes of the longest answer: all ports of all switches.
const LONGEST: usize = 8 << 20;

/// Memberships of the own port in two groups.
const RECORDS: [[u8; 52]; 2] = [record(7), record(8)];

const fn record(group: u8) -> [u8; 52] {
    let mut record = [0; 52];
    let (mgid, gid) = ([0xFF, 0x12, 0x40, 0x1B, 0xFF, 0xFF], [0xFE, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0x5E, 0xFE, 10, 77, 0, 1]);
    let mut at = 0;
    while at < gid.len() {
        record[16 + at] = gid[at];
        if at < mgid.len() {
            record[at] = mgid[at];
        }
        at += 1;
    }
    record[15] = group;
    // Q_Key, MLID, MTU, P_Key, rate, full member.
    (record[34], record[35], record[36], record[37]) = (0x0B, 0x1B, 0xC0, 1);
    (record[38], record[40], record[41], record[42], record[48]) = (0x84, 0xFF, 0xFF, 0x83, 0x21);
    record
}

/// A datagram whose header makes sense more often than not.
fn datagram(u: &mut Unstructured<'_>) -> Result<[u8; MAD_LEN]> {
    let mut bytes = [0; MAD_LEN];
    let given = u.bytes(u.len().min(MAD_LEN))?;
    bytes[..given.len()].copy_from_slice(given);
    if u.ratio(15, 16)? {
        bytes[0] = 1;
        bytes[1] = *u.choose(&[0x01, 0x81, 0x81, 0x03, 0x04, CLASS, CLASS])?;
        bytes[2] = if bytes[1] == 3 { 2 } else { 1 };
        bytes[3] = *u.choose(&[1, 2, 3, 5, 6, 7, 0x12, 0x13, 0x14, 0x15, 0x81, 0x85])?;
        bytes[16] = 0;
        bytes[17] = *u.choose(&[
            1, 2, 3, 0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1B, 0x20, 0x30, 0x31, 0x33, 0x35, 0x36, 0x38, 0x3A, 0xF3,
        ])?;
        if bytes[1] == CLASS {
            bytes[37..40].copy_from_slice(&OUI);
        } else if u.ratio(3, 4)? {
            bytes[32..36].fill(0xFF);
        }
    }
    Ok(bytes)
}

fn lid(u: &mut Unstructured<'_>) -> Result<Lid> {
    Ok(Lid(*u.choose(&[1, 2, 3, 241, 500, 0xBEFF, 0xBF00, 0xBF01, 0xBFFF, 0xC000, 0xFFFF, 0])?))
}

/// Takes what the subnet wants done; requests to a program's administration are answered later, by their number.
fn drain(subnet: &mut Subnet, relayed: &mut Vec<(u32, [u8; MAD_LEN])>) {
    let mut outputs = 0;
    while let Some(output) = subnet.poll_output() {
        outputs += 1;
        match output {
            Output::Announce(datagram)
            | Output::Send(_, _, datagram)
            | Output::Reply(_, _, datagram)
            | Output::Local(_, _, datagram)
            | Output::Request(_, datagram, _) => assert!(Mad::of(&datagram).is_some()),
            Output::Relay(number, datagram) => {
                assert!(Mad::of(&datagram).is_some());
                relayed.push((number, datagram));
            }
            Output::Message(_, message, _) => {
                assert!(message.len() <= LONGEST, "{}", message.len());
                assert!(message.first_chunk().is_some_and(|start| Mad::parse(start).is_some()));
            }
        }
    }
    assert!(outputs <= 4096, "{outputs}");
    while subnet.take_event().is_some() {}
    assert!(subnet.hosts().count() <= HOSTS);
    assert!(subnet.processes_in_groups().count() <= PROCESSES);
    // One at a time for each group.
    assert!(relayed.len() <= GROUPS);
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let config = PortConfig {
        lid: Lid(1),
        guids: vec![Guid::from(Ipv4Addr::new(10, 77, 0, 1))],
        prefix_len: *u.choose(&[16, 24])?,
        capability_mask: 0x0211_0848,
        width: 2,
        speed: 4,
        mtu: 5,
        p_keys: vec![PKey::DEFAULT; 32],
        description: [b'h'; 64],
        is_up: u.ratio(15, 16)?,
    };
    let mut now = Instant::from_nanos(1);
    let mut subnet = Subnet::new(now, config, 1 << 32);
    subnet.set_owner(now, u.ratio(7, 8)?);
    subnet.set_takes_traps(u.arbitrary()?);
    let mut relayed: Vec<(u32, [u8; MAD_LEN])> = Vec::new();
    while !u.is_empty() {
        let from = lid(u)?;
        let gid = |last: Lid| Gid::from(std::net::IpAddr::from([10, 77, (last.0 >> 8) as u8, last.0 as u8]));
        let address = Address {
            local: gid(Lid(1)),
            remote: gid(from),
            qpn: Qpn::GSI,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
        };
        match u.int_in_range(0..=10)? {
            0 => {
                now = now + Duration::from_millis(u.int_in_range(1..=5000)?);
                subnet.handle_timeout(now);
            }
            1 => subnet.set_sm(now, u.arbitrary()?),
            2 => subnet.set_owner(now, u.arbitrary()?),
            3 => {
                let qpn = if u.arbitrary()? { Qpn::SMI } else { Qpn::GSI };
                let _ = subnet.send(now, from, qpn, &datagram(u)?);
            }
            4 => {
                let _ = subnet.handle_administration(now, &address, from, datagram(u)?.to_vec());
            }
            5 => {
                let _ = subnet.handle_announcement(now, &address, from, &datagram(u)?);
            }
            6 => {
                // A process of the host joins or leaves.
                let record = if u.arbitrary()? { *u.choose(&RECORDS)? } else { u.arbitrary()? };
                let membership = PortMembership {
                    method: *u.choose(&[2, 2, 0x15, 0x82, 0x95])?,
                    status: 0,
                    transaction_id: u.int_in_range(1..=4_u64)? << 32 | u.int_in_range(0..=3_u64)?,
                    mask: *u.choose(&[0x1_0003, 0x1_30C7, 0])?,
                    record,
                };
                let _ = subnet.handle_announcement(now, &address, from, &membership.to_datagram());
            }
            7 => {
                if let Some((number, mut datagram)) = relayed.pop() {
                    datagram[4] = *u.choose(&[0, 0, 2])?;
                    subnet.handle_relayed(now, number, u.ratio(3, 4)?.then_some(&datagram[..]));
                }
            }
            8 => subnet.process_is_gone(now, AgentId(u.int_in_range(1..=4)?)),
            _ => {
                let _ = subnet.handle_smp(now, &address, &datagram(u)?, u.arbitrary()?);
            }
        }
        drain(&mut subnet, &mut relayed);
    }
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    // Running out of bytes ends the run.
    let _ = run(&mut Unstructured::new(bytes));
});
