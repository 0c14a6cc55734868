#![no_main]
//! Management datagrams: any datagrams and commands in any order to the agents of a port in virtual time, and any calls of a
//! program that has `umadN` open, over the loopback interface.

use std::cell::RefCell;
use std::time::Duration;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use urxe::kernel::umad::{ENABLE_PKEY, File, REGISTER_AGENT, REGISTER_AGENT_2, UNREGISTER_AGENT};
use urxe_engine::Instant;
use urxe_engine::mad::{Address, AgentId, Claim, Delivery, MadPort, Outgoing, perf};
use urxe_fuzz::memory::{BASE, Memory};
use urxe_wire::mad::{MAD_LEN, Mad, Rmpp};
use urxe_wire::{Gid, Qpn};

const OUI: [u8; 3] = [0, 0x14, 5];
const MEMORY: usize = 64 << 20;

fn address(u: &mut Unstructured<'_>) -> Result<Address> {
    let gid = |last| Gid::new([last; 16]);
    Ok(Address {
        local: gid(1),
        remote: gid(u.int_in_range(2..=3)?),
        qpn: Qpn::GSI,
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 64,
    })
}

/// A message whose header makes sense more often than not.
fn message(u: &mut Unstructured<'_>, most: usize) -> Result<Vec<u8>> {
    let mut message = vec![0; u.int_in_range(0..=most)?.max(MAD_LEN)];
    let given = u.bytes(u.len().min(48))?;
    message[..given.len()].copy_from_slice(given);
    if u.ratio(15, 16)? {
        message[0] = 1;
        message[1] = *u.choose(&[0x32, 0x32, 0x03, 0x04, 0x07, 0x09])?;
        message[2] = 1;
        message[3] = *u.choose(&[1, 2, 3, 0x81, 0x83, 7])?;
        // Few transactions of few agents, so that messages meet.
        message[8..16].copy_from_slice(&(u.int_in_range(1..=3_u64)? << 32 | u.int_in_range(0..=1_u64)?).to_be_bytes());
        message[24] = 1;
        message[25] = u.int_in_range(1..=5)?;
        message[26] = u.int_in_range(0..=7)?;
        message[37..40].copy_from_slice(&OUI);
        if u.ratio(7, 8)? {
            message[27] = 0;
            message[28..32].copy_from_slice(&u.int_in_range(0..=20_u32)?.to_be_bytes());
        }
    }
    Ok(message)
}

fn drain(port: &mut MadPort<u32>) {
    while let Some(transmit) = port.poll_transmit() {
        assert!(Mad::of(&transmit.payload).is_some());
    }
    while let Some((_, delivery)) = port.poll_delivery() {
        if let Delivery::Received { message, .. } = delivery {
            assert!(message.len() >= Mad::LEN);
        }
    }
}

fn agents(u: &mut Unstructured<'_>) -> Result<()> {
    let (mut port, mut now) = (MadPort::new(), Instant::default());
    let mut counters = perf::Performance::default();
    while !u.is_empty() {
        let agent = AgentId(u.int_in_range(1..=3)?);
        match u.int_in_range(0..=9)? {
            0 | 1 => {
                let claim =
                    Claim { class: *u.choose(&[0x32, 0x03, 0x09])?, version: 1, oui: OUI, methods: u.arbitrary()? };
                let _ = port.register(agent, u.ratio(3, 4)?.then_some(claim), u.arbitrary()?);
            }
            2 => drop(port.unregister(agent)),
            3 | 4 => {
                let message = message(u, 1 << 16)?;
                let timeout = u.ratio(3, 4)?.then(|| Duration::from_millis(10));
                let outgoing =
                    Outgoing { to: address(u)?, message, timeout, retries: u.int_in_range(0..=3)?, context: 7 };
                let _ = port.send(now, agent, outgoing);
            }
            5..=8 => {
                let message = message(u, MAD_LEN)?;
                let datagram: &[u8; MAD_LEN] = message.first_chunk().expect("at least a datagram");
                let from = address(u)?;
                let _ = port.handle(now, &from, datagram);
                let _ = Rmpp::of(datagram);
                if Mad::of(datagram).is_some_and(|header| perf::is_for_port(&header)) {
                    counters.answer(datagram, &[u64::MAX / 2; urxe_wire::mad::perf::COUNTERS]).expect("an answer");
                }
            }
            _ => {
                if let Some(at) = port.poll_timeout() {
                    now = at;
                    port.handle_timeout(now);
                }
            }
        }
        drain(&mut port);
        assert!(port.memory() <= MEMORY);
    }
    // Without news everything comes to rest, and nothing is kept.
    for _ in 0..100_000 {
        let Some(at) = port.poll_timeout() else {
            assert_eq!(port.memory(), 0);
            return Ok(());
        };
        now = at;
        port.handle_timeout(now);
        drain(&mut port);
    }
    panic!("it never ends");
}

fn calls(u: &mut Unstructured<'_>) -> Result<()> {
    let (file, _program) = File::open(0, libc::O_NONBLOCK).expect("descriptors are there");
    let mut room = vec![0; 1 << 17];
    while !u.is_empty() {
        match u.int_in_range(0..=7)? {
            0..=2 => {
                let request =
                    *u.choose(&[REGISTER_AGENT, REGISTER_AGENT, REGISTER_AGENT_2, UNREGISTER_AGENT, ENABLE_PKEY])?;
                let mut argument = vec![0; 64];
                let given = u.bytes(u.len().min(40))?;
                argument[..given.len()].copy_from_slice(given);
                if request == REGISTER_AGENT && u.ratio(7, 8)? {
                    argument[20..27].copy_from_slice(&[1, 0x32, 1, 0, 0x14, 5, 1]);
                    // All methods, or one: each takes a descriptor.
                    argument[4..20].fill(if u.arbitrary()? { 0xFF } else { 0 });
                    argument[4] |= 2;
                } else if request != UNREGISTER_AGENT {
                    let at = if request == REGISTER_AGENT { 4 } else { 16 };
                    argument[at + 1..at + 16].fill(0);
                }
                let at = if u.ratio(15, 16)? { BASE } else { u.arbitrary()? };
                let _ = file.ioctl(&Memory(RefCell::new(argument)), request, at);
            }
            3..=5 => {
                let mut bytes = vec![0; 64];
                bytes[0] = u.int_in_range(0..=2)?;
                // So short that a message is not waited for.
                bytes[8] = u.int_in_range(0..=2)?;
                bytes[20..24].copy_from_slice(&1_u32.to_be_bytes());
                bytes[32..36].copy_from_slice(&[u8::from(u.ratio(15, 16)?), 1, 64, 0]);
                bytes[36..52].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 127, 0, 0, 1]);
                bytes.extend(message(u, 4096)?);
                let given = if u.ratio(15, 16)? { bytes.len() } else { u.int_in_range(0..=bytes.len())? };
                let _ = file.write(&bytes[..given]);
            }
            _ => {
                let size = *u.choose(&[0, 56, 64, 100, 320, room.len()])?;
                if let Ok(length) = file.read(&mut room[..size]) {
                    assert!(length <= size);
                }
            }
        }
    }
    file.close();
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    // While a file has an agent, the device is open: opening it for every input would be all that happens.
    static OPEN: std::sync::OnceLock<File> = std::sync::OnceLock::new();
    OPEN.get_or_init(|| {
        let (file, _) = File::open(0, libc::O_NONBLOCK).expect("descriptors are there");
        let memory = Memory(RefCell::new([&[0; 20][..], &[1, 0, 0, 0, 0, 0, 0, 0], &[0; 36]].concat()));
        file.ioctl(&memory, REGISTER_AGENT, BASE).expect("an agent for responses");
        file
    });
    let mut u = Unstructured::new(bytes);
    // Ends with the bytes.
    let _ = match u.arbitrary() {
        Ok(true) => calls(&mut u),
        _ => agents(&mut u),
    };
});
