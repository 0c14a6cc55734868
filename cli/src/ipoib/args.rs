//! Arguments of `urxe ipoib`.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::options::Options;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Make an interface for IP over InfiniBand, and keep it until SIGINT or SIGTERM (needs `CAP_NET_ADMIN`)
    Up(Box<UpArgs>),
}

#[derive(clap::Args)]
pub(super) struct UpArgs {
    /// Name of the interface, such as ib0
    #[arg(value_name = "NAME")]
    pub(super) name: String,
    /// IPv4 address of the interface, such as 192.0.2.1/24, in a network of its own
    #[arg(value_name = "ADDRESS/LENGTH", value_parser = address)]
    pub(super) address: (Ipv4Addr, u8),
    /// IPv6 addresses of the interface, such as 2001:db8::1/64, beside the one of the link that every port has
    #[arg(value_name = "IPV6/LENGTH", value_parser = ipv6_address)]
    pub(super) ipv6: Vec<(Ipv6Addr, u8)>,
    #[command(flatten)]
    pub(super) options: Options,
}

fn address(text: &str) -> Result<(Ipv4Addr, u8), String> {
    let parsed = || {
        let (address, prefix_len) = text.split_once('/')?;
        Some((address.parse().ok()?, prefix_len.parse().ok().filter(|prefix_len| (1..=32).contains(prefix_len))?))
    };
    parsed().ok_or_else(|| "an IPv4 address and the length of its prefix, such as 192.0.2.1/24".to_owned())
}

fn ipv6_address(text: &str) -> Result<(Ipv6Addr, u8), String> {
    let parsed = || {
        let (address, prefix_len) = text.split_once('/')?;
        Some((address.parse().ok()?, prefix_len.parse().ok().filter(|prefix_len| (1..=128).contains(prefix_len))?))
    };
    parsed().ok_or_else(|| "an IPv6 address and the length of its prefix, such as 2001:db8::1/64".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_interfaces() {
        assert_eq!(address("192.0.2.1/24"), Ok((Ipv4Addr::new(192, 0, 2, 1), 24)));
        for wrong in ["192.0.2.1", "192.0.2.1/33", "192.0.2.1/0", "fd00::1/64"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
        assert_eq!(ipv6_address("2001:db8::1/64"), Ok((Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, 1), 64)));
        for wrong in ["2001:db8::1", "2001:db8::1/129", "2001:db8::1/0", "192.0.2.1/24"] {
            assert!(ipv6_address(wrong).is_err(), "{wrong}");
        }
    }
}
