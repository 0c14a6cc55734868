//! Status report of a device, as JSON.

use urxe_engine::QpType;

use crate::status::resources::{self, object};
use crate::verbs::lid;
use crate::verbs::quota::Quotas;
use urxe_diag::explain::quoted;
use urxe_diag::fmt;
use urxe_runtime::device::Device;
use urxe_runtime::qp::Qp;

/// The device `name` of this process: one JSON object in a line.
pub(super) fn report(name: &str, device: &Device, quotas: &Quotas) -> String {
    let interface = device.net().interface();
    let addresses: Vec<String> =
        interface.addresses().iter().map(|address| quoted(&address.ip().to_string())).collect();
    let (regions, bytes) = device.regions().totals();
    let mut qps = device.all_queue_pairs();
    qps.sort_by_key(|qp| qp.qpn().get());
    let qps: Vec<String> = qps.iter().map(|qp| queue_pair(qp)).collect();
    let counters: Vec<String> =
        device.all_counters().map(|(name, value)| format!("{}:{value}", quoted(name))).collect();
    let is_infiniband = interface.link_layer().is_infiniband();
    let owns_port = || interface.first_ipv4().is_some_and(|(_, own)| device.net().owns_address(own.into()));
    let of_subnet = is_infiniband.then(|| {
        [("sm_lid", quoted(&lid::of(device.net()).sm_lid.to_string())), ("owns_port", owns_port().to_string())]
    });
    let first = [
        ("pid", std::process::id().to_string()),
        ("program", quoted(&program())),
        ("version", quoted(env!("CARGO_PKG_VERSION"))),
        ("device", quoted(name)),
        ("netdev", quoted(interface.name())),
    ];
    let others = [
        ("addresses", format!("[{}]", addresses.join(","))),
        // Before all else that may have counters: who wants only these looks no further (`urxe_status::counters`).
        ("counters", format!("{{{}}}", counters.join(","))),
        ("mrs", object(&[("count", regions.to_string()), ("bytes", bytes.to_string())])),
        ("qps", format!("[{}]", qps.join(","))),
        ("resources", resources::report(name, device, quotas)),
    ];
    // What is short comes first.
    object(&first.into_iter().chain(of_subnet.into_iter().flatten()).chain(others).collect::<Vec<_>>()) + "\n"
}

fn queue_pair(qp: &Qp) -> String {
    let (qp_type, state, attr, peer, window) = qp.inspect(|engine| {
        let peer =
            engine.route().map(|route| (route.remote().ip().to_string(), route.is_shared() || route.is_inside()));
        (engine.config().qp_type, engine.state(), engine.attr(), peer, engine.window())
    });
    let peer = peer.map_or_else(
        || "null".to_owned(),
        |(address, shared)| {
            let way = quoted(if shared { "shm" } else { "udp" });
            object(&[("address", quoted(&address)), ("qpn", attr.dest_qpn.get().to_string()), ("way", way)])
        },
    );
    let counters: Vec<String> = qp.counters().iter().map(|(name, value)| format!("{}:{value}", quoted(name))).collect();
    object(&[
        ("qpn", qp.qpn().get().to_string()),
        ("type", quoted(service(qp_type))),
        ("state", quoted(fmt::state(state))),
        ("peer", peer),
        ("rq_psn", attr.rq_psn.get().to_string()),
        ("sq_psn", attr.sq_psn.get().to_string()),
        ("window", window.to_string()),
        ("counters", format!("{{{}}}", counters.join(","))),
    ])
}

/// The name of a service, as in `verbs.h` without `IBV_QPT_`.
const fn service(qp_type: QpType) -> &'static str {
    match qp_type {
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::Ud => "UD",
        QpType::XrcSend => "XRC_SEND",
        QpType::XrcRecv => "XRC_RECV",
    }
}

/// The file name of this program.
fn program() -> String {
    let words = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let first = words.split(|&byte| byte == 0).next().unwrap_or_default();
    let file = first.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    String::from_utf8_lossy(file).into_owned()
}
