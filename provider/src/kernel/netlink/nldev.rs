//! Answers of nldev (the kernel's `drivers/infiniband/core/nldev.c`): devices, ports, objects, counters.
//!
//! Reading only. Names of devices, links, counters that queue pairs are bound to and modes are the administrator's to
//! change, who does so for urxe by options of `urxe run`.

use urxe_ffi::nldev as n;
use urxe_net::PortLids;
use urxe_wire::Guid;

use super::kinds::{KINDS, Kind, MOST, Told};
use super::message::{Answer, Attributes, MIN_TYPE, Malformed, Request, Writer};

/// A device as it is shown.
#[derive(Debug, Clone, Default)]
pub(super) struct Device {
    /// Number of the uverbs device.
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) firmware: String,
    pub(super) guid: u64,
    pub(super) capabilities: u64,
    pub(super) port: Port,
}

/// Number of the only port.
#[derive(Debug, Clone, Default)]
pub(super) struct Port {
    pub(super) capabilities: u64,
    pub(super) state: u8,
    pub(super) phys_state: u8,
    /// The interface it is on: index and name.
    pub(super) netdev: (u32, String),
    /// LIDs, of a port of InfiniBand.
    pub(super) lids: Option<PortLids>,
}

/// A character device below `/dev/infiniband`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CharDev {
    pub(super) name: String,
    pub(super) abi: u64,
    /// `st_rdev`.
    pub(super) number: libc::dev_t,
}

/// Source of the devices, their reports and counters.
pub(super) trait Devices {
    fn all(&self) -> Vec<Device>;
    /// The reports of the processes that have the device, as far as they may be seen.
    fn reports(&self, device: &Device) -> Vec<Told>;
    /// Hardware counters of the port.
    fn counters(&self, device: &Device) -> Vec<(&'static str, u64)>;
    /// The character device of this kind: of a device, or if there is none given, of them all.
    fn chardev(&self, kind: &str, device: Option<&Device>) -> Option<CharDev>;
    /// Whether who asks could change anything.
    fn is_administrator(&self) -> bool;
}

/// A positive errno.
type Refusal = i32;

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        libc::EINVAL
    }
}

/// The answer to one request.
pub(super) fn answer(request: Request<'_>, port: u32, devices: &dyn Devices) -> Vec<Vec<u8>> {
    let mut answer = Answer::new(request, port);
    if !request.is_request() {
        return Vec::new();
    }
    // Netlink's own are taken, and done with.
    let done = if request.kind < MIN_TYPE { Ok(false) } else { run(request, devices, &mut answer) };
    match done {
        Ok(true) => answer.done(),
        Ok(false) if !request.wants_ack() => {}
        Ok(false) => answer.acknowledge(0),
        Err(refusal) => answer.acknowledge(refusal),
    }
    answer.into_datagrams()
}

/// Says whether the answer is a list.
fn run(request: Request<'_>, devices: &dyn Devices, answer: &mut Answer<'_>) -> Result<bool, Refusal> {
    // `RDMA_NL_GET_CLIENT`, `RDMA_NL_GET_OP`.
    let (client, command) = (u32::from(request.kind >> 10), u32::from(request.kind & 0x3ff));
    if client != n::RDMA_NL_NLDEV {
        return Err(libc::EINVAL);
    }
    let attributes = request.attributes().ok_or(libc::EINVAL)?;
    let call = Call { attributes, devices, lists: request.is_dump() };
    match command {
        n::RDMA_NLDEV_CMD_GET => call.devices(answer),
        n::RDMA_NLDEV_CMD_PORT_GET => call.port(answer),
        n::RDMA_NLDEV_CMD_SYS_GET => Ok(call.system(answer)),
        n::RDMA_NLDEV_CMD_GET_CHARDEV => call.chardev(answer),
        n::RDMA_NLDEV_CMD_RES_GET => call.summary(answer),
        n::RDMA_NLDEV_CMD_STAT_GET => call.statistics(answer),
        n::RDMA_NLDEV_CMD_STAT_GET_STATUS => call.counter_names(answer),
        n::RDMA_NLDEV_CMD_SET
        | n::RDMA_NLDEV_CMD_NEWLINK
        | n::RDMA_NLDEV_CMD_DELLINK
        | n::RDMA_NLDEV_CMD_SYS_SET
        | n::RDMA_NLDEV_CMD_STAT_SET
        | n::RDMA_NLDEV_CMD_STAT_DEL => Err(if devices.is_administrator() { libc::EOPNOTSUPP } else { libc::EPERM }),
        // A device's own format, of which there is none.
        n::RDMA_NLDEV_CMD_RES_QP_GET_RAW | n::RDMA_NLDEV_CMD_RES_CQ_GET_RAW | n::RDMA_NLDEV_CMD_RES_MR_GET_RAW => {
            Err(libc::EOPNOTSUPP)
        }
        _ => call.resources(Kind::of(command).ok_or(libc::EINVAL)?, answer),
    }
}

/// A request, taken apart.
struct Call<'a> {
    attributes: Attributes<'a>,
    devices: &'a dyn Devices,
    lists: bool,
}

impl Call<'_> {
    /// The device that it is about.
    fn device(&self) -> Result<Option<Device>, Refusal> {
        let Some(index) = self.attributes.u32(n::RDMA_NLDEV_ATTR_DEV_INDEX)? else { return Ok(None) };
        self.devices.all().into_iter().find(|device| device.index == index).ok_or(libc::EINVAL).map(Some)
    }

    fn one_device(&self) -> Result<Device, Refusal> {
        self.device()?.ok_or(libc::EINVAL)
    }

    /// Whether a port is named: only the first may be.
    fn names_port(&self) -> Result<bool, Refusal> {
        match self.attributes.u32(n::RDMA_NLDEV_ATTR_PORT_INDEX)? {
            None => Ok(false),
            Some(1) => Ok(true),
            Some(_) => Err(libc::EINVAL),
        }
    }

    /// Of those that are asked for, one message each.
    fn each(&self, answer: &mut Answer<'_>, write: impl Fn(&Device) -> Writer) -> Result<bool, Refusal> {
        if self.lists {
            self.devices.all().iter().for_each(|device| answer.push(&write(device)));
        } else {
            answer.push(&write(&self.one_device()?));
        }
        Ok(self.lists)
    }

    fn devices(&self, answer: &mut Answer<'_>) -> Result<bool, Refusal> {
        self.each(answer, |device| {
            let mut writer = handle(device);
            writer.put_u32(n::RDMA_NLDEV_ATTR_PORT_INDEX, 1);
            writer.put_u64(n::RDMA_NLDEV_ATTR_CAP_FLAGS, device.capabilities);
            writer.put_text(n::RDMA_NLDEV_ATTR_FW_VERSION, &device.firmware);
            writer.put_u64(n::RDMA_NLDEV_ATTR_NODE_GUID, device.guid);
            writer.put_u64(n::RDMA_NLDEV_ATTR_SYS_IMAGE_GUID, device.guid);
            writer.put_u8(n::RDMA_NLDEV_ATTR_DEV_NODE_TYPE, u8::try_from(n::RDMA_NODE_IB_CA).unwrap_or_default());
            let protocol = if device.port.lids.is_some() { "ib" } else { "roce" };
            writer.put_text(n::RDMA_NLDEV_ATTR_DEV_PROTOCOL, protocol);
            writer
        })
    }

    fn port(&self, answer: &mut Answer<'_>) -> Result<bool, Refusal> {
        // A list of the ports of one device; or one port of it.
        let device = self.one_device()?;
        if !self.names_port()? && !self.lists {
            return Err(libc::EINVAL);
        }
        let Port { capabilities, state, phys_state, netdev, lids } = &device.port;
        let mut writer = handle(&device);
        writer.put_u32(n::RDMA_NLDEV_ATTR_PORT_INDEX, 1);
        writer.put_u64(n::RDMA_NLDEV_ATTR_CAP_FLAGS, *capabilities);
        if let Some(lids) = lids {
            // As `fill_port_info` of the kernel's nldev.c.
            writer.put_u64(n::RDMA_NLDEV_ATTR_SUBNET_PREFIX, u64::from_be_bytes(Guid::DEFAULT_PREFIX));
            writer.put_u32(n::RDMA_NLDEV_ATTR_LID, lids.lid.0.into());
            writer.put_u32(n::RDMA_NLDEV_ATTR_SM_LID, lids.sm_lid.0.into());
            writer.put_u8(n::RDMA_NLDEV_ATTR_LMC, lids.lmc);
        }
        writer.put_u8(n::RDMA_NLDEV_ATTR_PORT_STATE, *state);
        writer.put_u8(n::RDMA_NLDEV_ATTR_PORT_PHYS_STATE, *phys_state);
        if netdev.0 != 0 {
            writer.put_u32(n::RDMA_NLDEV_ATTR_NDEV_INDEX, netdev.0);
            writer.put_text(n::RDMA_NLDEV_ATTR_NDEV_NAME, &netdev.1);
        }
        answer.push(&writer);
        Ok(self.lists)
    }

    fn system(&self, answer: &mut Answer<'_>) -> bool {
        let mut writer = Writer::default();
        // A device is in the network namespace of its interface, and nowhere else.
        writer.put_u8(n::RDMA_NLDEV_SYS_ATTR_NETNS_MODE, 0);
        // Nothing is pinned: a fork's child gets copies, and the parent keeps what is registered.
        writer.put_u8(n::RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK, 1);
        answer.push(&writer);
        self.lists
    }

    fn chardev(&self, answer: &mut Answer<'_>) -> Result<bool, Refusal> {
        let device = self.device()?;
        let kind = self.attributes.text(n::RDMA_NLDEV_ATTR_CHARDEV_TYPE)?.ok_or(libc::EINVAL)?;
        let found = self.devices.chardev(kind, device.as_ref()).ok_or(libc::EOPNOTSUPP)?;
        let mut writer = device.as_ref().map(handle).unwrap_or_default();
        writer.put_u64(n::RDMA_NLDEV_ATTR_CHARDEV, huge_encode_dev(found.number));
        writer.put_u64(n::RDMA_NLDEV_ATTR_CHARDEV_ABI, found.abi);
        writer.put_text(n::RDMA_NLDEV_ATTR_CHARDEV_NAME, &found.name);
        answer.push(&writer);
        Ok(self.lists)
    }

    fn summary(&self, answer: &mut Answer<'_>) -> Result<bool, Refusal> {
        self.each(answer, |device| {
            let told = self.devices.reports(device);
            let mut table = Writer::default();
            for kind in &KINDS {
                let count = told.iter().map(|told| kind.of_process(told).count() as u64).sum();
                let mut entry = Writer::default();
                entry.put_text(n::RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME, kind.name);
                entry.put_u64(n::RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR, count);
                table.nest(n::RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY, &entry);
            }
            let mut writer = handle(device);
            writer.nest(n::RDMA_NLDEV_ATTR_RES_SUMMARY, &table);
            writer
        })
    }

    fn resources(&self, kind: &Kind, answer: &mut Answer<'_>) -> Result<bool, Refusal> {
        let device = self.one_device()?;
        self.names_port()?;
        let told = self.devices.reports(&device);
        let mut all = told.iter().flat_map(|told| kind.of_process(told));
        if !self.lists {
            let id = self.attributes.u32(kind.id.1)?.ok_or(libc::EINVAL)?;
            let (_, object) = all.find(|(number, _)| *number == id.into()).ok_or(libc::ENOENT)?;
            let mut writer = handle(&device);
            writer.append(&object);
            answer.push(&writer);
            return Ok(false);
        }
        let mut table = Writer::default();
        for (_, object) in all {
            if table.len() + object.len() > MOST {
                push_table(answer, &device, kind.table, &std::mem::take(&mut table));
            }
            table.nest(kind.entry, &object);
        }
        push_table(answer, &device, kind.table, &table);
        Ok(true)
    }

    /// The port's counters. Nothing else has any that may be asked for: an empty list.
    fn statistics(&self, answer: &mut Answer<'_>) -> Result<bool, Refusal> {
        let object = self.attributes.u32(n::RDMA_NLDEV_ATTR_STAT_RES)?;
        if self.lists {
            return object.map(|_| true).ok_or(libc::EINVAL);
        }
        if object.is_some() {
            return Err(libc::EOPNOTSUPP);
        }
        let device = self.one_device()?;
        if !self.names_port()? {
            return Err(libc::EINVAL);
        }
        let counter = |(name, value)| {
            let mut entry = Writer::default();
            entry.put_text(n::RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME, name);
            entry.put_u64(n::RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE, value);
            entry
        };
        let counters = self.devices.counters(&device);
        self.push_counters(answer, &device, counters.into_iter().map(counter));
        Ok(false)
    }

    /// The counters' names: all are counted, always.
    fn counter_names(&self, answer: &mut Answer<'_>) -> Result<bool, Refusal> {
        let device = self.one_device()?;
        if !self.names_port()? {
            return Err(libc::EINVAL);
        }
        let counter = |(index, (name, _)): (u32, (&str, u64))| {
            let mut entry = Writer::default();
            entry.put_text(n::RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME, name);
            entry.put_u32(n::RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX, index);
            entry
        };
        let counters = self.devices.counters(&device);
        self.push_counters(answer, &device, (0..).zip(counters).map(counter));
        Ok(self.lists)
    }

    fn push_counters(&self, answer: &mut Answer<'_>, device: &Device, entries: impl Iterator<Item = Writer>) {
        let mut table = Writer::default();
        entries.for_each(|entry| table.nest(n::RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY, &entry));
        let mut writer = handle(device);
        writer.put_u32(n::RDMA_NLDEV_ATTR_PORT_INDEX, 1);
        writer.nest(n::RDMA_NLDEV_ATTR_STAT_HWCOUNTERS, &table);
        answer.push(&writer);
    }
}

/// Attributes that every message about a device begins with.
fn handle(device: &Device) -> Writer {
    let mut writer = Writer::default();
    writer.put_u32(n::RDMA_NLDEV_ATTR_DEV_INDEX, device.index);
    writer.put_text(n::RDMA_NLDEV_ATTR_DEV_NAME, &device.name);
    writer
}

fn push_table(answer: &mut Answer<'_>, device: &Device, number: u32, table: &Writer) {
    let mut writer = handle(device);
    writer.nest(number, table);
    answer.push(&writer);
}

/// A device's number as the kernel hands it out (`huge_encode_dev` of `linux/kdev_t.h`).
const fn huge_encode_dev(number: libc::dev_t) -> u64 {
    let (major, minor) = (libc::major(number) as u64, libc::minor(number) as u64);
    (minor & 0xff) | major << 8 | (minor & !0xff) << 12
}

#[cfg(test)]
mod tests;
