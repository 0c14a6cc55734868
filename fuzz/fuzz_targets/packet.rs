#![no_main]
//! Any bytes from a UDP 4791 socket.

use std::hint::black_box;
use std::net::SocketAddr;

use libfuzzer_sys::fuzz_target;
use urxe_wire::Packet;
use urxe_wire::icrc::{self, Check, Flow};

fuzz_target!(|datagram: &[u8]| {
    let address = |host| SocketAddr::from(([10, 77, 0, host], urxe_wire::ROCE_PORT));
    let flow = Flow::new(address(2), address(3));
    if let Check::Recovered { id, df: true } = icrc::verify(&flow, 0, datagram) {
        assert_eq!(icrc::verify(&flow, id, datagram), Check::Exact);
    }
    let Ok(packet) = Packet::parse(datagram) else { return };
    black_box(packet.to_string());
    // Reserved bits and pad bytes may differ; what they mean may not.
    let mut again = vec![0xA5; packet.header.len()];
    assert_eq!(packet.header.emit(&mut again), again.len());
    again.extend_from_slice(&datagram[again.len()..]);
    assert_eq!(Packet::parse(&again), Ok(packet));
});
