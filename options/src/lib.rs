//! Options of devices.
//!
//! Each choice is one row of [`ALL`]: `--netdev` of the command `urxe`, the variable `URXE_NETDEV` that the library
//! reads, and the key `netdev` of a TOML file are the same thing. The command turns the first and the last into the
//! variable; nothing but the variables reaches the library.
//!
//! [`Choices`] and [`Observations`] are their values, understood and checked: by the command before it starts a program,
//! and by the library when it is loaded.
#![forbid(unsafe_code)]

mod auto;
mod choices;
mod congestion;
mod loopback;
mod mistake;
mod observations;
mod personality;

pub use choices::{Choices, Device};
pub use congestion::{Congestion, Ecn};
pub use loopback::Loopback;
pub use mistake::Mistake;
pub use observations::{Capture, Format, Observations, Strictness};
pub use personality::Personality;

/// Devices that there can be: as many interfaces may be listed.
pub const MAX_DEVICES: usize = 4;

/// Names the folder that `urxe run` made, to the library that it preloads.
pub const RUN_VARIABLE: &str = "URXE_RUN";

/// A file in that folder: each process that uses the folder holds a shared lock on it.
pub const RUN_USERS_LOCK: &str = "users.lock";

/// In that folder: what devices that are no more have counted.
pub const RUN_FINAL_COUNTERS: &str = "counted";

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
    help: "Interfaces of the devices urxe0, urxe1, …, separated by commas; `auto` is that of the IPv4 default route [default: lo]",
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

/// Local identifiers.
pub const LID: Opt = Opt {
    name: "lid",
    variable: "URXE_LID",
    value: "1",
    help: "Ports have LIDs, the last two bytes of their IPv4 address, for programs that know InfiniBand only",
};

/// Appearance of the devices in sysfs.
pub const PERSONALITY: Opt = Opt {
    name: "personality",
    variable: "URXE_PERSONALITY",
    value: "KIND",
    help: "`virtual`, or `pci`: the device has a PCI function, for programs that look for one [default: virtual]",
};

/// How packets get from one process to another of the same host.
pub const LOOPBACK: Opt = Opt {
    name: "loopback",
    variable: "URXE_LOOPBACK",
    value: "udp|shm",
    help: "Between processes of this host: `shm`, shared memory where both ends allow it, or `udp` always [default: shm]",
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
    help: "Congestion control of RC and XRC: packets in flight by losses, a rate by CNPs besides, or packets in flight by delay [default: window]",
};

/// Parameters of congestion control.
pub const CC_PARAMS: Opt = Opt {
    name: "cc-params",
    variable: "URXE_CC_PARAMS",
    value: "NAME=VALUE,…",
    help: "Parameters of congestion control under NVIDIA's names, such as rpg_ai_rate=40,cnp_dscp=46",
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

/// When another file is begun.
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
    help: "Explain on standard error what goes wrong; 0 for not, `failure`: when a process ends with a status other than 0 [default under `urxe run`: 1 at a terminal, in CI and with --artifacts, else failure]",
};

/// Fault script.
pub const FAULTS: Opt = Opt {
    name: "faults",
    variable: "URXE_FAULTS",
    value: "SCRIPT|@FILE",
    help: "What goes wrong on purpose, such as drop=1%,delay=50us..2ms,seed=42",
};

/// Strict mode: reports what works here and will not everywhere.
pub const STRICT: Opt = Opt {
    name: "strict",
    variable: "URXE_STRICT",
    value: "1|backtrace|write-order",
    help: "Tell of what works here and will not everywhere; `backtrace`: where in the program, too; `write-order`: also of programs that wait for the last byte of a WRITE",
};

/// Behaviour that is allowed and rarely happens.
pub const QUIRKS: Opt = Opt {
    name: "quirks",
    variable: "URXE_QUIRKS",
    value: "SEED[:NAME,…]",
    help: "Show what devices may do and rarely do, picked by a seed; `urxe explain quirks` lists it",
};

/// Everything that can be chosen.
pub const ALL: &[Opt] = &[
    NETDEV,
    DEVICE_NAME,
    MTU,
    GID,
    LID,
    PERSONALITY,
    LOOPBACK,
    ECN,
    CC,
    CC_PARAMS,
    PCAP,
    PCAP_SNAPLEN,
    PCAP_ROTATE,
    EXPLAIN,
    FAULTS,
    STRICT,
    QUIRKS,
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
