//! The devices that were chosen, on the interfaces as they are now.

use anyhow::{Result, bail};
use urxe_net::Interface;
use urxe_options::Choices;

/// Interfaces of the devices, in their order, as the devices show them.
pub(crate) fn interfaces(choices: &Choices) -> Result<Vec<Interface>> {
    let interface = |netdev: &str| Interface::by_name(netdev);
    let all: Vec<Interface> =
        choices.devices.iter().map(|device| interface(&device.netdev)).collect::<Result<_, _>>()?;
    for address in &choices.gids {
        if !all.iter().any(|interface| interface.addresses().iter().any(|own| own.ip() == *address)) {
            let names: Vec<&str> = all.iter().map(Interface::name).collect();
            bail!("--gid {address}: {} has no such address (`ip address` lists them)", names.join(" or "));
        }
    }
    Ok(all.into_iter().map(|interface| interface.restricted(choices.mtu, &choices.gids)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_nobody_are_refused() {
        let choices = Choices { gids: vec!["192.0.2.1".parse().unwrap()], ..Choices::default() };
        let said = interfaces(&choices).unwrap_err().to_string();
        assert!(said.contains("192.0.2.1") && said.contains("lo has no such address"), "{said}");
    }

    #[test]
    fn the_loopback_interface_by_default() {
        let chosen = interfaces(&Choices::default()).unwrap();
        assert_eq!(chosen.iter().map(Interface::name).collect::<Vec<_>>(), ["lo"]);
    }
}
