//! Errors of ports and routes; each message is one line that says what to do.

use core::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// Why a device cannot be present on its interface, or cannot have another QPN.
#[derive(Debug)]
#[non_exhaustive]
//= spec/hosts.md#net-003
//# A port that another program holds MUST be an error that says so.
pub enum PortError {
    /// No network interface has this name.
    NoSuchInterface {
        /// The name asked for.
        name: String,
    },
    /// An interface cannot be one of several that a device is on: it is there twice, or it is the loopback interface.
    NotJoinable {
        /// Name of the interface.
        name: String,
    },
    /// The interface is administratively down.
    InterfaceDown {
        /// Name of the interface.
        name: String,
    },
    /// The interface has neither an IPv4 nor an IPv6 address.
    NoAddress {
        /// Name of the interface.
        name: String,
    },
    /// An address was chosen for the GID table that no chosen interface has.
    AddressMissing {
        /// The address.
        address: IpAddr,
    },
    /// A program that is not urxe (or the kernel's rxe) holds UDP port 4791 of this address.
    PortTaken {
        /// Address and port that could not be bound.
        address: SocketAddr,
    },
    /// The kernel or a security policy refused what needs no privilege normally.
    NotPermitted {
        /// The attempted operation; completes "cannot …".
        what: &'static str,
    },
    /// The process (EMFILE) or the system (ENFILE) has no file descriptor left.
    TooManyFiles {
        /// The attempted operation; completes "cannot …".
        what: &'static str,
    },
    /// The process has used up its share of QPN blocks, or the host has none left.
    QpnsExhausted,
    /// Any other refusal of the operating system.
    Os {
        /// The attempted operation; completes "cannot …".
        what: &'static str,
        /// The error it returned.
        source: io::Error,
    },
}

impl PortError {
    /// Sorts an operating system error; `what` completes "cannot …".
    pub fn os(what: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => Self::TooManyFiles { what },
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { what },
            _ => Self::Os { what, source },
        }
    }
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchInterface { name } => {
                write!(f, "there is no network interface '{name}': `ip link` lists them, URXE_NETDEV chooses one")
            }
            Self::NotJoinable { name } if name == "lo" => {
                write!(f, "'lo' cannot be joined to other interfaces: give it a device of its own, URXE_NETDEV=lo,eth0")
            }
            Self::NotJoinable { name } => {
                write!(f, "network interface '{name}' is joined to itself: name it once in URXE_NETDEV")
            }
            Self::InterfaceDown { name } => {
                write!(f, "network interface '{name}' is down: run `ip link set {name} up`")
            }
            Self::NoAddress { name } => write!(
                f,
                "network interface '{name}' has no IP address: add one with `ip address add ADDRESS/LEN dev {name}`"
            ),
            Self::AddressMissing { address } => write!(
                f,
                "URXE_GID: no interface of URXE_NETDEV has the address {address}: `ip address` lists those there are"
            ),
            Self::PortTaken { address } => write!(
                f,
                "UDP {address} is held by another program (`ss -ulpn 'sport = :{}'` shows it; without a process it is \
                 the kernel's rxe): stop it, or choose another interface with URXE_NETDEV",
                address.port()
            ),
            Self::NotPermitted { what } => write!(
                f,
                "cannot {what}: permission denied by the system (seccomp, LSM or container policy): allow UDP and unix \
                 sockets here"
            ),
            Self::TooManyFiles { what } => {
                write!(f, "cannot {what}: no file descriptor left: raise the limit with `ulimit -n`")
            }
            Self::QpnsExhausted => {
                write!(f, "no queue pair number left for this process: destroy queue pairs, or use fewer")
            }
            Self::Os { what, source } => write!(f, "cannot {what}: {source}"),
        }
    }
}

impl std::error::Error for PortError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Os { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Why there is no way from a local GID to a remote one.
#[derive(Debug)]
#[non_exhaustive]
pub enum RouteError {
    /// The local GID is not in the interface's GID table.
    LocalGidUnknown,
    /// The remote GID is no address a packet can be sent to.
    RemoteGidUnusable,
    /// One GID stands for an IPv4 address, the other for an IPv6 one.
    FamilyMismatch,
    /// The operating system refused a socket.
    Os(PortError),
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LocalGidUnknown => write!(f, "the source GID is not in the port's GID table"),
            Self::RemoteGidUnusable => write!(f, "the destination GID is not a unicast or multicast address"),
            Self::FamilyMismatch => {
                write!(f, "source and destination GID are of different IP versions: choose another source GID index")
            }
            Self::Os(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RouteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Os(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_one_line() {
        let name = || "lo".to_owned();
        let all = [
            PortError::NoSuchInterface { name: name() },
            PortError::NotJoinable { name: name() },
            PortError::NotJoinable { name: "eth0".to_owned() },
            PortError::InterfaceDown { name: name() },
            PortError::NoAddress { name: name() },
            PortError::AddressMissing { address: [192, 0, 2, 1].into() },
            PortError::PortTaken { address: ([127, 0, 0, 1], 4791).into() },
            PortError::NotPermitted { what: "open a UDP socket" },
            PortError::TooManyFiles { what: "open a UDP socket" },
            PortError::QpnsExhausted,
            PortError::os("open a UDP socket", io::Error::from_raw_os_error(libc::ENOBUFS)),
        ];
        for error in all {
            let text = error.to_string();
            assert!(!text.contains('\n') && !text.contains("  "), "{text}");
        }
    }

    #[test]
    fn os_errors_are_sorted() {
        let sorted = |errno| PortError::os("x", io::Error::from_raw_os_error(errno));
        assert!(matches!(sorted(libc::EMFILE), PortError::TooManyFiles { .. }));
        assert!(matches!(sorted(libc::EACCES), PortError::NotPermitted { .. }));
        assert!(matches!(sorted(libc::ENOBUFS), PortError::Os { .. }));
    }
}
