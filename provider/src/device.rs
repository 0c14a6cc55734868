//! Which devices there are.

use std::path::Path;
use std::sync::{Mutex, Once, PoisonError};

use urxe_net::{Interface, PortError};
use urxe_options::{Choices, Device, Loopback};

/// What was chosen. A mistake is reported once, and there is no device then.
fn choices() -> Option<Choices> {
    static REPORTED: Once = Once::new();
    Choices::from_env()
        .map_err(|mistake| {
            REPORTED.call_once(|| crate::observe::complain(&format_args!("no device: {mistake}")));
        })
        .ok()
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
    Ok(interface.restricted(choices.mtu, &choices.gids))
}

/// Whether ports have LIDs.
pub(crate) fn has_lids() -> bool {
    choices().is_some_and(|choices| choices.lids)
}

/// Whether packets to other processes of this host go through shared memory where they can.
pub(crate) fn shares_memory() -> bool {
    choices().is_some_and(|choices| choices.loopback == Loopback::Shm)
}

/// GUIDs of the devices, by name, as libibverbs reads them from sysfs.
static GUIDS: Mutex<Vec<(String, u64)>> = Mutex::new(Vec::new());

/// Remembers what libibverbs takes for the GUID of a device whose files are in `dir`: by it librdmacm finds the device.
pub(crate) fn remember_guid(name: &str, dir: &Path) {
    let Ok(text) = std::fs::read_to_string(dir.join("node_guid")) else { return };
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    if let Ok(guid) = u64::from_str_radix(&digits, 16) {
        let mut guids = GUIDS.lock().unwrap_or_else(PoisonError::into_inner);
        guids.retain(|(known, _)| known != name);
        guids.push((name.to_owned(), guid.to_be()));
    }
}

/// The GUID, in network byte order.
pub(crate) fn guid(name: &str) -> Option<u64> {
    let guids = GUIDS.lock().unwrap_or_else(PoisonError::into_inner);
    guids.iter().find(|(known, _)| known == name).map(|(_, guid)| *guid)
}
