//! The opcode table: as text, in numbers, and against itself.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use urxe_wire::opcode::{HeaderSet, Kind, PayloadRule, Position, Role};
use urxe_wire::{Mtu, Opcode, Operation, Transport};

/// One line for each of the 256 opcode bytes.
fn table() -> String {
    let mut text = String::from(
        "# Every opcode byte: name (Wireshark's words), role, kind, headers after BTH, DETH and XRCETH, payload, and what\n\
         # it does to a receive WQE. Made by wire/tests/opcodes.rs; UPDATE_SNAPSHOTS=1 writes it anew.\n",
    );
    for byte in 0..=u8::MAX {
        let Some(opcode) = Opcode::from_u8(byte) else {
            writeln!(text, "{byte:#04x} -").unwrap();
            continue;
        };
        let info = opcode.info();
        let receive = match (info.consumes_recv, info.completes_recv) {
            (false, false) => "",
            (true, false) => ", consumes",
            (false, true) => ", completes",
            (true, true) => ", consumes and completes",
        };
        let (role, kind, position) = (info.role, info.kind, info.position);
        let (headers, payload) = (info.headers, info.payload);
        let name = opcode.to_string();
        writeln!(text, "{byte:#04x} {name}: {role:?} {kind:?} {position:?}, {headers:?}, {payload:?}{receive}")
            .unwrap();
    }
    text
}

#[test]
fn table_is_the_one_committed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/opcodes.txt");
    if env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&path, table()).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap();
    for (line, (ours, theirs)) in table().lines().zip(committed.lines()).enumerate() {
        assert_eq!(ours, theirs, "line {} of {}", line + 1, path.display());
    }
    assert_eq!(table().lines().count(), committed.lines().count());
}

/// `include/rdma/ib_pack.h`; for XRC, which it does not have, IBA annex A14; for CNP, annex A17.9.
#[test]
fn numbers() {
    use Operation::*;
    #[rustfmt::skip]
    let operations = [
        (SendFirst, 0x00), (SendMiddle, 0x01), (SendLast, 0x02), (SendLastWithImmediate, 0x03), (SendOnly, 0x04),
        (SendOnlyWithImmediate, 0x05), (WriteFirst, 0x06), (WriteMiddle, 0x07), (WriteLast, 0x08),
        (WriteLastWithImmediate, 0x09), (WriteOnly, 0x0A), (WriteOnlyWithImmediate, 0x0B), (ReadRequest, 0x0C),
        (ReadResponseFirst, 0x0D), (ReadResponseMiddle, 0x0E), (ReadResponseLast, 0x0F), (ReadResponseOnly, 0x10),
        (Acknowledge, 0x11), (AtomicAcknowledge, 0x12), (CompareSwap, 0x13), (FetchAdd, 0x14),
        (SendLastWithInvalidate, 0x16), (SendOnlyWithInvalidate, 0x17), (Flush, 0x1C), (AtomicWrite, 0x1D),
    ];
    let on_uc = &operations[..12];
    let on_ud = [(SendOnly, 0x04), (SendOnlyWithImmediate, 0x05)];
    let transports = [
        (Transport::Rc, 0x00, &operations[..]),
        (Transport::Uc, 0x20, on_uc),
        (Transport::Ud, 0x60, &on_ud),
        (Transport::Cnp, 0x80, &[(CongestionNotification, 0x01)]),
        (Transport::Xrc, 0xA0, &operations),
        (Transport::Urxe, 0xC0, &[(SelectiveOffer, 0x00), (SelectiveAcknowledge, 0x01)]),
    ];
    let mut seen = BTreeSet::new();
    for (transport, base, operations) in transports {
        for &(operation, code) in operations {
            let opcode = Opcode::new(transport, operation).unwrap();
            assert_eq!(opcode.to_u8(), base + code, "{opcode}");
            assert_eq!(Opcode::from_u8(base + code), Some(opcode));
            assert_eq!((opcode.transport(), opcode.operation()), (transport, operation));
            assert!(seen.insert(opcode.to_u8()), "{opcode} shares its number");
        }
    }
    for byte in 0..=u8::MAX {
        assert_eq!(Opcode::from_u8(byte).is_some(), seen.contains(&byte), "{byte:#04x}");
    }
    assert_eq!(Opcode::CNP.to_u8(), 0x81);
    assert_eq!((Opcode::SELECTIVE_OFFER.to_u8(), Opcode::SELECTIVE_ACK.to_u8()), (0xC0, 0xC1));
}

#[test]
fn every_pair_is_an_opcode_or_none() {
    let mut pairs = 0;
    for transport in Transport::ALL {
        let mut codes = BTreeSet::new();
        for operation in Operation::ALL {
            let opcode = Opcode::new(transport, operation);
            assert_eq!(
                opcode.is_some(),
                operation.info().transports.contains(transport),
                "{transport:?} {operation:?}"
            );
            if let Some(opcode) = opcode {
                assert_eq!(Opcode::from_u8(opcode.to_u8()), Some(opcode));
                assert!(codes.insert(operation.info().code), "{opcode} shares its number");
                pairs += 1;
            }
        }
    }
    assert_eq!(pairs, (0..=u8::MAX).filter(|&byte| Opcode::from_u8(byte).is_some()).count());
}

/// Conditions of every row, whatever the operation.
#[test]
fn rows_agree_with_themselves() {
    for operation in Operation::ALL {
        let info = operation.info();
        // Full packets in front, a rest behind, anything alone.
        let payload = match (info.kind, info.position) {
            (Kind::Send | Kind::Write | Kind::ReadResponse, Position::First | Position::Middle) => PayloadRule::Full,
            (Kind::Send | Kind::Write | Kind::ReadResponse, Position::Last) => PayloadRule::OneToMtu,
            (Kind::Send | Kind::Write | Kind::ReadResponse, Position::Only) => PayloadRule::ZeroToMtu,
            (Kind::AtomicWrite, _) => PayloadRule::Eight,
            (Kind::SelectiveAcknowledge, _) => PayloadRule::Bitmap,
            _ => PayloadRule::None,
        };
        assert_eq!(info.payload, payload, "{}", info.name);
        // A SEND takes its receive WQE where it starts and completes it where it ends; a WRITE does both with its
        // immediate.
        let immediate = matches!(info.headers, HeaderSet::ImmDt | HeaderSet::RethImmDt);
        let (consumes, completes) = match info.kind {
            Kind::Send => (info.position.starts(), info.position.ends()),
            Kind::Write => (immediate, immediate),
            _ => (false, false),
        };
        assert_eq!((info.consumes_recv, info.completes_recv), (consumes, completes), "{}", info.name);
        // A WRITE says where it goes when it starts.
        if info.kind == Kind::Write {
            let reth = matches!(info.headers, HeaderSet::Reth | HeaderSet::RethImmDt);
            assert_eq!(reth, info.position.starts(), "{}", info.name);
        }
        let role = match info.kind {
            Kind::ReadResponse | Kind::Acknowledge | Kind::AtomicAcknowledge => Role::Response,
            Kind::CongestionNotification | Kind::SelectiveOffer | Kind::SelectiveAcknowledge => Role::Notification,
            _ => Role::Request,
        };
        assert_eq!(info.role, role, "{}", info.name);
    }
}

//= spec/packets.md#pkt-012
//= type=test
//# First and Middle packets MUST have a payload of one path MTU, a Last one between 1 byte and that.
#[test]
fn payload_rules() {
    let mtu = Mtu::Mtu1024;
    let allowed = |rule: PayloadRule| [0, 1, 8, 1023, 1024, 1025].map(|len| rule.allows(len, mtu));
    assert_eq!(allowed(PayloadRule::None), [true, false, false, false, false, false]);
    assert_eq!(allowed(PayloadRule::Full), [false, false, false, false, true, false]);
    assert_eq!(allowed(PayloadRule::OneToMtu), [false, true, true, true, true, false]);
    assert_eq!(allowed(PayloadRule::ZeroToMtu), [true, true, true, true, true, false]);
    assert_eq!(allowed(PayloadRule::Eight), [false, false, true, false, false, false]);
    assert_eq!([0, 1, 4, 256, 260].map(|len| PayloadRule::Bitmap.allows(len, mtu)), [true, false, true, true, false]);
}
