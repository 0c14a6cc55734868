//! Why commands and connections of rdma_cm fail, for people: see [`urxe_diag::explain`].

use std::net::SocketAddr;

use urxe_diag::explain::{CmEvent, cm_event, with_reason};

use super::State;
use super::event::Kind;
use super::id::State as Phase;
use crate::kernel::Errno;

impl State {
    /// The devices and their interfaces, such as `urxe0 is on lo`.
    fn devices_in_words(&self) -> String {
        let on = |device: &super::Device| {
            format!("{} is on {}", device.shared.device().device_name(), device.interface().name())
        };
        let devices: Vec<String> = self.devices.iter().map(on).collect();
        if devices.is_empty() { "no device can be opened".to_owned() } else { devices.join(", ") }
    }

    /// Explains an event that tells of a failure.
    pub(super) fn explain_event(&self, handle: u32, kind: Kind, status: i32, to: Option<SocketAddr>) {
        cm_event(kind as u32, || {
            let id = self.ids.get(handle);
            CmEvent {
                number: kind as u32,
                status,
                from: id.and_then(|id| id.src),
                to: to.or(id.and_then(|id| id.dst)),
                devices: self.devices_in_words(),
            }
        });
    }

    /// ENODEV of an address that no device has.
    pub(super) fn no_device_has(&self, address: SocketAddr) -> Errno {
        with_reason(Errno(libc::ENODEV), || {
            (
                format!("no device has the address {}: {}", address.ip(), self.devices_in_words()),
                "bind to an address of the device's interface or to the wildcard, or choose the interface with --netdev",
            )
        })
    }

    /// EADDRINUSE or EADDRNOTAVAIL of a port.
    pub(super) fn port_is_taken(address: SocketAddr, errno: Errno) -> Errno {
        match errno {
            Errno(libc::EADDRINUSE | libc::EADDRNOTAVAIL) if address.port() != 0 => with_reason(errno, || {
                (
                    format!(
                        "another id listens at port {} of {}, perhaps of another process",
                        address.port(),
                        address.ip()
                    ),
                    "end the other program, or choose another port; 0 is any that is free",
                )
            }),
            errno => errno,
        }
    }
}

/// EINVAL of a function that is called out of turn.
pub(super) fn out_of_turn(phase: Phase, wanted: &'static str) -> Errno {
    with_reason(Errno(libc::EINVAL), || {
        let now = match phase {
            Phase::Idle => "the id is new: neither bound nor resolved",
            Phase::AddrBound => "the id is bound, and its peer's address is not resolved",
            Phase::AddrResolved => "the address is resolved, and the route is not",
            Phase::RouteResolved => "the route is resolved, and no connection asked for",
            Phase::Listen => "the id listens",
            Phase::Connect => "the id is connected or connecting",
            Phase::Disconnect => "the connection has ended",
            Phase::Removed => "the device is gone",
        };
        (now, wanted)
    })
}
