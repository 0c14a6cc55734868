//! Sources of the answers: the folder of `urxe run`, which programs find by path as well, the interfaces, and the processes
//! that have a device.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::time::Duration;

use urxe_ffi::verbs as v;
use urxe_net::LidTable;

use super::kinds::Told;
use super::nldev::{CharDev, Device, Devices, Port};
use crate::device;
use crate::status::sysfs;
use crate::verbs::query;

/// How long a process may take to answer: somebody waits in send(2).
const TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct Host;

impl Devices for Host {
    fn all(&self) -> Vec<Device> {
        (0..).zip(device::all()).map(|(index, device)| shown(index, &device)).collect()
    }

    fn reports(&self, device: &Device) -> Vec<Told> {
        let reports = sysfs::reports(&device.name, TIMEOUT);
        reports.into_iter().filter_map(|report| Some(Told { pid: report.pid()?, report: report.text })).collect()
    }

    fn counters(&self, device: &Device) -> Vec<(&'static str, u64)> {
        sysfs::hardware_counters(&device.name)
    }

    fn chardev(&self, kind: &str, device: Option<&Device>) -> Option<CharDev> {
        let (name, abi) = match (kind, device) {
            ("uverbs", Some(device)) => {
                let name = format!("uverbs{}", device.index);
                let abi = format!("sys/class/infiniband_verbs/{name}/abi_version");
                (name, abi)
            }
            ("rdma_cm", None) => ("rdma_cm".to_owned(), "sys/class/misc/rdma_cm/abi_version".to_owned()),
            _ => return None,
        };
        let file = fs::metadata(folder()?.join("dev/infiniband").join(&name)).ok()?;
        let number = file.file_type().is_char_device().then_some(file.rdev())?;
        Some(CharDev { name, abi: text(&abi)?.parse().ok()?, number })
    }

    fn is_administrator(&self) -> bool {
        urxe_net::ipc::credentials::own_uid() == 0
    }
}

fn shown(index: u32, device: &urxe_options::Device) -> Device {
    let of = |file: &str| text(&format!("sys/class/infiniband/{}/{file}", device.name)).unwrap_or_default();
    let digits: String = of("node_guid").chars().filter(char::is_ascii_hexdigit).collect();
    let mut port = Port::default();
    if let Ok(interface) = device::interface(&device.netdev) {
        // SAFETY: all-zero is a value of this plain C struct.
        let mut attr = unsafe { std::mem::zeroed::<v::ibv_port_attr>() };
        let is_infiniband = interface.link_layer().is_infiniband();
        let lids = is_infiniband.then(|| LidTable::default().port(&interface));
        query::port(&interface, lids.unwrap_or_default(), &mut attr);
        port = Port {
            capabilities: attr.port_cap_flags.into(),
            state: u8::try_from(attr.state).unwrap_or_default(),
            phys_state: attr.phys_state,
            netdev: if is_infiniband { Default::default() } else { (interface.index(), interface.name().to_owned()) },
            lids,
        };
    }
    Device {
        index,
        name: device.name.clone(),
        firmware: of("fw_ver"),
        guid: u64::from_str_radix(&digits, 16).unwrap_or_default(),
        capabilities: query::capabilities(),
        port,
    }
}

fn folder() -> Option<PathBuf> {
    urxe_preload::folder().map(|folder| PathBuf::from(OsStr::from_bytes(folder)))
}

/// A file of a line.
fn text(path: &str) -> Option<String> {
    Some(fs::read_to_string(folder()?.join(path)).ok()?.trim().to_owned())
}
