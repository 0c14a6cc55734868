//! Cost of a packet before the transport sees it: ICRC and parser.
//!
//! The sizes are those of a packet from the BTH to the padding: an eight byte WRITE with its headers, one with change, a
//! READ response Only of 1024 bytes, and one of 4096.

use std::hint::black_box;
use std::net::{Ipv6Addr, SocketAddr};

use crc::{CRC_32_ISO_HDLC, Crc, Table};
use criterion::{BenchmarkId, Criterion, Throughput};
use urxe_wire::icrc::{self, Check, Flow};
use urxe_wire::{Bth, Ext, Header, ImmDt, Opcode, Operation, Packet, Psn, Qpn, RKey, ROCE_PORT, Reth, Transport};

const SIZES: [usize; 4] = [36, 64, 1040, 4112];

fn ipv4() -> Flow {
    let address = |host| SocketAddr::from(([10, 77, 0, host], ROCE_PORT));
    Flow::new(address(2), address(3))
}

fn ipv6() -> Flow {
    let address = SocketAddr::from((Ipv6Addr::LOCALHOST, ROCE_PORT));
    Flow::new(address, address)
}

/// A WRITE Only with immediate of `len` bytes in all, without ICRC.
fn packet(len: usize) -> Vec<u8> {
    let opcode = Opcode::new(Transport::Rc, Operation::WriteOnlyWithImmediate).expect("RC has it");
    let reth = Reth { va: 0x7F00_0000_0000, r_key: RKey(0x50A), dma_len: 0 };
    let header = Header::new(
        Bth::new(opcode, Qpn::new(0x12), Psn::new(0x12_3456)),
        Ext::RethImmDt(reth, ImmDt([0xC0, 0xFF, 0xEE, 0x42])),
    );
    let mut bytes: Vec<u8> = (0..=u8::MAX).cycle().take(len).collect();
    header.emit(&mut bytes);
    bytes
}

/// Packet with the ICRC of a sender that uses this identification.
fn with_icrc(flow: &Flow, ip_id: u16, len: usize) -> Vec<u8> {
    let mut bytes = packet(len);
    let icrc = icrc::compute(flow, ip_id, &bytes);
    bytes.extend_from_slice(&icrc.to_le_bytes());
    bytes
}

fn bench_icrc(c: &mut Criterion) {
    let crc = Crc::<u32, Table<16>>::new(&CRC_32_ISO_HDLC);
    let mut group = c.benchmark_group("icrc");
    for len in SIZES {
        group.throughput(Throughput::Bytes(len as u64));
        let packet = packet(len);
        for (name, flow) in [("compute/ipv4", ipv4()), ("compute/ipv6", ipv6())] {
            group.bench_function(BenchmarkId::new(name, len), |b| {
                b.iter(|| icrc::compute(black_box(&flow), black_box(0), black_box(&packet)));
            });
        }
        // Packets of our own: the identification is the expected one. And of others: it has to be found.
        let flow = ipv4();
        for (name, ip_id) in [("verify/exact", 0), ("verify/recovered", 0xBD2E)] {
            let datagram = with_icrc(&flow, ip_id, len);
            assert_ne!(icrc::verify(&flow, 0, &datagram), Check::Bad);
            group.bench_function(BenchmarkId::new(name, len), |b| {
                b.iter(|| icrc::verify(black_box(&flow), black_box(0), black_box(&datagram)));
            });
        }
        // For comparison, and without the headers in front.
        group.bench_function(BenchmarkId::new("crc crate, 16 tables", len), |b| {
            b.iter(|| crc.checksum(black_box(&packet)));
        });
    }
    group.finish();
}

fn bench_packet(c: &mut Criterion) {
    let mut group = c.benchmark_group("packet");
    let datagram = with_icrc(&ipv4(), 0, 64);
    group.bench_function("parse", |b| b.iter(|| Packet::parse(black_box(&datagram))));
    let header = Packet::parse(&datagram).expect("made above").header;
    let mut bytes = [0; 64];
    group.bench_function("emit", |b| b.iter(|| black_box(&header).emit(black_box(&mut bytes))));
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    bench_icrc(&mut criterion);
    bench_packet(&mut criterion);
    criterion.final_summary();
}
