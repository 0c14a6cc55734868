//! The objects of a device, as `urxe_status::resources` names them.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};

use urxe_engine::QpType;

use crate::cm;
use crate::verbs::quota::Quotas;
use urxe_diag::explain::quoted;
use urxe_runtime::device::Device;
use urxe_runtime::qp::Qp;
use urxe_runtime::srq::AnySrq;

/// An object: names and numbers. Addresses of IPv6 have 128 bits.
type Object = Vec<(&'static str, u128)>;

/// The device's objects in this process, as a JSON object of lists.
pub(super) fn report(name: &str, device: &Device, quotas: &Quotas) -> String {
    let wide =
        |members: Vec<(&'static str, u64)>| members.into_iter().map(|(name, value)| (name, value.into())).collect();
    let tracked = |objects: Vec<Vec<_>>| -> Vec<Object> { objects.into_iter().map(wide).collect() };
    let lists: Vec<String> = urxe_status::resources::KINDS
        .iter()
        .map(|kind| {
            let objects = match kind.name {
                "pd" => tracked(quotas.pd.objects().describe()),
                "cq" => tracked(quotas.cq.objects().describe()),
                "srq" => tracked(quotas.srq.objects().describe()),
                "ctx" => tracked(quotas.ctx.describe()),
                "qp" => queue_pairs(device),
                "mr" => regions(device),
                "cm_id" => cm_ids(name),
                _ => Vec::new(),
            };
            format!(
                "{}:[{}]",
                quoted(kind.name),
                objects.iter().map(|members| object(members)).collect::<Vec<_>>().join(",")
            )
        })
        .collect();
    format!("{{{}}}", lists.join(","))
}

/// A JSON object; the values are JSON.
pub(super) fn object(members: &[(&str, impl Display)]) -> String {
    let members: Vec<String> = members.iter().map(|(name, value)| format!("{}:{value}", quoted(name))).collect();
    format!("{{{}}}", members.join(","))
}

fn queue_pairs(device: &Device) -> Vec<Object> {
    let mut qps = device.all_queue_pairs();
    qps.sort_by_key(|qp| qp.qpn().get());
    qps.iter().map(|qp| queue_pair(qp)).collect()
}

/// Attributes of a queue pair, as `fill_res_qp_entry` of the kernel's nldev.c chooses them.
fn queue_pair(qp: &Qp) -> Object {
    let (qp_type, state, attr, pd, srq) = qp.inspect(|engine| {
        let config = engine.config();
        let srq = match &config.srq {
            Some(AnySrq::Local(srq)) => Some(srq.number()),
            Some(AnySrq::Remote(_)) | None => None,
        };
        (config.qp_type, engine.state(), engine.attr(), config.pd, srq)
    });
    let mut members = vec![("lqpn", qp.qpn().get().into())];
    if matches!(qp_type, QpType::Rc | QpType::Uc) {
        members.extend([("rqpn", attr.dest_qpn.get().into()), ("rq_psn", attr.rq_psn.get().into())]);
    }
    members.push(("sq_psn", attr.sq_psn.get().into()));
    if qp_type != QpType::Ud {
        members.push(("path_mig_state", attr.path_mig_state as u128));
    }
    members.extend([("type", ib_qp_type(qp_type)), ("state", state as u128), ("pdn", pd.0.into())]);
    members.extend(srq.map(|srqn| ("srqn", srqn.into())));
    members
}

/// `enum ib_qp_type`, whose numbers for these are those of verbs.h.
const fn ib_qp_type(qp_type: QpType) -> u128 {
    match qp_type {
        QpType::Rc => 2,
        QpType::Uc => 3,
        QpType::Ud => 4,
        QpType::XrcSend => 9,
        QpType::XrcRecv => 10,
    }
}

/// Without their keys, which the kernel shows to an administrator only.
fn regions(device: &Device) -> Vec<Object> {
    let object = |region: urxe_engine::Region| {
        // The upper 24 bits of a key count, the others are hard to guess.
        vec![("mrn", (region.key.0 >> 8).into()), ("mrlen", region.length.into()), ("pdn", region.pd.0.into())]
    };
    device.regions().all().into_iter().map(object).collect()
}

fn cm_ids(device: &str) -> Vec<Object> {
    let object = |id: cm::Listed| {
        let mut members = vec![
            ("cm_idn", id.handle.into()),
            ("ps", id.space.into()),
            ("state", id.state.into()),
            ("type", id.qp_type.into()),
        ];
        members.extend(
            id.src.into_iter().flat_map(|address| socket_address(["src_ipv4", "src_ipv6", "src_port"], address)),
        );
        members.extend(
            id.dst.into_iter().flat_map(|address| socket_address(["dst_ipv4", "dst_ipv6", "dst_port"], address)),
        );
        members
    };
    cm::manager().list(device).into_iter().map(object).collect()
}

fn socket_address([ipv4, ipv6, port]: [&'static str; 3], address: SocketAddr) -> [(&'static str, u128); 2] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => (ipv4, u32::from(ip).into()),
        IpAddr::V6(ip) => (ipv6, u128::from(ip)),
    };
    [ip, (port, address.port().into())]
}
