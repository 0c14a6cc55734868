//! Which devices there are.

use std::path::Path;
use std::sync::{Arc, LazyLock, Once};

use urxe_engine::congestion::CongestionSettings;
use urxe_engine::{AckTimer, KeptMemory, SelectiveRepeat};
use urxe_net::{Interface, PortError};
use urxe_options::{Choices, Device, Loopback, Personality, RawFrames, Sharding};

use urxe_runtime::fork_safe_mutex::ForkSafeMutex;

/// Reads the device's settings from the environment. A mistake is reported once, and there is no device then.
fn choices() -> Option<Choices> {
    static REPORTED: Once = Once::new();
    Choices::new(variable)
        .map_err(|mistake| {
            REPORTED.call_once(|| urxe_diag::complain(&format_args!("no device: {mistake}")));
        })
        .ok()
}

/// A variable, but for names, personality and topology of devices where they are as an installation has them: `urxe run`
/// makes the files that are others.
fn variable(name: &str) -> Option<String> {
    let of_files = [urxe_options::DEVICE_NAME, urxe_options::PERSONALITY, urxe_options::TOPOLOGY];
    let is_of_files = of_files.iter().any(|of| of.variable == name);
    if is_of_files && !urxe_preload::is_active() {
        return None;
    }
    urxe_diag::settings::environment(name)
}

/// The devices.
pub(crate) fn all() -> Vec<Device> {
    choices().map_or_else(Vec::new, |choices| choices.devices)
}

/// The interface of the device `name`, if there is such a device.
pub(crate) fn netdev_of(name: &str) -> Option<String> {
    choices()?.device(name).map(|device| device.netdev.clone())
}

/// The interface as the device shows it.
pub(crate) fn interface(netdev: &str) -> Result<Interface, PortError> {
    let interface = Interface::by_name(netdev)?;
    let choices = choices().unwrap_or_default();
    check_addresses(&choices, &interface)?;
    Ok(interface
        .restricted(choices.mtu, &choices.gids)
        .with_link_layer(choices.link_layer)
        .with_gid_layout(choices.gid_layout))
}

/// Refuses a chosen address that no device's interface has: GID indices would not be those that were meant. Where an interface is
/// down, its addresses may be yet to come.
fn check_addresses(choices: &Choices, interface: &Interface) -> Result<(), PortError> {
    let may_have = |interface: &Interface, address| {
        interface.addresses().iter().any(|own| own.ip() == address) || interface.check_usable().is_err()
    };
    let missing = choices.gids.iter().copied().find(|&address| {
        let another = |device: &Device| Interface::by_name(&device.netdev).is_ok_and(|other| may_have(&other, address));
        !may_have(interface, address) && !choices.devices.iter().any(another)
    });
    missing.map_or(Ok(()), |address| Err(PortError::AddressMissing { address }))
}

/// Appearance of the devices.
pub(crate) fn personality() -> Personality {
    static PERSONALITY: LazyLock<Personality> =
        LazyLock::new(|| choices().map(|choices| choices.personality).unwrap_or_default());
    *PERSONALITY
}

/// Course of ACK timeouts: a card's, of devices that look like one.
pub(crate) fn ack_timer() -> AckTimer {
    match personality() {
        Personality::Virtual | Personality::Pci => AckTimer::Specified,
        Personality::Mlx5 => AckTimer::ConnectX,
    }
}

/// Whether ports have LIDs.
pub(crate) fn has_lids() -> bool {
    choices().is_some_and(|choices| choices.lids)
}

/// Whether ports are those of InfiniBand.
pub(crate) fn is_infiniband() -> bool {
    choices().is_some_and(|choices| choices.link_layer.is_infiniband())
}

/// Whether packets to other processes of this host go through shared memory where they can.
pub(crate) fn shares_memory() -> bool {
    choices().is_some_and(|choices| choices.loopback == Loopback::Shm && choices.deterministic.is_none())
}

/// Seed of devices for fuzz targets, which have no threads and virtual time.
pub(crate) fn deterministic() -> Option<u64> {
    choices()?.deterministic
}

/// Whether requests go straight to the memory of processes of this host where they can.
pub(crate) fn is_direct() -> bool {
    choices().is_some_and(|choices| choices.direct)
}

/// Whether XDP takes raw frames away from the host's network stack.
pub(crate) fn uses_xdp() -> bool {
    choices().is_some_and(|choices| choices.raw == RawFrames::Xdp)
}

/// Congestion control of queue pairs on `interface`.
pub(crate) fn congestion(interface: &Interface) -> CongestionSettings {
    let line_rate = slowest(interface.netdevs().map(speed));
    choices().unwrap_or_default().congestion.settings(interface.is_loopback(), line_rate)
}

/// The least of these speeds that is known, which a connection on any of the interfaces may count on; 0 if none is.
fn slowest(speeds: impl Iterator<Item = u32>) -> u32 {
    speeds.filter(|speed| *speed > 0).min().unwrap_or(0)
}

/// Selective repeat of queue pairs, if it is chosen. All of a process share the memory for packets behind gaps.
pub(crate) fn selective_repeat() -> Option<SelectiveRepeat> {
    static KEPT: LazyLock<Arc<KeptMemory>> = LazyLock::new(Arc::default);
    let choices = choices().filter(|choices| choices.selective_repeat)?;
    Some(SelectiveRepeat { memory: Arc::clone(&KEPT), paths: choices.paths })
}

/// Queue pairs that go together to one shard of a device.
pub(crate) fn sharding() -> Sharding {
    choices().map(|choices| choices.sharding).unwrap_or_default()
}

/// The speed of an interface in Mbit/s; 0 if its driver does not say.
fn speed(netdev: &str) -> u32 {
    let text = std::fs::read_to_string(format!("/sys/class/net/{netdev}/speed")).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// GUIDs of the devices, by name, as libibverbs reads them from sysfs.
static GUIDS: ForkSafeMutex<Vec<(String, u64)>> = ForkSafeMutex::new(Vec::new());

/// Remembers what libibverbs takes for the GUID of a device whose files are in `dir`: by it librdmacm finds the device.
pub(crate) fn remember_guid(name: &str, dir: &Path) {
    let Ok(text) = std::fs::read_to_string(dir.join("node_guid")) else { return };
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    if let Ok(guid) = u64::from_str_radix(&digits, 16) {
        GUIDS.with(|guids| {
            guids.retain(|(known, _)| known != name);
            guids.push((name.to_owned(), guid.to_be()));
        });
    }
}

/// The GUID, in network byte order.
pub(crate) fn guid(name: &str) -> Option<u64> {
    GUIDS.with(|guids| guids.iter().find(|(known, _)| known == name).map(|(_, guid)| *guid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_interfaces_are_as_fast_as_the_slowest() {
        assert_eq!(slowest([100_000, 0, 25_000].into_iter()), 25_000);
        assert_eq!([slowest([0].into_iter()), slowest([].into_iter())], [0, 0]);
    }
}
