//! Options of devices.
//!
//! Each choice is one row of [`ALL`]: `--netdev` of the command `urxe`, the variable `URXE_NETDEV` that the library
//! reads, and the key `netdev` of a TOML file are the same thing. The command turns the first and the last into the
//! variable; nothing but the variables reaches the library.
//!
//! [`Choices`] and [`Observations`] are their values, understood and checked: by the command before it starts a program,
//! and by the library when it is loaded.
//!
//! ```
//! use urxe_options::{Choices, NETDEV};
//!
//! let choices = Choices::new(|name| (name == NETDEV.variable).then(|| "lo,eth0".to_owned())).unwrap();
//! assert_eq!(choices.devices[1].netdev, "eth0");
//! let mistake = Choices::new(|name| (name == "URXE_MTU").then(|| "1000".to_owned())).unwrap_err();
//! assert!(mistake.to_string().contains("1024"));
//! ```
//!
//! # Enums
//!
//! Enums are exhaustive: each variant is a word that an option takes, and a new one is a breaking change, so that the library and the command
//! learn of it from the compiler.
#![forbid(unsafe_code)]

mod auto;
mod choices;
mod congestion;
mod loopback;
mod mistake;
mod observations;
mod personality;
mod raw;

pub use choices::{Choices, Device, MOST_SHARDS, Sharding};
pub use congestion::{Congestion, Ecn};
pub use loopback::Loopback;
pub use mistake::Mistake;
pub use observations::{Capture, Format, Observations, Strictness, is_ci};
pub use personality::Personality;
pub use raw::RawFrames;

/// Devices that there can be: as many interfaces may be listed.
pub const MAX_DEVICES: usize = 32;

/// Names the folder that `urxe run` made, to the library that it preloads.
pub const RUN_VARIABLE: &str = "URXE_RUN";

/// A file in that folder: each process that uses the folder holds a shared lock on it.
pub const RUN_USERS_LOCK: &str = "users.lock";

/// Subfolder for the counts of devices that are no more.
pub const RUN_FINAL_COUNTERS: &str = "counted";

/// A file in that folder, which `urxe run --artifacts` makes: it gets each explanation.
pub const RUN_EXPLANATIONS: &str = "explanations";

/// The value of `URXE_NETDEV` where that is not set. Containers have it ([`NETDEV`] stays for those who start them).
pub const DEFAULT_NETDEV_VARIABLE: &str = "URXE_DEFAULT_NETDEV";

/// The start of the names of devices that were not given one: `urxe0`, `urxe1`, ….
///
/// libibverbs' own provider for the kernel's rxe takes every device whose name begins with `rxe`.
pub const NAME: &str = "urxe";

/// One thing that can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opt {
    /// `netdev`: the option's name without its dashes, and the key in a TOML file.
    pub name: &'static str,
    /// `URXE_NETDEV`.
    pub variable: &'static str,
    /// Placeholder of the value in help texts.
    pub value: &'static str,
    /// Effect, in a line.
    pub help: &'static str,
}

/// Interfaces of the devices.
pub const NETDEV: Opt = Opt {
    name: "netdev",
    variable: "URXE_NETDEV",
    value: "LIST",
    help: "Interfaces of the devices urxe0, urxe1, …, separated by commas; `auto` is that of the IPv4 default route, `eth0+eth1` one device on two [default: lo]",
};

/// Names of the devices.
pub const DEVICE_NAME: Opt = Opt {
    name: "device-name",
    variable: "URXE_DEVICE_NAME",
    value: "LIST",
    help: "Names of the devices, in the order of their interfaces [default: urxe0,urxe1,…]",
};

/// Upper bound of the path MTU.
pub const MTU: Opt = Opt {
    name: "mtu",
    variable: "URXE_MTU",
    value: "BYTES",
    help: "Active MTU of the ports, if the interface allows it: 256, 512, 1024, 2048 or 4096 [default: the largest]",
};

/// Rows of the GID table.
pub const GID: Opt = Opt {
    name: "gid",
    variable: "URXE_GID",
    value: "LIST",
    help: "Addresses of the GID table from index 1 on, in this order; the interfaces must have them [default: all]",
};

/// Link layer of the ports.
pub const LINK_LAYER: Opt = Opt {
    name: "link-layer",
    variable: "URXE_LINK_LAYER",
    value: "ethernet|infiniband",
    help: "Link layer of the ports: `infiniband` gives LIDs, GIDs of a subnet prefix and a GUID, and a subnet manager [default: ethernet]",
};

/// Order and types of the rows of the GID table.
pub const GID_LAYOUT: Opt = Opt {
    name: "gid-layout",
    variable: "URXE_GID_LAYOUT",
    value: "NAME",
    help: "Rows of the GID table: `rxe`, one an address; `mlx5`, two an address, RoCE v1 and v2: index 3 is the first IPv4 address [default: rxe]",
};

/// Local identifiers.
pub const LID: Opt = Opt {
    name: "lid",
    variable: "URXE_LID",
    value: "1",
    help: "Ports of Ethernet have LIDs nevertheless, for programs that know InfiniBand only; those of InfiniBand always have",
};

/// Appearance of the devices in sysfs.
pub const PERSONALITY: Opt = Opt {
    name: "personality",
    variable: "URXE_PERSONALITY",
    value: "KIND",
    help: "`virtual`, `pci`: the device has a PCI function, for programs that look for one, or `mlx5`: one with the names and ids of a ConnectX-5 [default: virtual]",
};

/// Places of the devices among PCI buses and NUMA nodes.
pub const TOPOLOGY: Opt = Opt {
    name: "topology",
    variable: "URXE_TOPOLOGY",
    value: "FILE",
    help: "NUMA nodes, PCI switches and links of the devices, from a topology file of NCCL's format; with --personality pci or mlx5",
};

/// Way of packets from one process to another of the same host.
pub const LOOPBACK: Opt = Opt {
    name: "loopback",
    variable: "URXE_LOOPBACK",
    value: "udp|shm",
    help: "Between processes of this host: `shm`, shared memory where both ends allow it, or `udp` always [default: shm]",
};

/// The way of raw frames from the interface.
pub const RAW: Opt = Opt {
    name: "raw",
    variable: "URXE_RAW",
    value: "packet|xdp",
    help: "Frames of raw packet queue pairs: `packet`, copies of what the host gets, or `xdp`, which takes them away from it; needs CAP_BPF and CAP_NET_ADMIN [default: packet]",
};

/// One-sided requests without packets.
pub const DIRECT: Opt = Opt {
    name: "direct",
    variable: "URXE_DIRECT",
    value: "1|0",
    help: "RDMA WRITEs, READs and atomics between processes of this host and user go straight to the peer's memory, where both ends choose so [default: 0]",
};

/// Explicit congestion notification.
pub const ECN: Opt = Opt {
    name: "ecn",
    variable: "URXE_ECN",
    value: "auto|1|0",
    help: "Packets of RC, UC and XRC are ECN-capable, marks are answered by CNPs and CNPs obeyed; `auto`: on every interface but lo [default: auto]",
};

/// Congestion control.
pub const CC: Opt = Opt {
    name: "cc",
    variable: "URXE_CC",
    value: "window|dcqcn|swift",
    help: "Congestion control of RC and XRC: packets in flight by losses, a rate by CNPs besides (where --ecn is on), or packets in flight by delay [default: window]",
};

/// Parameters of congestion control.
pub const CC_PARAMS: Opt = Opt {
    name: "cc-params",
    variable: "URXE_CC_PARAMS",
    value: "NAME=VALUE,…",
    help: "Parameters of congestion control under NVIDIA's names, such as rpg_ai_rate=40,cnp_dscp=46",
};

/// Selective repeat.
pub const SELECTIVE_REPEAT: Opt = Opt {
    name: "selective-repeat",
    variable: "URXE_SELECTIVE_REPEAT",
    value: "1|0",
    help: "RC with another urxe that has it on: packets behind a lost one are kept, and only what is missing is sent again [default: 0]",
};

/// Paths of selective repeat.
pub const PATHS: Opt = Opt {
    name: "paths",
    variable: "URXE_PATHS",
    value: "N",
    help: "With --selective-repeat 1, RC spreads its packets over so many UDP source ports, up to 16, and leaves one that loses far more than the others [default: 1]",
};

/// Shards of a device.
pub const SHARDS: Opt = Opt {
    name: "shards",
    variable: "URXE_SHARDS",
    value: "auto|N",
    help: "RC and UC queue pairs have sockets, rings and a thread of their own: those of each thread that creates some, for as many threads as there are processors (auto), or those of each of N completion queues, up to 16 [default: auto]",
};

/// A file for every packet.
pub const PCAP: Opt = Opt {
    name: "pcap",
    variable: "URXE_PCAP",
    value: "FILE",
    help: "Capture every packet into pcapng files of this name",
};

/// Bytes of a packet in there.
pub const PCAP_SNAPLEN: Opt = Opt {
    name: "pcap-snaplen",
    variable: "URXE_PCAP_SNAPLEN",
    value: "BYTES",
    help: "Keep so many bytes of each packet [default: all]",
};

/// Size after which another file is begun.
pub const PCAP_ROTATE: Opt = Opt {
    name: "pcap-rotate",
    variable: "URXE_PCAP_ROTATE",
    value: "SIZE[,FILES]",
    help: "Begin another file after so many bytes, and keep so many files, such as 100M,5",
};

/// Explanations of failures.
pub const EXPLAIN: Opt = Opt {
    name: "explain",
    variable: "URXE_EXPLAIN",
    value: "0|1|json|failure",
    help: "Explain on standard error what goes wrong; `0`: never, `failure`: when a process ends with a status other than 0 [default: 1 in CI; under `urxe run` also at a terminal and with --artifacts, else failure]",
};

/// Fault script.
pub const FAULTS: Opt = Opt {
    name: "faults",
    variable: "URXE_FAULTS",
    value: "SCRIPT|@FILE",
    help: "Inject faults, such as drop=1%,delay=50us..2ms,seed=42",
};

/// Strict mode: reports what works here and will not everywhere.
pub const STRICT: Opt = Opt {
    name: "strict",
    variable: "URXE_STRICT",
    value: "1|backtrace|write-order",
    help: "Report what works here and may fail on other devices; `backtrace`: where in the program, too; `write-order`: also of programs that wait for the last byte of a WRITE",
};

/// Behaviour that is allowed and rarely happens.
pub const QUIRKS: Opt = Opt {
    name: "quirks",
    variable: "URXE_QUIRKS",
    value: "SEED[:NAME,…]",
    help: "Show what devices may do and rarely do, picked by a seed; `urxe explain quirks` lists it",
};

/// Devices for fuzz targets.
pub const DETERMINISTIC: Opt = Opt {
    name: "deterministic",
    variable: "URXE_DETERMINISTIC",
    value: "SEED",
    help: "For fuzz targets only, never for services: no threads, virtual time, and keys and numbers that the seed decides; the program must poll",
};

/// List of all options.
pub const ALL: &[Opt] = &[
    NETDEV,
    DEVICE_NAME,
    MTU,
    GID,
    LINK_LAYER,
    GID_LAYOUT,
    LID,
    PERSONALITY,
    TOPOLOGY,
    LOOPBACK,
    DIRECT,
    RAW,
    ECN,
    CC,
    CC_PARAMS,
    SELECTIVE_REPEAT,
    PATHS,
    SHARDS,
    PCAP,
    PCAP_SNAPLEN,
    PCAP_ROTATE,
    EXPLAIN,
    FAULTS,
    STRICT,
    QUIRKS,
    DETERMINISTIC,
];

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn one_name_for_all_three() {
        for option in ALL {
            let variable = format!("URXE_{}", option.name.to_uppercase().replace('-', "_"));
            assert_eq!(option.variable, variable);
        }
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
