//! The values of the options, understood.

use std::net::IpAddr;
use std::path::PathBuf;

use urxe_wire::{GidLayout, LinkLayer};

use urxe_engine::selective::MOST_PATHS;

use crate::auto::{self, AUTO};
use crate::{
    Congestion, DEFAULT_NETDEV_VARIABLE, DETERMINISTIC, DEVICE_NAME, GID, GID_LAYOUT, LID, LINK_LAYER, LOOPBACK,
    Loopback, MAX_DEVICES, MTU, Mistake, NETDEV, Opt, PATHS, PERSONALITY, Personality, RAW, RawFrames,
    SELECTIVE_REPEAT, SHARDS, TOPOLOGY,
};

/// Interface of the first device when none is chosen: nothing leaves the machine unless asked.
const DEFAULT_NETDEV: &str = "lo";

/// Bytes of a device's name without the NUL: `IBV_SYSFS_NAME_MAX` of `<infiniband/verbs.h>`.
const NAME_MAX: usize = 63;

/// A device: its name and the interface that it sits on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// `urxe0`, or what was chosen.
    pub name: String,
    /// `lo`.
    pub netdev: String,
}

/// Values chosen for the devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choices {
    /// The devices, in order. Never empty.
    pub devices: Vec<Device>,
    /// The largest path MTU, in bytes.
    pub mtu: Option<u16>,
    /// Addresses of the GID table from index 1 on; empty for all.
    pub gids: Vec<IpAddr>,
    /// Link layer of the ports.
    pub link_layer: LinkLayer,
    /// Order and types of the rows of GID tables.
    pub gid_layout: GidLayout,
    /// Ports have LIDs.
    pub lids: bool,
    /// Appearance of the devices in sysfs.
    pub personality: Personality,
    /// Topology file in which the devices' PCI functions hang.
    pub topology: Option<PathBuf>,
    /// The way to other processes of this host.
    pub loopback: Loopback,
    /// One-sided requests go to the memory of processes of this host without packets.
    pub direct: bool,
    /// The way of raw frames from the interface.
    pub raw: RawFrames,
    /// Congestion control.
    pub congestion: Congestion,
    /// Seed of devices for fuzz targets.
    pub deterministic: Option<u64>,
    /// Selective repeat.
    pub selective_repeat: bool,
    /// UDP source ports over which selective repeat spreads packets.
    pub paths: u8,
    /// Queue pairs that have sockets of their own.
    pub sharding: Sharding,
}

/// Most shards of a device, itself included.
pub const MOST_SHARDS: u8 = 16;

/// Queue pairs that go together to one shard of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sharding {
    /// Queue pairs of a thread: there are as many shards as processors.
    #[default]
    Threads,
    /// Queue pairs of a completion queue: there are so many shards, the device itself included.
    Queues(u8),
}

impl Choices {
    /// Parses the variables, each by its name; `None` and empty is "not set".
    pub fn new(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Mistake> {
        let value = |option: Opt| variable(option.variable).filter(|value| !value.trim().is_empty());
        let default = || variable(DEFAULT_NETDEV_VARIABLE).filter(|value| !value.trim().is_empty());
        let netdevs = value(NETDEV).or_else(default).unwrap_or_else(|| DEFAULT_NETDEV.to_owned());
        let names = value(DEVICE_NAME).unwrap_or_default();
        let link_layer = value(LINK_LAYER).map_or(Ok(LinkLayer::default()), |text| link_layer(&text))?;
        let personality = value(PERSONALITY).map_or(Ok(Personality::default()), |text| personality(&text))?;
        let selective_repeat = value(SELECTIVE_REPEAT).map_or(Ok(false), |text| yes_or_no(SELECTIVE_REPEAT, &text))?;
        Ok(Self {
            devices: devices(&netdevs, &names, personality)?,
            mtu: value(MTU).map(|text| mtu(&text)).transpose()?,
            gids: value(GID).map_or(Ok(Vec::new()), |text| gids(&text))?,
            lids: value(LID).map_or(Ok(false), |text| yes_or_no(LID, &text))? || link_layer.is_infiniband(),
            link_layer,
            gid_layout: value(GID_LAYOUT).map_or(Ok(GidLayout::default()), |text| gid_layout(&text))?,
            personality,
            topology: value(TOPOLOGY).map(|file| topology(file, personality)).transpose()?,
            loopback: value(LOOPBACK).map_or(Ok(Loopback::default()), |text| loopback(&text))?,
            direct: value(crate::DIRECT).map_or(Ok(false), |text| yes_or_no(crate::DIRECT, &text))?,
            raw: value(RAW).map_or(Ok(RawFrames::default()), |text| raw_frames(&text))?,
            congestion: Congestion::new(value)?,
            deterministic: value(DETERMINISTIC).map(|text| seed(&text)).transpose()?,
            selective_repeat,
            paths: value(PATHS).map_or(Ok(1), |text| paths(text.trim(), selective_repeat))?,
            sharding: value(SHARDS).map_or(Ok(Sharding::default()), |text| sharding(text.trim()))?,
        })
    }

    /// The device of this name.
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }
}

impl Default for Choices {
    fn default() -> Self {
        let device = Device { name: default_name(Personality::default(), 0), netdev: DEFAULT_NETDEV.to_owned() };
        Self {
            devices: vec![device],
            mtu: None,
            gids: Vec::new(),
            link_layer: LinkLayer::default(),
            gid_layout: GidLayout::default(),
            lids: false,
            personality: Personality::default(),
            topology: None,
            loopback: Loopback::default(),
            direct: false,
            raw: RawFrames::default(),
            congestion: Congestion::default(),
            deterministic: None,
            selective_repeat: false,
            paths: 1,
            sharding: Sharding::default(),
        }
    }
}

fn paths(text: &str, selective_repeat: bool) -> Result<u8, Mistake> {
    match text.parse() {
        Ok(count @ 2..=MOST_PATHS) if !selective_repeat => Err(Mistake::new(
            PATHS,
            &count.to_string(),
            "several paths reorder packets: they need --selective-repeat 1",
        )),
        Ok(count @ 1..=MOST_PATHS) => Ok(count),
        _ => Err(Mistake::new(PATHS, text, format!("1 to {MOST_PATHS}"))),
    }
}

fn sharding(text: &str) -> Result<Sharding, Mistake> {
    if text == "auto" {
        return Ok(Sharding::Threads);
    }
    let known = text.parse().ok().filter(|count| (1..=MOST_SHARDS).contains(count));
    known.map(Sharding::Queues).ok_or_else(|| Mistake::new(SHARDS, text, format!("auto, or 1 to {MOST_SHARDS}")))
}

fn default_name(personality: Personality, index: usize) -> String {
    format!("{}{index}", personality.prefix())
}

fn mistake<T>(option: Opt, value: &str, what: impl Into<String>) -> Result<T, Mistake> {
    Err(Mistake::new(option, value, what))
}

fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty())
}

fn devices(netdevs: &str, names: &str, personality: Personality) -> Result<Vec<Device>, Mistake> {
    let netdev_list: Vec<&str> = words(netdevs).collect();
    match netdev_list.len() {
        0 => return mistake(NETDEV, netdevs, "names no interface; leave it out, or list some, such as `lo,eth0`"),
        1..=MAX_DEVICES => {}
        count => return mistake(NETDEV, netdevs, format!("{count} interfaces, and {MAX_DEVICES} devices at most")),
    }
    let name_list: Vec<&str> = words(names).collect();
    if name_list.len() > netdev_list.len() {
        let what =
            format!("{} names for {} devices; {} chooses those", name_list.len(), netdev_list.len(), NETDEV.name);
        return mistake(DEVICE_NAME, names, what);
    }
    let mut devices: Vec<Device> = Vec::new();
    for (index, netdev) in netdev_list.into_iter().enumerate() {
        let name = name_list.get(index);
        let name = name.map_or_else(|| default_name(personality, index), |&name| name.to_owned());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if name.len() > NAME_MAX || !name.bytes().all(plain) || name.starts_with('.') {
            return mistake(
                DEVICE_NAME,
                names,
                format!("{name}: letters, digits, `_`, `-` and `.`, {NAME_MAX} at most"),
            );
        }
        if devices.iter().any(|device| device.name == name) {
            return mistake(DEVICE_NAME, names, format!("{name}: two devices of one name"));
        }
        let netdev = if netdev == AUTO { auto::interface() } else { netdev.to_owned() };
        devices.push(Device { name, netdev });
    }
    Ok(devices)
}

fn mtu(text: &str) -> Result<u16, Mistake> {
    match text.trim().parse() {
        Ok(bytes @ (256 | 512 | 1024 | 2048 | 4096)) => Ok(bytes),
        _ => mistake(MTU, text, "RoCE knows 256, 512, 1024, 2048 and 4096"),
    }
}

fn gids(list: &str) -> Result<Vec<IpAddr>, Mistake> {
    let address = |word: &str| match word.parse() {
        // An IPv4 address in the form that GIDs have.
        Ok(IpAddr::V6(address)) => Ok(address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)),
        Ok(address) => Ok(address),
        Err(_) => mistake(GID, list, format!("`{word}` is neither an IPv4 nor an IPv6 address")),
    };
    words(list).map(address).collect()
}

fn yes_or_no(option: Opt, text: &str) -> Result<bool, Mistake> {
    match text.trim() {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => mistake(option, text, "1 for yes, 0 for no"),
    }
}

fn seed(text: &str) -> Result<u64, Mistake> {
    text.trim().parse().or_else(|_| mistake(DETERMINISTIC, text, "a number, such as 1"))
}

fn gid_layout(name: &str) -> Result<GidLayout, Mistake> {
    match GidLayout::from_name(name.trim()) {
        Some(layout) => Ok(layout),
        None => mistake(GID_LAYOUT, name, "there are `rxe` and `mlx5`"),
    }
}

fn link_layer(name: &str) -> Result<LinkLayer, Mistake> {
    match LinkLayer::from_name(name.trim()) {
        Some(link_layer) => Ok(link_layer),
        None => mistake(LINK_LAYER, name, "there are `ethernet` and `infiniband`"),
    }
}

fn personality(name: &str) -> Result<Personality, Mistake> {
    match Personality::from_name(name.trim()) {
        Some(personality) => Ok(personality),
        None => mistake(PERSONALITY, name, "there are `virtual`, `pci` and `mlx5`"),
    }
}

fn topology(file: String, personality: Personality) -> Result<PathBuf, Mistake> {
    match personality {
        Personality::Virtual => {
            mistake(TOPOLOGY, &file, "devices hang from PCI with `--personality pci` or `mlx5` only")
        }
        Personality::Pci | Personality::Mlx5 => Ok(PathBuf::from(file)),
    }
}

fn loopback(name: &str) -> Result<Loopback, Mistake> {
    match Loopback::from_name(name.trim()) {
        Some(loopback) => Ok(loopback),
        None => mistake(LOOPBACK, name, "there are `udp` and `shm`"),
    }
}

fn raw_frames(name: &str) -> Result<RawFrames, Mistake> {
    match RawFrames::from_name(name.trim()) {
        Some(frames) => Ok(frames),
        None => mistake(RAW, name, "there are `packet` and `xdp`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(set: &[(&str, &str)]) -> Result<Choices, Mistake> {
        Choices::new(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    fn named(set: &[(&str, &str)]) -> Vec<(String, String)> {
        choices(set).unwrap().devices.into_iter().map(|device| (device.name, device.netdev)).collect()
    }

    #[test]
    fn nothing_chosen() {
        assert_eq!(choices(&[]).unwrap(), Choices::default());
        assert_eq!(choices(&[("URXE_NETDEV", " "), ("URXE_MTU", "")]).unwrap(), Choices::default());
    }

    #[test]
    fn devices_in_the_order_of_their_interfaces() {
        let pair = |name: &str, netdev: &str| (name.to_owned(), netdev.to_owned());
        assert_eq!(named(&[("URXE_NETDEV", "eth0")]), [pair("urxe0", "eth0")]);
        assert_eq!(named(&[("URXE_NETDEV", "lo, eth0,")]), [pair("urxe0", "lo"), pair("urxe1", "eth0")]);
        assert_eq!(named(&[("URXE_DEFAULT_NETDEV", "eth1")]), [pair("urxe0", "eth1")]);
        assert_eq!(named(&[("URXE_DEFAULT_NETDEV", "eth1"), ("URXE_NETDEV", "eth0")]), [pair("urxe0", "eth0")]);
        assert_ne!(named(&[("URXE_NETDEV", "auto")]), [pair("urxe0", "auto")]);
        let set = [("URXE_NETDEV", "lo,eth0"), ("URXE_DEVICE_NAME", "mlx5_0")];
        assert_eq!(named(&set), [pair("mlx5_0", "lo"), pair("urxe1", "eth0")]);
        assert_eq!(choices(&set).unwrap().device("urxe1").unwrap().netdev, "eth0");
        assert_eq!(choices(&set).unwrap().device("urxe0"), None);
        let card = ("URXE_PERSONALITY", "mlx5");
        assert_eq!(named(&[card, ("URXE_NETDEV", "lo,eth0")]), [pair("mlx5_0", "lo"), pair("mlx5_1", "eth0")]);
        assert_eq!(named(&[card, ("URXE_DEVICE_NAME", "urxe0")]), [pair("urxe0", "lo")]);
    }

    #[test]
    fn the_other_values() {
        let set =
            [("URXE_MTU", "1024"), ("URXE_GID", "10.0.0.1, ::ffff:10.0.0.2,fd00::1"), ("URXE_PERSONALITY", "pci")];
        assert_eq!(choices(&[("URXE_LOOPBACK", "shm")]).unwrap().loopback, Loopback::Shm);
        assert_eq!(choices(&[("URXE_LOOPBACK", "udp")]).unwrap().loopback, Loopback::Udp);
        assert_eq!(choices(&[]).unwrap().raw, RawFrames::Packet);
        assert_eq!(choices(&[("URXE_RAW", "xdp")]).unwrap().raw, RawFrames::Xdp);
        let chosen = choices(&set).unwrap();
        let gids: Vec<IpAddr> = ["10.0.0.1", "10.0.0.2", "fd00::1"].map(|text| text.parse().unwrap()).into();
        assert_eq!((chosen.mtu, chosen.gids, chosen.personality), (Some(1024), gids, Personality::Pci));
        assert!(!chosen.lids && choices(&[("URXE_LID", "1")]).unwrap().lids);
        assert!(!choices(&[("URXE_LID", "0")]).unwrap().lids);
        let infiniband = choices(&[("URXE_LINK_LAYER", "infiniband"), ("URXE_LID", "0")]).unwrap();
        assert!(infiniband.link_layer.is_infiniband() && infiniband.lids);
        assert_eq!(choices(&[("URXE_LINK_LAYER", "ethernet")]).unwrap(), Choices::default());
    }

    #[test]
    fn mistakes_are_named() {
        for (name, value, said) in [
            ("URXE_NETDEV", ",", "names no interface"),
            ("URXE_GID_LAYOUT", "card", "`rxe` and `mlx5`"),
            ("URXE_DEVICE_NAME", "a,b", "2 names for 1 devices"),
            ("URXE_DEVICE_NAME", "a/b", "letters, digits"),
            ("URXE_DEVICE_NAME", "..", "letters, digits"),
            ("URXE_MTU", "1500", "256, 512"),
            ("URXE_GID", "10.0.0", "neither an IPv4"),
            ("URXE_LID", "yes", "1 for yes"),
            ("URXE_LINK_LAYER", "IB", "`ethernet` and `infiniband`"),
            ("URXE_PERSONALITY", "usb", "`virtual`, `pci` and `mlx5`"),
            ("URXE_PATHS", "4", "--selective-repeat 1"),
            ("URXE_PATHS", "0", "1 to 16"),
            ("URXE_PATHS", "17", "1 to 16"),
            ("URXE_SHARDS", "0", "auto, or 1 to 16"),
            ("URXE_SHARDS", "many", "auto, or 1 to 16"),
            ("URXE_LOOPBACK", "tcp", "`udp` and `shm`"),
            ("URXE_RAW", "dpdk", "`packet` and `xdp`"),
            ("URXE_TOPOLOGY", "dgx.xml", "`--personality pci`"),
        ] {
            let text = choices(&[(name, value)]).unwrap_err().to_string();
            assert!(text.contains(said) && text.contains(name) && text.contains("--"), "{text}");
        }
        let twice = choices(&[("URXE_NETDEV", "lo,eth0"), ("URXE_DEVICE_NAME", "a,a")]);
        assert!(twice.unwrap_err().to_string().contains("two devices"));
    }
}
