//! Generators of legal headers and packets, for the property tests of this crate.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;
use proptest::sample::select;

use crate::feth::FlushLevel;
use crate::opcode::{HeaderSet, PayloadRule, Role};
use crate::packet::{Service, pad_count};
use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ext, Feth, Header, ICRC_LEN, Ieth, ImmDt, Msn, Opcode, PKey, Psn, QKey,
    Qpn, RKey, Reth, SelectiveAck, SelectiveOffer, Syndrome, Transport, XrcEth,
};

/// Every legal opcode.
pub(crate) fn opcodes() -> Vec<Opcode> {
    (0..=u8::MAX).filter_map(Opcode::from_u8).collect()
}

fn qpn() -> impl Strategy<Value = Qpn> {
    any::<u32>().prop_map(Qpn::new)
}

fn r_key() -> impl Strategy<Value = RKey> {
    any::<u32>().prop_map(RKey)
}

fn reth() -> impl Strategy<Value = Reth> {
    (any::<u64>(), r_key(), any::<u32>()).prop_map(|(va, r_key, dma_len)| Reth { va, r_key, dma_len })
}

fn imm_dt() -> impl Strategy<Value = ImmDt> {
    any::<[u8; 4]>().prop_map(ImmDt)
}

fn aeth() -> impl Strategy<Value = Aeth> {
    let syndromes: Vec<Syndrome> = (0..=u8::MAX).filter_map(Syndrome::from_u8).collect();
    (select(syndromes), any::<u32>()).prop_map(|(syndrome, msn)| Aeth { syndrome, msn: Msn::new(msn) })
}

fn ext(headers: HeaderSet) -> BoxedStrategy<Ext> {
    match headers {
        HeaderSet::None => Just(Ext::None).boxed(),
        HeaderSet::Reth => reth().prop_map(Ext::Reth).boxed(),
        HeaderSet::RethImmDt => (reth(), imm_dt()).prop_map(|(reth, imm_dt)| Ext::RethImmDt(reth, imm_dt)).boxed(),
        HeaderSet::ImmDt => imm_dt().prop_map(Ext::ImmDt).boxed(),
        HeaderSet::Ieth => r_key().prop_map(|r_key| Ext::Ieth(Ieth { r_key })).boxed(),
        HeaderSet::AtomicEth => (any::<u64>(), r_key(), any::<u64>(), any::<u64>())
            .prop_map(|(va, r_key, swap_add, compare)| Ext::AtomicEth(AtomicEth { va, r_key, swap_add, compare }))
            .boxed(),
        HeaderSet::Aeth => aeth().prop_map(Ext::Aeth).boxed(),
        HeaderSet::AethAtomicAckEth => (aeth(), any::<u64>())
            .prop_map(|(aeth, original)| Ext::AethAtomicAckEth(aeth, AtomicAckEth { original }))
            .boxed(),
        HeaderSet::FethReth => {
            (any::<bool>(), any::<bool>(), select(vec![FlushLevel::Range, FlushLevel::Region]), reth())
                .prop_map(|(global_visibility, persistence, level, reth)| {
                    Ext::FethReth(Feth { global_visibility, persistence, level }, reth)
                })
                .boxed()
        }
        HeaderSet::CnpReserved => Just(Ext::CnpReserved).boxed(),
        HeaderSet::SelectiveOffer => (any::<bool>(), any::<u16>())
            .prop_map(|(answer, window)| Ext::SelectiveOffer(SelectiveOffer { answer, window }))
            .boxed(),
        HeaderSet::SelectiveAck => {
            any::<u32>().prop_map(|duplicates| Ext::SelectiveAck(SelectiveAck { duplicates })).boxed()
        }
    }
}

fn service(opcode: Opcode) -> BoxedStrategy<Service> {
    match (opcode.transport(), opcode.info().role) {
        (Transport::Ud, _) => (any::<u32>(), qpn(), any::<bool>())
            .prop_map(|(q_key, src_qp, lid_routed)| Service::Datagram(Deth { q_key: QKey(q_key), src_qp, lid_routed }))
            .boxed(),
        (Transport::Xrc, Role::Request) => qpn().prop_map(|xrc_srq| Service::Xrc(XrcEth { xrc_srq })).boxed(),
        _ => Just(Service::Connected).boxed(),
    }
}

fn payload(rule: PayloadRule) -> BoxedStrategy<Vec<u8>> {
    if rule == PayloadRule::Bitmap {
        return prop::collection::vec(any::<[u8; 4]>(), 0..=64).prop_map(|words| words.concat()).boxed();
    }
    let lengths = match rule {
        PayloadRule::None | PayloadRule::Bitmap => 0..=0,
        PayloadRule::Full => 256..=256,
        PayloadRule::OneToMtu => 1..=256,
        PayloadRule::ZeroToMtu => 0..=256,
        PayloadRule::Eight => 8..=8,
    };
    prop::collection::vec(any::<u8>(), lengths).boxed()
}

/// Any legal packet of this opcode on a path with MTU 256.
pub(crate) fn packet_of(opcode: Opcode) -> impl Strategy<Value = (Header, Vec<u8>)> {
    let flags = any::<[bool; 5]>();
    let info = opcode.info();
    (flags, any::<u16>(), qpn(), any::<u32>(), service(opcode), ext(info.headers), payload(info.payload)).prop_map(
        move |(flags, p_key, dest_qp, psn, service, ext, payload)| {
            let [solicited_event, mig_req, fecn, becn, ack_req] = flags;
            let bth = Bth {
                opcode,
                solicited_event,
                mig_req,
                pad_count: pad_count(payload.len()),
                p_key: PKey(p_key),
                fecn,
                becn,
                dest_qp,
                ack_req,
                psn: Psn::new(psn),
            };
            (Header { bth, service, ext }, payload)
        },
    )
}

/// Any legal packet on a path with MTU 256.
pub(crate) fn packet() -> impl Strategy<Value = (Header, Vec<u8>)> {
    select(opcodes()).prop_flat_map(packet_of)
}

/// The packet's bytes from the BTH to the padding, written over a dirty buffer.
pub(crate) fn bytes(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xA5; header.len()];
    assert_eq!(header.emit(&mut bytes), bytes.len());
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + usize::from(header.bth.pad_count), 0);
    bytes
}

/// Datagram with four bytes in the place of the ICRC.
pub(crate) fn datagram(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = bytes(header, payload);
    bytes.extend_from_slice(&[0xA5; ICRC_LEN]);
    bytes
}
