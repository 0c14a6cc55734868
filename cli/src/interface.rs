//! A network interface: just enough for the sysfs tree until the net room's own type is there.

use std::net::Ipv6Addr;

use anyhow::{Context, Result, ensure};

pub(crate) struct Interface {
    name: String,
    guid: [u8; 8],
    gids: Vec<[u8; 16]>,
}

impl Interface {
    pub(crate) fn by_name(name: &str) -> Result<Self> {
        let mac = std::fs::read_to_string(format!("/sys/class/net/{name}/address"))
            .with_context(|| format!("no such interface: {name}"))?;
        let mac: Vec<u8> = mac.trim().split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
        let &[a, b, c, d, e, f] = mac.as_slice() else { anyhow::bail!("interface {name} has no MAC address") };
        let guid = [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
        let mut default = [0; 16];
        default[..2].copy_from_slice(&[0xfe, 0x80]);
        default[8..].copy_from_slice(&guid);
        let mut gids = vec![default];
        let output = std::process::Command::new("ip").args(["-o", "addr", "show", "dev", name]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for word in text.split_whitespace().filter_map(|word| word.split('/').next()) {
            if let Ok(v4) = word.parse::<std::net::Ipv4Addr>() {
                if !gids.contains(&v4.to_ipv6_mapped().octets()) {
                    gids.push(v4.to_ipv6_mapped().octets());
                }
            } else if let Ok(v6) = word.parse::<Ipv6Addr>() {
                if !gids.contains(&v6.octets()) {
                    gids.push(v6.octets());
                }
            }
        }
        ensure!(gids.len() > 1, "interface {name} has no address");
        Ok(Self { name: name.to_owned(), guid, gids })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn guid(&self) -> [u8; 8] {
        self.guid
    }

    pub(crate) fn gids(&self) -> &[[u8; 16]] {
        &self.gids
    }
}
